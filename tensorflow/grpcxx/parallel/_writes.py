"""Checkpoints, models and summaries are written by rank 0 alone."""

from __future__ import annotations

import functools
from typing import Any

from ._script import State


def install(tf: Any, state: State) -> None:
    """On other ranks than 0, what would write files does nothing."""
    if state.rank == 0:
        return
    for owner, name in (
        (tf.train.Checkpoint, "save"),
        (tf.train.Checkpoint, "write"),
        (tf.train.CheckpointManager, "save"),
        (tf.saved_model, "save"),
    ):
        leave_out(owner, name)
    tf.summary.create_file_writer = lambda *_, **__: tf.summary.create_noop_writer()


def leave_out(owner: Any, name: str) -> None:
    """Makes a function do nothing, if there is one."""
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def nothing(*_, **__):
        return None

    setattr(owner, name, nothing)
