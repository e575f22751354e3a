"""Means of tensors over all ranks within graphs of TensorFlow: by ops of the plugin, or by functions of Python."""

from __future__ import annotations

import itertools
from typing import Any, Callable

import numpy as np

from ..group import Group

Means = Callable[[list[Any]], list[Any]]


def by_ops(tf: Any, group: Group, begin_step: Callable[[], None], guarded: Callable[[Any], Any]) -> Means:
    """Asynchronous ops, which TensorFlow keeps in order. Their errors are those of the group."""
    from .. import tensorflow as ops

    def begin() -> np.int64:
        begin_step()
        return np.int64(0)

    def means(flats: list[Any]) -> list[Any]:
        graph = flats[0].graph
        # The first step shares variables, and must have used them before. The graph keeps its last beginning.
        with tf.control_dependencies([flats[0], *getattr(graph, "_grpcxx_last", [])]):
            begun = tf.numpy_function(begin, [], tf.int64, name="grpcxx_step_begin")
        graph._grpcxx_last = [begun]
        with tf.control_dependencies([begun]):
            return [ops.all_reduce(flat, "mean", group=group) for flat in flats]

    return means


class ByFunctions:
    """Two functions of Python for each tensor: one begins when it is there, one waits for the result.

    Those that begin are chained, so that all ranks begin the same operations in the same order; so are those that
    wait, so that at most one thread of TensorFlow is blocked.
    """

    def __init__(self, tf: Any, group: Group, begin_step: Callable[[], None], guarded: Callable[[Any], Any]):
        self._tf, self._group, self._begin_step, self._guarded = tf, group, begin_step, guarded
        self._tickets = itertools.count(1)
        self._pending: dict[int, Any] = {}

    def __call__(self, flats: list[Any]) -> list[Any]:
        tf = self._tf
        graph = flats[0].graph
        # The graph keeps them, and goes with them.
        begun, ended = getattr(graph, "_grpcxx_last", ([], []))
        tickets = []
        for flat in flats:
            with tf.control_dependencies(begun):
                ticket = tf.numpy_function(self._begin, [flat], tf.int64, name="grpcxx_all_reduce_begin")
            tickets.append(ticket)
            begun = [ticket]
        found = []
        for flat, ticket in zip(flats, tickets):
            with tf.control_dependencies(ended):
                mean = tf.numpy_function(self._end, [ticket], flat.dtype, name="grpcxx_all_reduce_end")
            mean.set_shape(flat.shape)
            ended = [mean]
            found.append(mean)
        graph._grpcxx_last = begun, ended
        return found

    def _begin(self, flat: np.ndarray) -> np.int64:
        self._begin_step()
        future = self._guarded(lambda: self._group.all_reduce(flat, "mean", async_=True))
        ticket = next(self._tickets)
        # The array belongs to TensorFlow, and stays as it is as long as it is kept here.
        self._pending[ticket] = future, flat
        return np.int64(ticket)

    def _end(self, ticket: np.int64) -> np.ndarray:
        future, _flat = self._pending.pop(int(ticket))
        return self._guarded(future.result)
