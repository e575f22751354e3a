"""The engine as Python sees it: start, futures, and the end."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures._base import CANCELLED
from typing import Any, Callable

from ._library import native
from ._status import Code, Error, log


class Engine:
    """One engine: its threads, its connections, and perhaps a port."""

    def __init__(
        self,
        task: tuple[str, int],
        listen: str | None,
        settings: Mapping[str, str] | None,
        *,
        waits: bool = False,
        prepare: Callable[[Any], None] | None = None,
    ):
        """Starts it. Who comes is served when `prepare` is done with the `native` of it."""
        self._process = os.getpid()
        self._resolver: threading.Thread | None = None
        self._lock = threading.Lock()
        self.closed = threading.Event()
        """Is set when the engine was told to stop."""
        texts = {name: str(value) for name, value in checked(settings).items()}
        self.native = native.Engine(*task, listen, texts, waits)
        """The engine itself, whose calls raise once it is closed."""
        _engines.add(self)
        try:
            if prepare is not None:
                prepare(self.native)
            self.native.open()
        except BaseException:
            self.close()
            raise

    def submit(self, begin: Callable[[CallFuture], Any]) -> CallFuture:
        """Lets `begin` make a call for a future, and returns that at once."""
        future = CallFuture()
        _check_threads()
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
                try:
                    _end(call)
                except BaseException:
                    # Of a callback, as by sys.exit(). This thread ends the later futures too.
                    log.exception("a callback of a future raised what ends a thread")
            # What came belongs to the futures alone.
            del call, calls


def _check_threads() -> None:
    """Refuses what would stop a process for good in which a library has put its own threads in place of real ones."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        library, cure = "gevent", "monkey.patch_all(thread=False)"
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        library, cure = "eventlet", "eventlet.monkey_patch(thread=False)"
    else:
        return
    raise Error(
        Code.FAILED_PRECONDITION,
        f"futures need threads, and {library} has replaced them: use the method without _async, or {cure}",
    )


def _end(call: Any) -> None:
    future = call.take_future()
    if future.is_withdrawn:
        Future.cancel(future)
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call.result()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class CallFuture(Future):
    """The result of a call that goes on; `asyncio.wrap_future` makes it awaitable.

    `cancel` withdraws the call, and returns once nothing uses its arrays any more: within milliseconds, or some
    seconds if the peer stands still. An operation of a group goes on, since the other ranks wait for it: `cancel`
    returns False. In a child that is forked meanwhile, both end at once with an error.
    """

    def __init__(self):
        super().__init__()
        self.call: Any = None
        self.is_withdrawn = False
        _futures.add(self)

    def result(self, timeout: float | None = None) -> Any:
        return self._waited(super().result, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._waited(super().exception, timeout)

    def _waited(self, wait: Callable[[float | None], Any], timeout: float | None) -> Any:
        """What `wait` gives. A function of this process that waits leaves its thread's place to another one."""
        return wait(timeout) if self.done() else native.waiting(lambda: wait(timeout))

    def cancel(self) -> bool:
        if self.call is not None and not self.done():
            if not self.call.is_withdrawable:
                return False
            self.is_withdrawn = True
            self.call.cancel()
        return super().cancel()

    def _end_in_child(self) -> None:
        """In a forked child nobody ends calls of its parent, nor lets go of a lock that was held at the fork."""
        self._condition = threading.Condition()
        # Those of `as_completed`, in the middle of which the fork may have been.
        for waiter in self._waiters:
            waiter.lock, waiter.event = threading.Lock(), threading.Event()
            waiter.event.set()
        if not self.done():
            # They are for the parent.
            self._done_callbacks.clear()
            text = "this was begun before fork(), and neither calls nor groups go on in the child: make others there"
            self.set_exception(Error(Code.FAILED_PRECONDITION, text))
        elif self._state == CANCELLED:
            # Nobody else tells those who wait for it.
            self.set_running_or_notify_cancel()


def checked(settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The variables that a caller gives for one engine; none are no variables."""
    if settings is not None and not isinstance(settings, Mapping):
        raise TypeError(f"settings must be a mapping of variables to values, and is a {type(settings).__name__}")
    return settings or {}


def shared() -> Engine:
    """The engine of all clients of this process that have no settings of their own."""
    global _shared
    with _shared_lock:
        if _shared is None or _shared.closed.is_set() or _shared._process != os.getpid():
            _shared = Engine(("localhost", 0), None, None)
        return _shared


def _forget_parent() -> None:
    """In a child, which has none of the threads that may have held a lock at the fork, nor could it use what they made."""
    global _shared, _shared_lock
    _shared, _shared_lock = None, threading.Lock()
    for engine in list(_engines):
        engine._lock = threading.Lock()
    for future in list(_futures):
        future._end_in_child()


def _close_all():
    try:
        for engine in list(_engines):
            engine.close()
        # Threads of an engine must not call into an interpreter that is going away.
        running = native.until_idle(QUIET_S)
        if running:
            log.warning("%s still runs; Python ends in %d s, or at once with Ctrl-C", ", ".join(running), GRACE_S)
            running = native.until_idle(GRACE_S)
    except KeyboardInterrupt:
        _end_by(signal.SIGINT)
    if running:
        log.error("Python ends although %s still runs", ", ".join(running))
        # What runs would go on in an interpreter that is being taken apart.
        _flush()
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            _end_by(signal.SIGINT)
        os._exit(1)


def _end_by(number: int) -> None:
    _flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    # The first process of a container cannot end itself by a signal.
    os._exit(128 + number)


def _flush() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


# How long functions that run when Python exits may still run unsaid, and then until they are left behind.
QUIET_S = 0.5
GRACE_S = 5

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_futures: weakref.WeakSet[CallFuture] = weakref.WeakSet()
_shared: Engine | None = None
_shared_lock = threading.Lock()

atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_parent)
