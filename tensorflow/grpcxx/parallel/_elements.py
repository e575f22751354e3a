"""Loops of the script over datasets: each finds out whether it trains."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ._script import State

IN_FUNCTION = (
    "an iterator over a dataset is used inside of tf.function, where its elements cannot be divided among the ranks as"
    " they come: start with --shard all, which divides all datasets that are iterated, or with --shard none"
)


class Elements(tf.data.Iterator):
    """A loop of the script. It is divided if gradients are combined after its first element.

    A loop that only evaluates gets all elements, on each rank; rank 0, which prints, in the order of the dataset.
    A checkpoint keeps how far the ranks have come together, in the words of TensorFlow's own iterators.
    """

    def __init__(self, elements: Iterator[Any], element_spec: Any, state: State):
        self._elements, self._element_spec, self._state = elements, element_spec, state
        self._begin()

    def _begin(self) -> None:
        self._kept: list[Any] = []
        self._combined_before: int | None = None
        self._is_divided: bool | None = None

    @property
    def element_spec(self) -> Any:
        """What the elements look like."""
        return self._element_spec

    def get_next(self) -> Any:
        """The next element."""
        try:
            return next(self)
        except StopIteration:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None

    def get_next_as_optional(self) -> tf.experimental.Optional:
        """The next element, if there is one."""
        try:
            return tf.experimental.Optional.from_value(next(self))
        except StopIteration:
            return tf.experimental.Optional.empty(self._element_spec)

    def close(self) -> None:
        """Lets go of what reads ahead, if something does: a generator closes so what it is left in the midst of."""
        if hasattr(self._elements, "close"):
            self._elements.close()

    def __next__(self) -> Any:
        if not tf.executing_eagerly():
            raise ValueError(IN_FUNCTION)
        if self._is_divided is None:
            return self._undecided()
        if self._is_divided:
            return self._mine()
        self._tell_if_it_trains()
        return self._kept.pop(0) if self._kept else next(self._elements)

    def _undecided(self) -> Any:
        if self._combined_before is None:
            self._combined_before = self._state.combined
            if self._state.rank == 0:
                # What may be the others' stays where it is for now: rank 0 saves how far it has come.
                return next(self._elements)
            self._kept = self._next(self._state.size)
            if len(self._kept) < self._state.size:
                self._is_divided = False
                return next(self)
            return self._kept.pop(self._state.rank)
        self._decide()
        return next(self)

    def _decide(self) -> None:
        self._is_divided = self._state.combined > self._combined_before
        if self._is_divided and self._state.rank == 0:
            self._kept = self._next(self._state.size - 1)
            # Elements that are fewer than the ranks are divided nowhere.
            self._is_divided = len(self._kept) == self._state.size - 1
        if self._is_divided:
            self._state.sharded += 1
            self._kept = []

    def _mine(self) -> Any:
        group = self._next(self._state.size)
        if len(group) < self._state.size:
            raise StopIteration
        return group[self._state.rank]

    def _next(self, count: int) -> list[Any]:
        return list(itertools.islice(self._elements, count))

    def _tell_if_it_trains(self) -> None:
        if self._state.combined > self._combined_before:
            self._state.say_once(
                "a loop over a dataset trains, and each rank takes all of its elements, as it took no gradient between"
                " the first and the second: where a script reads ahead or skips elements, start with --shard all, which"
                " divides every dataset that is iterated"
            )

    def _serialize_to_tensors(self) -> dict[str, Any]:
        if self._is_divided is None and self._combined_before not in (None, self._state.combined):
            self._decide()
        if self._kept and self._state.rank == 0:
            raise ValueError(
                f"an iterator over fewer elements than the {self._state.size} ranks is saved in the midst of them: save"
                " it before the first or behind the last"
            )
        return self._elements._serialize_to_tensors()

    def _restore_from_tensors(self, tensors: dict[str, Any]) -> Any:
        self._begin()
        return self._elements._restore_from_tensors(tensors)

    @property
    def _type_spec(self) -> Any:
        # A function of TensorFlow asks for it that gets an iterator as argument.
        raise ValueError(IN_FUNCTION)

    def __tf_tracing_type__(self, _: Any) -> Any:
        return self._type_spec
