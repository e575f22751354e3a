"""Calls from Python to a task that speaks star: a `grpcxx.Server`, a `grpcxx-server`, or a program in Rust or C."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence, Sized
from concurrent.futures import Future
from typing import Any, NamedTuple, Union

import numpy as np

from ._engine import Engine, shared
from ._library import native

# What `call` fetches if nothing is said, and under which a registered function returns a value that is no mapping.
RESULT = "result"

# The most arrays that one call pulls.
PULLED_MAX = 1 << 17

Names = Union[str, Sequence[str]]
Out = Union[None, np.ndarray, Mapping[str, np.ndarray]]


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
    without that a call takes as long as it takes. A client that is pickled dials the same address again where it is
    unpickled, with the engine of that process, or one with the same settings.

    Arrays that are given may be anything that NumPy can see without a copy (arrays, DLPack, the buffer protocol), or
    numbers and lists. The engine sends from their memory: they must stay as they are until the call has ended.
    Arrays that come lie in memory of the engine, or in `out`, which must have their type and shape. They are writable:
    what lies in memory that the peer shares, on the same host, is copied into an array of its own, unless `copy=False`
    says that a read-only array over that memory will do.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float | None = None,
        settings: Mapping[str, str] | None = None,
        task: tuple[str, int] | None = None,
    ):
        """Prepares for calls to the star port `host:port`; the connection is made by the first call.

        All clients of a process share an engine, unless `settings` gives variables of docs/configuration.md. `task`
        is who the cluster has at the address, such as `("ps", 0)`: a server whose certificate names another task is
        not called, whichever client of the engine calls it.
        """
        self._own = None if settings is None else Engine(("localhost", 0), None, settings)
        self._settings = None if settings is None else dict(settings)
        self._connect(self._own or shared(), address, timeout, task)

    def _connect(
        self, engine: Engine, address: str, timeout: float | None, task: tuple[str, int] | None
    ) -> None:
        self.address = address
        self._engine = engine
        self._timeout = timeout
        self._task = task
        self._peer = engine.native.peer(address, task, timeout)

    @classmethod
    def _over(cls, engine: Engine, address: str, timeout: float | None, task: tuple[str, int] | None) -> Client:
        client = cls.__new__(cls)
        client._own = client._settings = None
        client._connect(engine, address, timeout, task)
        return client

    def __reduce__(self):
        return _dialled, (self.address, self._timeout, self._settings, self._task)

    # ---- Calls of functions

    def call(
        self,
        function: str,
        feeds: Mapping[str, Any] | None = None,
        fetch: Names = RESULT,
        *,
        timeout: float | None = None,
        out: Out = None,
        copy: bool = True,
    ) -> Any:
        """Calls a function of the task with arrays by name; returns what it fetches.

        One name gives one array, several give a dict. An empty `fetch` gives an empty dict.
        """
        return self._peer.call(function, feeds, fetch, self._timeout if timeout is None else timeout, out, copy)

    def call_async(
        self,
        function: str,
        feeds: Mapping[str, Any] | None = None,
        fetch: Names = RESULT,
        *,
        timeout: float | None = None,
        out: Out = None,
        copy: bool = True,
    ) -> Future[Any]:
        """Like `call`, without waiting."""
        limit = self._limit(timeout)
        return self._engine.submit(lambda future: self._peer.call(function, feeds, fetch, limit, out, copy, future))

    # ---- The store: named tensors that stay

    def push(self, name, array: Any = None, *, timeout: float | None = None) -> None:
        """Puts an array into the task's store, or several at once: `push({"w": w, "b": b})`, all or none.

        More than one call takes (131,072 arrays, or several of more than 1 GiB in all) go in several calls, and
        become visible together with the last one. A task of a version before that gets them in one call as before.
        """
        self._peer.push(name, array, self._timeout if timeout is None else timeout)

    def push_async(self, name, array: Any = None, *, timeout: float | None = None) -> Future[None]:
        """Like `push`, without waiting."""
        return self._engine.submit(lambda future: self._peer.push(name, array, self._limit(timeout), future))

    def pull(self, names: Names, *, timeout: float | None = None, out: Out = None, copy: bool = True) -> Any:
        """Arrays of the task's store. One name gives one array, several give a dict.

        More than 131,072 come in several calls, between which a push of somebody else may change the store.
        """
        if _is_split(names):
            return self._pull_parts(list(names), self._limit(timeout), out, copy)
        return self._peer.pull(names, self._timeout if timeout is None else timeout, out, copy)

    def pull_async(
        self, names: Names, *, timeout: float | None = None, out: Out = None, copy: bool = True
    ) -> Future[Any]:
        """Like `pull`, without waiting."""
        if _is_split(names):
            return self._pull_parts_later(list(names), self._limit(timeout), out, copy)
        return self._engine.submit(lambda future: self._peer.pull(names, self._limit(timeout), out, copy, future))

    def _pull_parts(
        self, names: list[str], limit: float | None, out: Out, copy: bool, future: Future[Any] | None = None
    ) -> dict[str, np.ndarray]:
        """Pulls more arrays than one call takes, call by call; gives up where `future` is cancelled."""
        end = None if limit is None else time.monotonic() + limit
        arrays: dict[str, np.ndarray] = {}
        for first in range(0, len(names), PULLED_MAX):
            if future is not None and future.cancelled():
                break
            part = names[first : first + PULLED_MAX]
            left = None if end is None else max(end - time.monotonic(), 0.001)
            places = {name: out[name] for name in part if name in out} if isinstance(out, Mapping) else out
            arrays.update(self._peer.pull(part, left, places, copy))
        return arrays

    def _pull_parts_later(self, names: list[str], limit: float | None, out: Out, copy: bool) -> Future[Any]:
        future: Future[Any] = Future()

        def pull() -> None:
            try:
                arrays = self._pull_parts(names, limit, out, copy, future)
            except BaseException as error:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            else:
                if future.set_running_or_notify_cancel():
                    future.set_result(arrays)

        threading.Thread(target=pull, name="grpcxx-pull", daemon=True).start()
        return future

    def stored(self, *, timeout: float | None = None) -> dict[str, StoredTensor]:
        """What is in the task's store, by name."""
        columns = self.call("grpcxx.store.list", {}, ("names", "dtypes", "shapes", "bytes"), timeout=timeout)
        return {
            name.decode(): StoredTensor(_dtype_name(int(dtype)), _shape(shape.decode()), int(size))
            for name, dtype, shape, size in zip(*columns.values())
        }

    # ---- Exchange by key: each tensor goes to one receiver, and whoever comes first waits

    def send(self, key: str, array: Any, *, step: int = 0, timeout: float | None = None) -> None:
        """Hands an array to the task, which takes it with `Server.recv(key)`. Returns when the task has it."""
        self._peer.send(key, array, step, self._limit(timeout))

    def send_async(self, key: str, array: Any, *, step: int = 0, timeout: float | None = None) -> Future[None]:
        """Like `send`, without waiting."""
        return self._engine.submit(lambda future: self._peer.send(key, array, step, self._limit(timeout), future))

    def recv(
        self, key: str, *, step: int = 0, timeout: float | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Takes the array that the task has sent, or will send, with `Server.send(key, ...)`."""
        return self._peer.recv(key, step, self._limit(timeout), out)

    def recv_async(
        self, key: str, *, step: int = 0, timeout: float | None = None, out: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        """Like `recv`, without waiting. The first call of a client asks the task for its name before it returns."""
        return self._engine.submit(lambda future: self._peer.recv(key, step, self._limit(timeout), out, future))

    # ---- Life

    def status(self, *, timeout: float | None = None) -> tuple[str, int]:
        """Asks the task for its first device, by name, and the number of this run of the task."""
        return self._peer.status(self._limit(timeout))

    def close(self) -> None:
        """Ends the use of the connection; an engine of its own is stopped."""
        self._peer.close()
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self):
        if getattr(self, "_own", None) is not None:
            self._own.close()

    def __repr__(self) -> str:
        return f"grpcxx.Client({self.address!r})"

    def _limit(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout


def _is_split(names: Names) -> bool:
    """Whether so many arrays come in several calls."""
    return not isinstance(names, str) and isinstance(names, Sized) and len(names) > PULLED_MAX


def _dtype_name(number: int) -> str:
    return native.dtype_name(number) or f"type {number}"


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.strip("[]").split(",") if size)


def _dialled(
    address: str, timeout: float | None, settings: Mapping[str, str] | None, task: tuple[str, int] | None
) -> Client:
    return Client(address, timeout=timeout, settings=settings, task=task)
