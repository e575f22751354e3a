"""Calls from Python to a task that speaks star: a `grpcxx.Server`, a `grpcxx-server`, or a program in Rust or C."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from ctypes import byref, c_void_p
from typing import Any, NamedTuple

import numpy as np

from . import _requests as requests
from ._c import library
from ._engine import Call, Engine, Request, call_options, shared
from ._peer import first_device
from ._requests import Names, Out
from ._status import Code, Error, check
from ._tensors import dtype_of, tensor_of

# The function by which a client puts a tensor into a step of a `grpcxx.Server`.
SEND_FUNCTION = "grpcxx.python.send"
# What `call` fetches if nothing is said, and under which a registered function returns a value that is no mapping.
RESULT = "result"


class StoredTensor(NamedTuple):
    """What `stored()` tells of one tensor."""

    dtype: str
    """The name of the type, such as `float32`."""
    shape: tuple[int, ...]
    size_bytes: int


class Client:
    """A connection to one task, used by any number of threads.

    Each method waits for its end with the GIL released; its twin with `_async` returns a `concurrent.futures.Future`
    at once. `timeout` is in seconds and bounds the whole call; without it the timeout of the client counts, and
    without that a call takes as long as it takes.

    Arrays that are given may be anything that NumPy can see without a copy (arrays, DLPack, the buffer protocol), or
    numbers and lists. The engine sends from their memory: they must stay as they are until the call has ended.
    Arrays that come lie in memory of the engine, or in `out`, which must have their type and shape. They are writable:
    what lies in memory that the peer shares, on the same host, is copied into an array of its own.

    Failures raise `grpcxx.Error`, which has gRPC's code.
    """

    def __init__(self, address: str, *, timeout: float | None = None, settings: Mapping[str, str] | None = None):
        """Prepares for calls to the star port `host:port`; the connection is made by the first call.

        All clients of a process share an engine, unless `settings` gives variables of docs/configuration.md.
        """
        self._own = None if settings is None else Engine(("localhost", 0), None, settings)
        self._connect(self._own or shared(), address, timeout)

    def _connect(self, engine: Engine, address: str, timeout: float | None) -> None:
        self.address = address
        self._engine = engine
        self._timeout = timeout
        self._device: tuple[str, int] | None = None
        self._peer: int | None = None
        encoded, peer = address.encode(), c_void_p()
        check(library.grpcxx_peer_new(engine.handle, encoded, len(encoded), byref(peer)))
        self._peer = peer.value

    @classmethod
    def _over(cls, engine: Engine, address: str, timeout: float | None) -> Client:
        client = cls.__new__(cls)
        client._own = None
        client._connect(engine, address, timeout)
        return client

    # ---- Calls of functions

    def call(
        self,
        function: str,
        feeds: Mapping[str, Any] | None = None,
        fetch: Names = RESULT,
        *,
        timeout: float | None = None,
        out: Out = None,
    ) -> Any:
        """Calls a function of the task with arrays by name; returns what it fetches.

        One name gives one array, several give a dict. An empty `fetch` gives an empty dict.
        """
        return self._engine.run(self._call(function, feeds, fetch, timeout, out))

    def call_async(
        self,
        function: str,
        feeds: Mapping[str, Any] | None = None,
        fetch: Names = RESULT,
        *,
        timeout: float | None = None,
        out: Out = None,
    ) -> Future[Any]:
        """Like `call`, without waiting."""
        return self._engine.submit(self._call(function, feeds, fetch, timeout, out))

    # ---- The store: named tensors that stay

    def push(self, name, array: Any = None, *, timeout: float | None = None) -> None:
        """Puts an array into the task's store, or several at once: `push({"w": w, "b": b})`, all or none."""
        self._engine.run(self._push(name, array, timeout))

    def push_async(self, name, array: Any = None, *, timeout: float | None = None) -> Future[None]:
        """Like `push`, without waiting."""
        return self._engine.submit(self._push(name, array, timeout))

    def pull(self, names: Names, *, timeout: float | None = None, out: Out = None) -> Any:
        """Arrays of the task's store. One name gives one array, several give a dict."""
        return self._engine.run(self._pull(names, timeout, out))

    def pull_async(self, names: Names, *, timeout: float | None = None, out: Out = None) -> Future[Any]:
        """Like `pull`, without waiting."""
        return self._engine.submit(self._pull(names, timeout, out))

    def stored(self, *, timeout: float | None = None) -> dict[str, StoredTensor]:
        """What is in the task's store, by name."""
        columns = self.call("grpcxx.store.list", {}, ("names", "dtypes", "shapes", "bytes"), timeout=timeout)
        return {
            name.decode(): StoredTensor(_dtype_name(dtype), _shape(shape.decode()), int(size))
            for name, dtype, shape, size in zip(*columns.values())
        }

    # ---- Exchange by key: each tensor goes to one receiver, and whoever comes first waits

    def send(self, key: str, array: Any, *, step: int = 0, timeout: float | None = None) -> None:
        """Hands an array to the task, which takes it with `Server.recv(key)`. Returns when the task has it."""
        self._engine.run(self._send(key, array, step, timeout))

    def send_async(self, key: str, array: Any, *, step: int = 0, timeout: float | None = None) -> Future[None]:
        """Like `send`, without waiting."""
        return self._engine.submit(self._send(key, array, step, timeout))

    def recv(
        self, key: str, *, step: int = 0, timeout: float | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Takes the array that the task has sent, or will send, with `Server.send(key, ...)`."""
        return self._engine.run(self._recv(key, step, timeout, out))

    def recv_async(
        self, key: str, *, step: int = 0, timeout: float | None = None, out: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        """Like `recv`, without waiting. The first call of a client asks the task for its name before it returns."""
        return self._engine.submit(self._recv(key, step, timeout, out))

    # ---- Life

    def status(self, *, timeout: float | None = None) -> tuple[str, int]:
        """Asks the task for its first device, by name, and the number of this run of the task."""
        call = Call(Request(lambda *_: None, list))
        options = call_options(self._limit(timeout))
        library.grpcxx_message_call(
            self._handle, call.handle, GET_STATUS, None, 0, byref(options) if options else None, None, None
        )
        call.wait()
        return first_device(call.message())

    def close(self) -> None:
        """Ends the use of the connection; an engine of its own is stopped."""
        if self._peer is not None:
            peer, self._peer = self._peer, None
            library.grpcxx_peer_release(peer)
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self):
        if library is not None and getattr(self, "_peer", None) is not None:
            self.close()

    def __repr__(self) -> str:
        return f"grpcxx.Client({self.address!r})"

    # ---- Requests

    @property
    def _handle(self) -> int:
        self._engine.check_open()
        if self._peer is None:
            raise Error(Code.FAILED_PRECONDITION, "this is closed")
        return self._peer

    def _limit(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout

    def _call(self, function, feeds, fetch, timeout, out) -> Request:
        listed, places, finish = requests.fetched(fetch, out)
        tensors = requests.named_tensors(feeds or {}, None)
        return requests.graph_call(self._handle, function, tensors, listed, self._limit(timeout), finish, out=places)

    def _push(self, name, array, timeout) -> Request:
        tensors = requests.named_tensors(name, array)
        return requests.graph_call(self._handle, "grpcxx.store.push", tensors, [], self._limit(timeout), lambda _: None)

    def _pull(self, names, timeout, out) -> Request:
        return self._call("grpcxx.store.pull", None, names, timeout, out)

    def _send(self, key, array, step, timeout) -> Request:
        feed = (key, tensor_of(array))
        return requests.graph_call(
            self._handle, SEND_FUNCTION, [feed], [], self._limit(timeout), lambda _: None, step=step
        )

    def _recv(self, key, step, timeout, out) -> Request:
        if self._device is None:
            self._device = self.status(timeout=timeout)
        full_key = requests.rendezvous_key(*self._device, key)

        def failed(_):
            # The task may have been started again, and then has another number.
            self._device = None

        return requests.recv_tensor(self._handle, step, full_key, self._limit(timeout), out, failed)


def _dtype_name(number: int) -> str:
    try:
        return str(dtype_of(int(number)))
    except Error:
        return library.grpcxx_dtype_name(int(number)).decode()


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.strip("[]").split(",") if size)


GET_STATUS = 0
