"""Divides what datasets of `tf.data` give among the ranks.

Rank `r` of `n` takes elements `r`, `n + r`, `2 n + r` and so on. So what all ranks take in a step is what one process
with n times the batch would, and all ranks take as many.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any, Callable

from .. import _prefetch
from . import _order
from ._elements import Elements
from ._script import State


def install(tf: Any, state: State) -> None:
    """Loops of the script over datasets take what belongs to this rank."""
    if state.shard == "none" or state.size == 1:
        return
    _order.install()
    original = tf.data.Dataset.__iter__

    def shared(dataset: Any, read: Callable[[Any, int], Iterator[Any]]) -> Iterator[Any]:
        """What this rank takes of a dataset, of which `read` gives all and expects to give so many in each step."""
        if _inside.keras or not tf.executing_eagerly() or _is_thread_of_tensorflow():
            return read(dataset, 1)
        if is_whole(tf, dataset):
            state.sharded += 1
            return read(dataset, 1)
        if state.shard == "all":
            state.sharded += 1
            return read(divided(tf, dataset, state, None), 1)
        return Elements(read(_order.in_order(tf, dataset), state.size), dataset.element_spec, state)

    @functools.wraps(original)
    def iterate(dataset):
        return shared(dataset, lambda elements, _: original(elements))

    def read_ahead(batches, read):
        if not isinstance(batches, tf.data.Dataset):
            return read(batches, 1)
        # Whether a loop trains is seen by what it takes, not by what is read ahead for it.
        return shared(batches, lambda elements, step: read(original(elements), step))

    tf.data.Dataset.__iter__ = iterate
    _prefetch.shared = read_ahead


def _is_thread_of_tensorflow() -> bool:
    """Whether this is a thread on which TensorFlow runs the generator of another dataset, which is divided itself."""
    return isinstance(threading.current_thread(), threading._DummyThread)


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
