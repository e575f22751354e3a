"""Divides what datasets of `tf.data` give among the ranks.

Rank `r` of `n` takes elements `r`, `n + r`, `2 n + r` and so on. So what all ranks take in a step is what one process
with n times the batch would, and all ranks take as many.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Iterator
from typing import Any

from . import _order
from ._script import State


def install(tf: Any, state: State) -> None:
    """Loops of the script over datasets take what belongs to this rank."""
    if state.shard == "none" or state.size == 1:
        return
    _order.install()
    original = tf.data.Dataset.__iter__

    @functools.wraps(original)
    def iterate(dataset):
        if _inside.keras or not tf.executing_eagerly():
            return original(dataset)
        if is_whole(tf, dataset):
            state.sharded += 1
            return original(dataset)
        if state.shard == "all":
            state.sharded += 1
            return original(divided(tf, dataset, state, None))
        return _Elements(tf, original(_order.in_order(tf, dataset)), state)

    tf.data.Dataset.__iter__ = iterate


@contextlib.contextmanager
def keras_iterates():
    """What Keras iterates in here is left to it."""
    before, _inside.keras = _inside.keras, True
    try:
        yield
    finally:
        _inside.keras = before


class _Inside(threading.local):
    keras = False


_inside = _Inside()


def divided(tf: Any, dataset: Any, state: State, pass_length: int | None) -> Any:
    """What this rank takes of a dataset, which may go several times over `pass_length` elements."""
    rank, size = state.rank, state.size
    if size == 1 or is_whole(tf, dataset):
        return dataset
    dataset = _order.in_order(tf, dataset)
    length = int(dataset.cardinality())
    if length == tf.data.INFINITE_CARDINALITY and pass_length is None:
        return dataset.shard(size, rank)
    if pass_length is None and length >= 0:
        pass_length = length
    if pass_length is None:
        return _unknown(tf, dataset, rank, size)
    whole = whole_steps(pass_length, size) * size
    mine = dataset.enumerate().filter(lambda at, _: at % pass_length < whole and at % pass_length % size == rank)
    mine = mine.map(lambda _, element: element)
    if length >= 0:
        return mine.apply(tf.data.experimental.assert_cardinality(length // pass_length * whole // size))
    return mine


def whole_steps(length: int, size: int) -> int:
    """How many steps all ranks can make with so many elements. What remains is left out."""
    steps = length // size
    if steps == 0:
        raise ValueError(
            f"the dataset has {length} batches, which cannot be divided among {size} ranks: make the batches smaller"
        )
    return steps


def _unknown(tf: Any, dataset: Any, rank: int, size: int) -> Any:
    """Of each group of `size` elements one; a group that is not full at the end is left out."""
    is_tuple = isinstance(dataset.element_spec, tuple)

    def one(*parts):
        return tf.data.Dataset.zip(parts if is_tuple else parts[0]).skip(rank).take(1)

    return dataset.window(size, drop_remainder=True).flat_map(one)


def is_whole(tf: Any, dataset: Any) -> bool:
    """Whether the script has said that this dataset is not to be divided, in the words of tf.distribute."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return policy == tf.data.experimental.AutoShardPolicy.OFF


class _Elements(Iterator):
    """A loop of the script. It is divided if gradients are combined after its first element.

    A loop that only evaluates gets all elements, on each rank; rank 0, which prints, in the order of the dataset.
    """

    def __init__(self, tf: Any, elements: Any, state: State):
        self._tf, self._elements, self._state = tf, elements, state
        self._kept: list[Any] = []
        self._combined_before: int | None = None
        self._is_divided: bool | None = None

    @property
    def element_spec(self) -> Any:
        """What the elements look like."""
        return self._elements.element_spec

    def get_next(self) -> Any:
        """The next element."""
        try:
            return next(self)
        except StopIteration:
            raise self._tf.errors.OutOfRangeError(None, None, "End of sequence") from None

    def __next__(self) -> Any:
        if not self._tf.executing_eagerly():
            raise ValueError(
                "an iterator over a dataset is used inside of tf.function, where its elements cannot be divided among"
                " the ranks as they come: start with --shard all, which divides all datasets that are iterated, or"
                " with --shard none"
            )
        if self._is_divided is None:
            return self._undecided()
        if self._is_divided:
            return self._mine()
        return self._kept.pop(0) if self._kept else next(self._elements)

    def _undecided(self) -> Any:
        if self._combined_before is None:
            self._kept = self._group()
            if len(self._kept) < self._state.size:
                self._is_divided = False
                return next(self)
            self._combined_before = self._state.combined
            return self._kept.pop(self._state.rank)
        self._is_divided = self._state.combined > self._combined_before
        if self._is_divided:
            self._state.sharded += 1
            self._kept = []
        return next(self)

    def _mine(self) -> Any:
        group = self._group()
        if len(group) < self._state.size:
            raise StopIteration
        return group[self._state.rank]

    def _group(self) -> list[Any]:
        return list(itertools.islice(self._elements, self._state.size))
