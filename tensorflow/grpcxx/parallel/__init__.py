"""Data-parallel training: one script, run as several ranks.

`python -m grpcxx.parallel -n 4 train.py` runs a script of TensorFlow that knows nothing of it; see docs/parallel.md.
A script that wants to know asks `rank()`, `size()` and `local_rank()`, which are 0, 1 and 0 where it runs alone, and
may use `group()` for operations of its own.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING

from .._status import Code, Error
from ._ranks import Place, RankError, from_environment, inherited, leave_to_descendants

if TYPE_CHECKING:
    from ..group import Group

__all__ = ["group", "local_rank", "rank", "size"]


def rank() -> int:
    """The number of this process among those of the job, from 0; in a worker, that of the rank that started it."""
    return _place().rank


def size() -> int:
    """How many processes the job has."""
    return _place().size


def local_rank() -> int:
    """The number of this process among those of the job on its host, from 0; it chooses a GPU.

    Raises an error where the launcher does not tell it, and `LOCAL_RANK` is not set.
    """
    place = _place()
    if place.local_rank is None:
        raise RankError(f"{place.launcher} does not tell which rank of its host this is: set LOCAL_RANK")
    return place.local_rank


def group() -> Group:
    """The group of all ranks, which this process joins with the first call."""
    global _is_asked_for
    _is_asked_for = True
    place = _place()
    if place.is_inherited:
        raise Error(
            Code.FAILED_PRECONDITION,
            f"this process was started by rank {place.rank}, which is in the group itself: use the group there",
        )
    return _joined(place)


def _join(place: Place) -> Group:
    """Joins as this rank; what `rank`, `size` and `group` tell from now on."""
    global _current
    _current = place
    leave_to_descendants(place)
    return _joined(place)


def _place() -> Place:
    global _current
    if _current is None:
        _current = inherited() or from_environment() or Place(0, 1, "127.0.0.1:0", 0)
    return _current


def _joined(place: Place) -> Group:
    global _group
    with _lock:
        if _group is None:
            from ..group import Group

            _group = Group(
                place.rank,
                place.size,
                place.rendezvous,
                name="parallel",
                timeout=place.timeout,
                join_timeout=place.join_timeout,
            )
            # The others then know that this rank has left, and not died.
            atexit.register(_leave)
        return _group


def _leave() -> None:
    """Leaves the group, if there is one."""
    global _group
    with _lock:
        left, _group = _group, None
    if left is not None:
        left.close()


def _forget_parent() -> None:
    """In a child, which has none of the threads that may have held the lock at the fork."""
    global _lock
    _lock = threading.Lock()


_current: Place | None = None
_group: Group | None = None
_is_asked_for = False
_lock = threading.Lock()
os.register_at_fork(after_in_child=_forget_parent)
