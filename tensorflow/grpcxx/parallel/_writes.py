"""Checkpoints, models and summaries are written by rank 0 alone, and caches by each rank for itself."""

from __future__ import annotations

import functools
from typing import Any

from ._script import State


def install(tf: Any, state: State) -> None:
    """On other ranks than 0, what would write files does nothing, or writes others."""
    if state.rank == 0:
        return
    for owner, name in (
        (tf.train.Checkpoint, "save"),
        (tf.train.Checkpoint, "write"),
        (tf.train.CheckpointManager, "save"),
        (tf.saved_model, "save"),
    ):
        leave_out(owner, name)
    _cache_apart(tf, state)
    tf.summary.create_file_writer = lambda *_, **__: tf.summary.create_noop_writer()


def _cache_apart(tf: Any, state: State) -> None:
    """A dataset writes the file of its cache as it is read, so each rank has one of its own."""
    original = tf.data.Dataset.cache

    @functools.wraps(original)
    def cache(dataset, filename="", *arguments, **named):
        is_in_memory = isinstance(filename, (str, bytes)) and not filename
        own = filename if is_in_memory else tf.strings.join([filename, f".rank{state.rank}"])
        return original(dataset, own, *arguments, **named)

    tf.data.Dataset.cache = cache


def leave_out(owner: Any, name: str) -> None:
    """Makes a function do nothing, if there is one."""
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def nothing(*_, **__):
        return None

    setattr(owner, name, nothing)
