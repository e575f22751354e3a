"""Batches that are read while others are used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Callable, TypeVar

T = TypeVar("T")


def prefetch(batches: Iterable[T], ahead: int = 2) -> Iterator[T]:
    """The same batches, read by one thread that is up to `ahead` batches ahead of who takes them.

    The thread begins with the first batch that is taken, and has ended when the iteration has, also where that is left
    early. What reading raises, the iteration raises in its place. Under `grpcxx.parallel` a dataset of TensorFlow is
    divided among the ranks as in a loop without this, and each reads ahead what `ahead` steps of all of them take.
    """
    if ahead < 1:
        raise ValueError(f"ahead is {ahead}; give 1 or more")
    return _taken(batches, ahead)


def _taken(batches: Iterable[Any], ahead: int) -> Iterator[Any]:
    yield from shared(batches, lambda whole, step: _Reader(whole, ahead * step).taken())


def shared(batches: Iterable[Any], read: Callable[[Iterable[Any], int], Iterator[Any]]) -> Iterator[Any]:
    """What this rank takes of batches that `read` reads, so many for each step. `grpcxx.parallel` has another one."""
    return read(batches, 1)


class _Reader:
    def __init__(self, batches: Iterable[Any], ahead: int):
        self._batches = batches
        self._room = threading.Semaphore(ahead)
        self._made: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._is_left = False

    def taken(self) -> Iterator[Any]:
        thread = threading.Thread(target=self._read, name="grpcxx-prefetch", daemon=True)
        thread.start()
        try:
            while True:
                batch, end = self._made.get()
                if isinstance(end, StopIteration):
                    return
                if end is not None:
                    raise end
                # The next one is read while this one is used.
                self._room.release()
                yield batch
        finally:
            self._is_left = True
            self._room.release()
            thread.join()

    def _read(self) -> None:
        batches = None
        try:
            batches = iter(self._batches)
            while True:
                self._room.acquire()
                if self._is_left:
                    return
                self._made.put((next(batches), None))
        except BaseException as end:
            # The end of the batches is one too.
            self._made.put((None, end))
        finally:
            # A generator holds files open until it is closed.
            if hasattr(batches, "close"):
                batches.close()
