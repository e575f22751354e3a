"""The engine as Python sees it: start, futures, and the end."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Callable

from ._library import native


class Engine:
    """One engine: its threads, its connections, and perhaps a port."""

    def __init__(self, task: tuple[str, int], listen: str | None, settings: Mapping[str, str] | None):
        self._process = os.getpid()
        self._resolver: threading.Thread | None = None
        self._lock = threading.Lock()
        self.closed = threading.Event()
        """Is set when the engine was told to stop."""
        texts = {name: str(value) for name, value in (settings or {}).items()}
        self.native = native.Engine(*task, listen, texts)
        """The engine itself, whose calls raise once it is closed."""
        _engines.add(self)

    def submit(self, begin: Callable[[CallFuture], Any]) -> CallFuture:
        """Lets `begin` make a call for a future, and returns that at once."""
        future = CallFuture()
        with self._lock:
            self.native.check_open()
            if self._resolver is None:
                self._resolver = threading.Thread(target=self._resolve, name="grpcxx-futures", daemon=True)
                self._resolver.start()
        future.call = begin(future)
        return future

    def close(self, grace: float = 0.0) -> None:
        """Stops the engine; what is in flight has `grace` seconds to finish. Later calls fail."""
        with self._lock:
            if self.closed.is_set() or self._process != os.getpid():
                return
            self.closed.set()
        self.native.close(grace)
        if self._resolver is not None and threading.current_thread() is not self._resolver:
            self._resolver.join()

    def _resolve(self) -> None:
        while True:
            calls = self.native.ended()
            if not calls:
                return
            for call in calls:
                _end(call)
            # What came belongs to the futures alone.
            del call, calls


def _end(call: Any) -> None:
    future = call.take_future()
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call.result()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class CallFuture(Future):
    """The result of a call that goes on. `cancel` withdraws the call; `asyncio.wrap_future` makes it awaitable."""

    def __init__(self):
        super().__init__()
        self.call: Any = None

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if is_cancelled and self.call is not None:
            self.call.cancel()
        return is_cancelled


def shared() -> Engine:
    """The engine of all clients of this process that have no settings of their own."""
    global _shared
    with _shared_lock:
        if _shared is None or _shared.closed.is_set() or _shared._process != os.getpid():
            _shared = Engine(("localhost", 0), None, None)
        return _shared


def _close_all():
    for engine in list(_engines):
        engine.close()
    # Threads of an engine must not call into an interpreter that is going away.
    native.until_idle()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_shared: Engine | None = None
_shared_lock = threading.Lock()

atexit.register(_close_all)
