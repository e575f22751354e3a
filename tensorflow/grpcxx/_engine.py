"""The engine as Python sees it: start, calls that wait, calls that do not, and the end."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from ctypes import byref, c_size_t, c_uint64, c_void_p, string_at
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Callable

import numpy as np

from ._c import COUNTER, TENSORS, CallOptions, library
from ._status import Code, Error, borrowed, check, taken
from ._tensors import Tensor, check_landed

# How long a wait lasts before Python looks for signals.
WAIT_SLICE_MS = 200


@dataclass
class Request:
    """A call that is ready to begin."""

    begin: Callable[[int, Any, int | None], None]
    """Begins it with a call handle, a callback and what the callback gets."""
    finish: Callable[[list[Tensor]], Any]
    """Makes the result of the tensors that came."""
    out: Sequence[np.ndarray | None] = ()
    """Memory for the tensors, by their place."""
    kept: Sequence[Any] = ()
    """What must live until the call has begun."""
    failed: Callable[[Error], None] = lambda _: None
    """Is told why, if the call fails."""


class Engine:
    """One engine: its threads, its connections, and perhaps a port."""

    def __init__(self, task: tuple[str, int], listen: str | None, settings: Mapping[str, str] | None):
        self._process = os.getpid()
        self._handle: int | None = None
        self._futures: dict[int, tuple[CallFuture, Request]] = {}
        self._results: SimpleQueue = SimpleQueue()
        self._resolver: threading.Thread | None = None
        self._lock = threading.Lock()
        self.closed = threading.Event()
        """Is set when the engine was told to stop."""
        self._handle = _start(task, listen, settings or {})
        self._done = TENSORS(self._take_result)
        _engines.add(self)

    @property
    def handle(self) -> int:
        self.check_open()
        return self._handle

    def check_open(self) -> None:
        """Raises if this cannot be used any more."""
        if self._process != os.getpid():
            raise Error(
                Code.FAILED_PRECONDITION,
                "this was opened before fork() and cannot be used in the child; open another there",
            )
        if self.closed.is_set():
            raise Error(Code.FAILED_PRECONDITION, "this is closed")

    @property
    def address(self) -> str:
        """Where the engine listens, as `host:port`."""
        return library.grpcxx_engine_star_address(self.handle).decode()

    @property
    def report(self) -> str:
        """One line: driver, host, shards and CPUs, and why."""
        return library.grpcxx_engine_start_report(self.handle).decode()

    def device(self) -> tuple[str, int]:
        """Name and incarnation of the first device."""
        incarnation = c_uint64()
        name = library.grpcxx_engine_device(self.handle, 0, byref(incarnation))
        return name.decode(), incarnation.value

    def counters(self) -> dict[str, int]:
        """All counters of the engine by name."""
        found = {}

        @COUNTER
        def add(_user, name, _meaning, value):
            found[name.decode()] = value

        library.grpcxx_engine_counters(self.handle, add, None)
        return found

    def run(self, request: Request) -> Any:
        """Begins a call and waits for its end."""
        call = Call(request)
        request.begin(call.handle, TENSORS(), None)
        try:
            call.wait()
            tensors = call.tensors()
            # It shares the tensors, which would then not be writable.
            del call
            return _finish(request, tensors)
        except Error as error:
            request.failed(error)
            raise

    def submit(self, request: Request) -> CallFuture:
        """Begins a call and returns at once."""
        call = Call(request)
        future = CallFuture(call)
        with self._lock:
            self.check_open()
            if self._resolver is None:
                self._resolver = threading.Thread(target=self._resolve, name="grpcxx-futures", daemon=True)
                self._resolver.start()
            self._futures[call.handle] = (future, request)
        request.begin(call.handle, self._done, call.handle)
        return future

    def close(self, grace: float = 0.0) -> None:
        """Stops the engine; what is in flight has `grace` seconds to finish. Later calls fail."""
        with self._lock:
            if self.closed.is_set() or self._process != os.getpid():
                return
            self.closed.set()
        check(library.grpcxx_engine_shutdown(self._handle, int(grace * 1000)))
        if self._resolver is not None:
            self._results.put(None)
            if threading.current_thread() is not self._resolver:
                self._resolver.join()

    def __del__(self):
        if self._handle is not None and library is not None and self._process == os.getpid():
            self.close()
            library.grpcxx_engine_free(self._handle)

    def _take_result(self, key, status, tensors, size):
        # On a thread of the engine: the future's own callbacks must not run here.
        error = borrowed(status) if status else None
        self._results.put((key, error, [Tensor.retained(tensors[place]) for place in range(size)]))

    def _resolve(self):
        is_closing = False
        while not is_closing or self._futures:
            result = self._results.get()
            if result is None:
                is_closing = True
                continue
            key, error, tensors = result
            future, request = self._futures.pop(key)
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if error is not None:
                    raise error
                future.set_result(_finish(request, tensors))
            except Exception as failure:
                if isinstance(failure, Error):
                    request.failed(failure)
                future.set_exception(failure)


class Call:
    """One call handle, and the memory that was given to it."""

    def __init__(self, request: Request):
        self.handle = library.grpcxx_call_new()
        self._out = request.out
        for place, out in enumerate(request.out):
            if out is not None and out.nbytes:
                address = out.__array_interface__["data"][0]
                check(library.grpcxx_call_set_memory(self.handle, place, address, out.nbytes))

    def wait(self) -> None:
        """Waits for the end; raises if the call failed. Ctrl-C withdraws the call."""
        try:
            while True:
                error = taken(library.grpcxx_call_wait(self.handle, WAIT_SLICE_MS))
                if error is None:
                    return
                if error.code is not Code.DEADLINE_EXCEEDED:
                    raise error
                if library.grpcxx_call_is_done(self.handle):
                    # The call may have ended between the two questions.
                    check(library.grpcxx_call_wait(self.handle, WAIT_SLICE_MS))
                    return
        except KeyboardInterrupt:
            self.cancel()
            if self._out:
                # The engine may write there until the call has ended.
                _withdrawn.append(self)
            raise

    def cancel(self) -> None:
        library.grpcxx_call_cancel(self.handle)

    def tensors(self) -> list[Tensor]:
        size = library.grpcxx_call_num_tensors(self.handle)
        return [Tensor.retained(library.grpcxx_call_tensor(self.handle, place)) for place in range(size)]

    def message(self) -> bytes:
        size = c_size_t()
        data = library.grpcxx_call_message(self.handle, byref(size))
        return string_at(data, size.value) if data else b""

    def __del__(self):
        if library is not None:
            library.grpcxx_call_release(self.handle)


class CallFuture(Future):
    """The result of a call that goes on. `cancel` withdraws the call; `asyncio.wrap_future` makes it awaitable."""

    def __init__(self, call: Call):
        super().__init__()
        self._call = call

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if is_cancelled:
            self._call.cancel()
        return is_cancelled


def shared() -> Engine:
    """The engine of all clients of this process that have no settings of their own."""
    global _shared
    with _shared_lock:
        if _shared is None or _shared.closed.is_set() or _shared._process != os.getpid():
            _shared = Engine(("localhost", 0), None, None)
        return _shared


def call_options(timeout: float | None) -> CallOptions | None:
    """Options of a call that may take `timeout` seconds; None: as long as it takes."""
    if timeout is None:
        return None
    if timeout <= 0:
        raise Error(Code.INVALID_ARGUMENT, f"a timeout must be more than 0 seconds, and is {timeout}")
    return CallOptions(struct_size=_OPTIONS_SIZE, timeout_ms=max(1, round(timeout * 1000)))


def _start(task: tuple[str, int], listen: str | None, settings: Mapping[str, str]) -> int:
    options = c_void_p(library.grpcxx_options_new())
    try:
        job, index = task[0].encode(), task[1]
        check(library.grpcxx_options_set_task(options, job, len(job), index))
        if listen is not None:
            address = listen.encode()
            check(library.grpcxx_options_set_listen(options, address, len(address)))
        for name, value in settings.items():
            name, value = name.encode(), str(value).encode()
            check(library.grpcxx_options_set_variable(options, name, len(name), value, len(value)))
        engine = c_void_p()
        check(library.grpcxx_engine_start(options, byref(engine)))
        return engine.value
    finally:
        library.grpcxx_options_free(options)


def _finish(request: Request, tensors: list[Tensor]) -> Any:
    for tensor, out in zip(tensors, request.out):
        if out is not None:
            check_landed(tensor.handle, out)
    return request.finish(tensors)


class Running:
    """Counts the functions of peers that run on threads of the engine."""

    def __init__(self):
        self._count = 0
        self._changed = threading.Condition()

    def __enter__(self):
        with self._changed:
            self._count += 1

    def __exit__(self, *_):
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Waits until none runs."""
        with self._changed:
            if self._count:
                self._changed.wait_for(lambda: self._count == 0)
                # The last one still has to leave Python.
                self._changed.wait(LEAVING_S)


def _close_all():
    for engine in list(_engines):
        engine.close()
    running.wait()


# How long a function takes to leave Python at the end of the program.
LEAVING_S = 0.05

running = Running()

_OPTIONS_SIZE = 16
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_withdrawn: list[Call] = []
_shared: Engine | None = None
_shared_lock = threading.Lock()

# Threads of the engine must not call into an interpreter that is going away.
atexit.register(_close_all)
