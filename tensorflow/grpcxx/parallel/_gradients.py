"""Gradients of `tf.GradientTape` become those of all ranks, and only rank 0 writes."""

from __future__ import annotations

import functools
import gc
import hashlib
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _library
from ._combine import ByFunctions, by_ops
from ._script import OWN_TAG, State


def install(tf: Any, state: State) -> None:
    """Changes TensorFlow, in this process, as it has just been imported."""
    from . import _data, _writes

    tf.random.set_seed(state.seed)
    variables = Variables(tf, state)
    _combine_gradients(tf, state, variables)
    _data.install(tf, state)
    _writes.install(tf, state)
    state.variables = variables


class Variables:
    """All variables of the process, in the order in which they were made, which is the same on all ranks."""

    def __init__(self, tf: Any, state: State):
        from tensorflow.python.ops import resource_variable_ops

        self._tf, self._state = tf, state
        self._made: list[_Made] = []
        self._lock = threading.Lock()
        self.is_shared_before = False
        """Whether the ranks began the first step with the same values."""
        self.is_shared = False
        """Whether that holds for what the first step has made too."""
        base = resource_variable_ops.BaseResourceVariable
        original = base.__init__

        @functools.wraps(original)
        def init(variable, *arguments, **named):
            original(variable, *arguments, **named)
            with self._lock:
                self._made.append(_Made(weakref.ref(variable)))

        base.__init__ = init

    def share_before(self) -> None:
        """Gives all ranks the values of rank 0, before anything is computed with them.

        The rank that has restored a checkpoint may have made variables that the others make in their first step:
        `share` follows then.
        """
        self.is_shared_before, self.is_shared = True, False
        for made in self._made:
            made.is_shared = False
        found = self._found()
        counts = self._state.group.all_gather(np.array([len(found)], np.int64), tag=OWN_TAG)
        common = found[: counts.min()]
        digests = self._digests(common)
        if (digests == digests[0]).all():
            self._broadcast(common)

    def share(self) -> None:
        """Gives all ranks those of rank 0 that the first step has made. It has changed others, such as metrics."""
        self.is_shared_before = self.is_shared = True
        found = self._found()
        all_digests = self._digests(found)
        for rank, (count, digest) in enumerate(all_digests):
            if digest != all_digests[0][1]:
                raise ValueError(
                    f"rank {rank} has {count} variables and rank 0 has {all_digests[0][0]}, or of other types and"
                    " shapes: the script must make the same variables on all ranks"
                )
        self._broadcast([one for one in found if not one[0].is_shared])

    def _found(self) -> list[tuple[_Made, Any]]:
        """The variables that there are now."""
        # Which variables wait for the collector differs between ranks.
        gc.collect()
        with self._lock:
            alive = [(made, variable) for made in self._made if (variable := made.reference()) is not None]
        with self._tf.init_scope():
            return [one for one in alive if _has_value(self._tf, one[1]) and not _counts_saves(one[1])]

    def _digests(self, found: list[tuple[_Made, Any]]) -> np.ndarray:
        """How many variables each rank has, and a digest of their types and shapes."""
        told = "\n".join(f"{variable.dtype.name}{variable.shape}" for _, variable in found)
        digest = np.frombuffer(hashlib.blake2b(told.encode(), digest_size=8).digest(), np.int64)
        own = np.array([len(found), digest[0]], np.int64)[np.newaxis]
        return self._state.group.all_gather(own, tag=OWN_TAG)

    def _broadcast(self, found: list[tuple[_Made, Any]]) -> None:
        for made, variable in found:
            made.is_shared = True
            with self._tf.init_scope():
                value = variable.numpy()
                own = np.ascontiguousarray(value).reshape(value.shape)
                got = self._state.group.broadcast(own, tag=OWN_TAG)
                if self._state.rank != 0:
                    variable.assign(got)


@dataclass
class _Made:
    """A variable, as long as it exists."""

    reference: weakref.ref
    is_shared: bool = False
    """Whether it has had the value of rank 0 since the last training began."""


def _has_value(tf: Any, variable: Any) -> bool:
    """Whether a variable can be read now, and holds numbers."""
    if not hasattr(variable.handle, "numpy") or not (variable.dtype.is_numpy_compatible and variable.dtype.size):
        return False
    return variable.dtype not in (tf.string, tf.resource, tf.variant) and bool(variable.is_initialized())


def _counts_saves(variable: Any) -> bool:
    """Whether a checkpoint has made it, which only rank 0 writes."""
    return variable.name.partition(":")[0].rpartition("/")[2] == "save_counter"


