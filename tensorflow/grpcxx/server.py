"""A task that peers call: functions in Python, a store of arrays, and exchange by key."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Callable, Union

import numpy as np

from ._engine import Engine, checked
from ._status import Code, Error
from .client import Client, Names, StoredTensor

Functions = Union[Mapping[str, Callable], Iterable[Callable]]


class Server:
    """One task: a star port with registered functions, a store and an exchange.

    Peers use it through `grpcxx.Client`, the program `grpcxx`, or an engine in Rust or C. Use it in a `with` block, or
    call `close`.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:0",
        *,
        job: str = "ps",
        index: int = 0,
        functions: Functions = (),
        short_functions: Functions = (),
        store: Mapping[str, Any] | None = None,
        metrics: str | None = None,
        settings: Mapping[str, str] | None = None,
    ):
        """Listens at the star port `host:port`; port 0 takes a free one, which `address` tells.

        `host` is an IP address, or a name of this host; `0.0.0.0` or `[::]` stand for all of its addresses, of which
        `address` tells one that others can dial.

        `functions` are registered, and `store` is pushed, before anybody is served: who has waited for the port finds
        them. Functions come by name, or with their own names: `functions={"scale": scale}` or `functions=[scale]`;
        `short_functions` are those of `register(short=True)`. What is registered later is unknown to earlier calls.

        `job` and `index` name the task: a certificate that names another one is refused by those who are called. At
        `metrics`, an address too, `/metrics` shows Prometheus what the engine has counted, and `/healthz` whether it
        lives; without it GRPCXX_METRICS_ADDRESS counts. `settings` gives variables of docs/configuration.md for this
        engine alone.
        """
        if metrics is not None:
            settings = {**checked(settings), "GRPCXX_METRICS_ADDRESS": metrics}
        registered = [(name, function, False) for name, function in _named(functions)]
        registered += [(name, function, True) for name, function in _named(short_functions)]
        _check_once(name for name, _, _ in registered)
        if store is not None and not isinstance(store, Mapping):
            raise TypeError(f"store must be a mapping of names to arrays, and is a {type(store).__name__}")

        def prepare(native: Any) -> None:
            for name, function, is_short in registered:
                _register(native, name, function, is_short)
            if store:
                native.store_put(store, None, False)

        self._engine = Engine((job, index), address, settings, prepare=prepare)
        self._native = self._engine.native
        self.address: str = self._native.address
        """Where others reach this task, as `host:port`."""
        self.listening: str = self._native.listening
        """Where the star port listens, as `host:port`."""
        self.metrics_address: str | None = self._native.metrics_address
        """Where the metrics are, as `host:port`; None without them."""

    # ---- Functions

    def register(
        self, function: Callable | None = None, *, name: str | None = None, short: bool = False
    ) -> Callable:
        """Lets peers call a function by its name, or by `name`; also a decorator. One of that name is replaced.

        The function gets the arrays of the call as keyword arguments and returns a mapping of names to arrays, or
        one array, which peers fetch as `result`. The arrays it gets keep their memory, and may be read-only; what it
        returns must stay as it is from then on. Several calls run at once, on threads of the engine, as far as the
        GIL lets them.

        `short` runs the function on the thread that has received the call, without a way to another one and back.
        All else that this thread does waits meanwhile, for the GIL too: only for functions of some microseconds, in
        a process whose other threads do not compute. The log names one that holds the thread for too long.

        If it raises, the caller gets `grpcxx.Error` as it was raised, and `UNKNOWN` for everything else.
        """
        if function is None:
            return lambda decorated: self.register(decorated, name=name, short=short)
        _register(self._native, _name_of(function) if name is None else name, function, short)
        return function

    # ---- The store: named tensors that stay

    def push(self, name, array: Any = None, *, copy: bool = False) -> None:
        """Puts an array into the store, or several at once: `push({"w": w, "b": b})`, all or none.

        Without `copy` the store uses the memory of the arrays, which must then stay as it is until they are replaced
        and no peer receives them any more.
        """
        self._native.store_put(name, array, copy)

    def pull(self, names: Names) -> Any:
        """Arrays over the memory of the store, read-only. One name gives one array, several give a dict."""
        return self._native.store_fetch(names)

    def remove(self, names: Names) -> None:
        """Takes arrays out of the store; names that are not there are left out."""
        self._native.store_remove([names] if isinstance(names, str) else list(names))

    def stored(self) -> dict[str, StoredTensor]:
        """What is in the store, by name."""
        return {
            name: StoredTensor(dtype, tuple(shape), size) for name, dtype, shape, size in self._native.store_list()
        }

    # ---- Exchange by key: each tensor goes to one receiver, and whoever comes first waits

    def send(self, key: str, array: Any, *, step: int = 0, copy: bool = False) -> None:
        """Offers an array to the one who receives `key`: a client, or this task. Returns at once.

        Without `copy` it is sent from the memory of the array, which must stay as it is until it was received.
        A key that is offered already keeps its first array; the counter `sends_refused` tells.
        """
        self._native.send(key, array, step, copy)

    def recv(
        self, key: str, *, step: int = 0, timeout: float | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Takes the array that a client, or this task, has sent or will send under `key`; into `out` by a copy."""
        return self._native.recv(key, step, timeout, out)

    def recv_async(
        self, key: str, *, step: int = 0, timeout: float | None = None, out: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        """Like `recv`, without waiting."""
        return self._engine.submit(lambda future: self._native.recv(key, step, timeout, out, future))

    # ---- Life

    def connect(
        self, address: str, *, timeout: float | None = None, task: tuple[str, int] | None = None
    ) -> Client:
        """A client that uses the threads of this server; `timeout` and `task` are those of `grpcxx.Client`."""
        return Client._over(self._engine, address, timeout, task)

    def counters(self) -> dict[str, int]:
        """What the engine has counted since its start, by name."""
        return self._native.counters()

    @property
    def report(self) -> str:
        """One line: driver, host, shards and CPUs, and why."""
        return self._native.report

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until `close` is called from another thread; False if `timeout` seconds passed before."""
        return self._engine.closed.wait(timeout)

    def close(self, grace: float = 1.5) -> None:
        """Takes no more calls; those in flight have `grace` seconds to finish."""
        self._engine.close(grace)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"grpcxx.Server({self.address!r})"


def _named(functions: Functions) -> list[tuple[str, Callable]]:
    if isinstance(functions, Mapping):
        return list(functions.items())
    if callable(functions):
        functions = [functions]
    return [(_name_of(function), function) for function in functions]


def _name_of(function: Callable) -> str:
    _check_callable(function)
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"{function!r} has no name of its own: say by which peers call it")
    return name


def _check_once(names: Iterable[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise Error(Code.INVALID_ARGUMENT, f"{times} functions are named {name}: give each a name of its own")


def _check_callable(function: Any) -> None:
    if not callable(function):
        raise TypeError(f"peers call functions, and {function!r} cannot be called")


def _register(native: Any, name: str, function: Callable, is_short: bool) -> None:
    _check_callable(function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        text = f"{name} is async, and nothing awaits it: register a function that does, as by asyncio.run"
        raise TypeError(text)
    native.register(name, function, *_parameters(function), is_short)


def _parameters(function: Callable) -> tuple[list[str] | None, list[str], Callable | None]:
    """The names that a function takes (None: any), those that it needs, and what tells why a call does not fit."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None, [], None  # A function in C without a signature.
    parameters = signature.parameters.values()
    by_name = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return None if takes_any else by_name, needed, signature.bind