def _combine_gradients(tf: Any, state: State, variables: Variables) -> None:
    from tensorflow.python.eager import record

    reduced = Reducer(tf, state, variables)
    original = tf.GradientTape.gradient

    @functools.wraps(original)
    def gradient(tape, target, sources, *arguments, **named):
        found = original(tape, target, sources, *arguments, **named)
        # A tape around this one differentiates again, and its gradients are combined.
        if record.could_possibly_record() and not tape._recording:
            if state.size > 1 and _of_variables(tf, sources, found):
                state.say_once(
                    "a tf.GradientTape takes gradients of variables within another one, and each rank keeps its own,"
                    " which the outer one may differentiate: where the script applies them the ranks diverge, so take"
                    " them `with outer.stop_recording():`, or behind the outer one"
                )
            return found
        return reduced.mean(sources, found)

    enter = tf.GradientTape.__enter__

    @functools.wraps(enter)
    def share_and_enter(tape):
        # What the tape records must begin with the same values on all ranks.
        if not variables.is_shared_before:
            reduced.guarded(variables.share_before)
        return enter(tape)

    tf.GradientTape.gradient = gradient
    tf.GradientTape.__enter__ = share_and_enter


def _of_variables(tf: Any, sources: Any, gradients: Any) -> list[int]:
    """Which of the gradients there are, and are those of variables, in the order of the structure."""
    pairs = enumerate(zip(tf.nest.flatten(sources), tf.nest.flatten(gradients)))
    return [at for at, (source, gradient) in pairs if gradient is not None and hasattr(source, "handle")]


class Reducer:
    """Takes the mean of gradients over all ranks."""

    def __init__(self, tf: Any, state: State, variables: Variables):
        self._tf, self._state, self._variables = tf, state, variables
        # Other versions of TensorFlow than the plugin was built for have no ops.
        way = by_ops if _library.plugin() is not None else ByFunctions
        self._graph_means = way(tf, state.group, self._begin_step, self.guarded)

    def mean(self, sources: Any, gradients: Any) -> Any:
        """The gradients with those of variables combined, in the structure of `sources`."""
        tf = self._tf
        flat_sources, flat = tf.nest.flatten(sources), tf.nest.flatten(gradients)
        chosen = _of_variables(tf, sources, gradients)
        if not chosen:
            return gradients
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            raise ValueError(
                f"the script trains under {type(strategy).__name__} with {strategy.num_replicas_in_sync} replicas:"
                " grpcxx.parallel makes the ranks itself, one replica each. Leave the strategy out"
            )
        dense = []
        for at in chosen:
            gradient = tf.convert_to_tensor(flat[at])
            gradient.set_shape(flat_sources[at].shape)
            dense.append(gradient)
        is_eager = tf.executing_eagerly()
        combined = self._eager(dense) if is_eager else self._in_graph(dense)
        for at, gradient in zip(chosen, combined):
            flat[at] = gradient
        return tf.nest.pack_sequence_as(sources, flat)

    def _eager(self, gradients: list[Any]) -> list[Any]:
        self._begin_step()
        # The backward pass has ended with the first layers.
        arrays = [gradient.numpy() for gradient in reversed(gradients)]
        found = self.guarded(lambda: self._state.group.all_reduce_many(arrays, "mean"))
        return [self._tf.convert_to_tensor(array) for array in reversed(found)]

    def _in_graph(self, gradients: list[Any]) -> list[Any]:
        """One operation for each bucket, which begins as soon as its gradients are there."""
        tf = self._tf
        buckets = self._buckets(gradients)
        flats = []
        for bucket in buckets:
            parts = [tf.reshape(gradients[at], [-1]) for at in bucket]
            flats.append(tf.concat(parts, 0) if len(parts) > 1 else parts[0])
        combined = list(gradients)
        for bucket, flat in zip(buckets, self._graph_means(flats)):
            sizes = [gradients[at].shape.num_elements() for at in bucket]
            for at, part in zip(bucket, tf.split(flat, sizes) if len(sizes) > 1 else [flat]):
                combined[at] = tf.reshape(part, gradients[at].shape)
        return combined

    def _buckets(self, gradients: list[Any]) -> list[list[int]]:
        """Which gradients travel together: those of a type, in the order in which the backward pass makes them."""
        buckets: list[list[int]] = []
        open_buckets: dict[Any, tuple[list[int], int]] = {}
        for at in reversed(range(len(gradients))):
            gradient = gradients[at]
            size = gradient.shape.num_elements() * gradient.dtype.size
            bucket, used = open_buckets.get(gradient.dtype, (None, 0))
            if bucket is None or used + size > self._state.bucket_bytes:
                bucket, used = [], 0
                buckets.append(bucket)
            bucket.append(at)
            open_buckets[gradient.dtype] = bucket, used + size
        return buckets

    def _begin_step(self) -> None:
        self._state.combined += 1
        if not self._variables.is_shared:
            self.guarded(self._variables.share)

    def guarded(self, code: Any) -> Any:
        """What the code returns. Its error is kept: TensorFlow makes others of what its ops raise."""
        from .._status import Error

        try:
            return code()
        except (Error, ValueError) as error:
            if self._state.failure is None:
                self._state.failure = error
            raise
