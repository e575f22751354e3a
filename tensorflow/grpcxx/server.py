"""A task that peers call: functions in Python, a store of arrays, and exchange by key."""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Mapping
from concurrent.futures import Future
from ctypes import byref, c_size_t, c_void_p, string_at
from typing import Any, Callable

import numpy as np

from ._c import FREE, FUNCTION, STORE, library
from ._engine import Engine, Request, call_options, running
from ._requests import Names, named_tensors, rendezvous_key
from ._status import Code, Error, check
from ._tensors import Tensor, array_of, check_out, shape_of, tensor_of, texts
from .client import RESULT, SEND_FUNCTION, Client, StoredTensor, _dtype_name

log = logging.getLogger("grpcxx")


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
        settings: Mapping[str, str] | None = None,
    ):
        """Listens at the star port `host:port`, an IP address; port 0 takes a free one, which `address` tells.

        `job` and `index` name the task; `settings` gives variables of docs/configuration.md for this engine alone.
        """
        self._engine = Engine((job, index), address, settings)
        self.address: str = self._engine.address
        self._device = self._engine.device()
        self._register(SEND_FUNCTION, self._take_sent)

    # ---- Functions

    def register(self, function: Callable | None = None, *, name: str | None = None) -> Callable:
        """Lets peers call a function by its name, or by `name`; also a decorator. One of that name is replaced.

        The function gets the arrays of the call as keyword arguments and returns a mapping of names to arrays, or
        one array, which peers fetch as `result`. The arrays it gets keep their memory, and may be read-only; what it
        returns must stay as it is from then on. Several calls run at once, on threads of the engine, as far as the
        GIL lets them.

        If it raises, the caller gets `grpcxx.Error` as it was raised, and `UNKNOWN` for everything else.
        """
        if function is None:
            return lambda decorated: self.register(decorated, name=name)
        self._register(name or function.__name__, lambda call: _answer(function, call))
        return function

    # ---- The store: named tensors that stay

    def push(self, name, array: Any = None, *, copy: bool = False) -> None:
        """Puts an array into the store, or several at once: `push({"w": w, "b": b})`, all or none.

        Without `copy` the store uses the memory of the arrays, which must then stay as it is until they are replaced
        and no peer receives them any more.
        """
        pairs = named_tensors(name, array, copy)
        handles = (c_void_p * max(len(pairs), 1))(*[tensor.handle for _, tensor in pairs])
        names = texts([key.encode() for key, _ in pairs])
        check(library.grpcxx_store_put(self._engine.handle, names, handles, len(pairs)))

    def pull(self, names: Names) -> Any:
        """Arrays over the memory of the store, read-only. One name gives one array, several give a dict."""
        if isinstance(names, str):
            return array_of(self._fetch_stored(names))
        return {name: array_of(self._fetch_stored(name)) for name in names}

    def remove(self, names: Names) -> None:
        """Takes arrays out of the store; names that are not there are left out."""
        listed = [names] if isinstance(names, str) else list(names)
        encoded = texts([name.encode() for name in listed])
        check(library.grpcxx_store_remove(self._engine.handle, encoded, len(listed)))

    def stored(self) -> dict[str, StoredTensor]:
        """What is in the store, by name."""
        found: dict[str, StoredTensor] = {}

        @STORE
        def add(_user, name, size, tensor):
            dtype = _dtype_name(library.grpcxx_tensor_dtype(tensor))
            line = StoredTensor(dtype, shape_of(tensor), library.grpcxx_tensor_data_size(tensor))
            found[string_at(name, size).decode()] = line

        library.grpcxx_store_list(self._engine.handle, add, None)
        return found

    # ---- Exchange by key: each tensor goes to one receiver, and whoever comes first waits

    def send(self, key: str, array: Any, *, step: int = 0, copy: bool = False) -> None:
        """Offers an array to the one who receives `key`: a client, or this task. Returns at once.

        Without `copy` it is sent from the memory of the array, which must stay as it is until it was received.
        A key that is offered already keeps its first array; the counter `sends_refused` tells.
        """
        full_key = rendezvous_key(*self._device, key).encode()
        tensor = tensor_of(array, copy)
        check(library.grpcxx_engine_send(self._engine.handle, step, full_key, len(full_key), tensor.handle))

    def recv(
        self, key: str, *, step: int = 0, timeout: float | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Takes the array that a client, or this task, has sent or will send under `key`; into `out` by a copy."""
        return self._engine.run(self._recv(key, step, timeout, out))

    def recv_async(
        self, key: str, *, step: int = 0, timeout: float | None = None, out: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        """Like `recv`, without waiting."""
        return self._engine.submit(self._recv(key, step, timeout, out))

    # ---- Life

    def connect(self, address: str, *, timeout: float | None = None) -> Client:
        """A client that uses the threads of this server."""
        return Client._over(self._engine, address, timeout)

    def counters(self) -> dict[str, int]:
        """What the engine has counted since its start, by name."""
        return self._engine.counters()

    @property
    def report(self) -> str:
        """One line: driver, host, shards and CPUs, and why."""
        return self._engine.report

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

    # ---- Inside

    def _fetch_stored(self, name: str) -> Tensor:
        encoded, tensor = name.encode(), c_void_p()
        check(library.grpcxx_store_fetch(self._engine.handle, encoded, len(encoded), byref(tensor)))
        return Tensor(tensor.value)

    def _recv(self, key, step, timeout, out) -> Request:
        engine, keys = self._engine.handle, texts([rendezvous_key(*self._device, key).encode()])
        options = call_options(timeout)
        if out is not None:
            check_out(out)

        def begin(call, done, user):
            library.grpcxx_engine_receive(engine, call, step, keys, 1, byref(options) if options else None, done, user)

        def finish(tensors):
            return out if out is not None else array_of(tensors[0])

        return Request(begin, finish, (out,), kept=[keys])

    def _register(self, name: str, serve: Callable[[ServedCall], list[Tensor]]) -> None:
        number = next(_function_numbers)
        _functions[number] = serve
        encoded = name.encode()
        try:
            check(
                library.grpcxx_function_register(
                    self._engine.handle, encoded, len(encoded), _serve, number, _forget_function
                )
            )
        except Error:
            _functions.pop(number, None)
            raise

    def _take_sent(self, call: ServedCall) -> list[Tensor]:
        # The tensors go on as they are, and never become arrays.
        for name, tensor in call.feeds:
            key = rendezvous_key(*self._device, name).encode()
            check(library.grpcxx_engine_send(self._engine.handle, call.step, key, len(key), tensor.handle))
        return []


class ServedCall:
    """A request for a registered function."""

    def __init__(self, request: int):
        self.step = library.grpcxx_request_step_id(request)
        size = c_size_t()
        self.feeds: list[tuple[str, Tensor]] = []
        for place in range(library.grpcxx_request_num_feeds(request)):
            name = library.grpcxx_request_feed_name(request, place, byref(size))
            tensor = Tensor.retained(library.grpcxx_request_feed(request, place))
            self.feeds.append((string_at(name, size.value).decode(), tensor))
        self.fetches: list[str] = []
        for place in range(library.grpcxx_request_num_fetches(request)):
            name = library.grpcxx_request_fetch_name(request, place, byref(size))
            self.fetches.append(string_at(name, size.value).decode())


def _answer(function: Callable, call: ServedCall) -> list[Tensor]:
    arrays = {name: array_of(tensor) for name, tensor in call.feeds}
    try:
        inspect.signature(function).bind(**arrays)
    except TypeError as error:
        raise Error(Code.INVALID_ARGUMENT, f"{function.__name__}: {error}") from error
    except ValueError:
        pass  # A function in C without a signature.
    results = function(**arrays)
    if not isinstance(results, Mapping):
        results = {} if results is None else {RESULT: results}
    missing = [name for name in call.fetches if name not in results]
    if missing:
        known = ", ".join(results) or "nothing"
        raise Error(Code.NOT_FOUND, f"{function.__name__} returns {known}, and not {', '.join(missing)}")
    return [tensor_of(results[name]) for name in call.fetches]


@FUNCTION
def _serve(number, request, responder):
    with running:
        _serve_counted(number, request, responder)


def _serve_counted(number, request, responder):
    try:
        tensors = _functions[number](ServedCall(request))
        handles = (c_void_p * max(len(tensors), 1))(*[tensor.handle for tensor in tensors])
    except BaseException as error:
        if not isinstance(error, Error):
            log.exception("a registered function failed")
            error = Error(Code.UNKNOWN, f"{type(error).__name__}: {error}")
        message = error.message.encode()
        library.grpcxx_responder_answer_error(responder, error.code, message, len(message))
    else:
        library.grpcxx_responder_answer_tensors(responder, handles, len(tensors))


@FREE
def _forget_function(number):
    _functions.pop(number, None)


_functions: dict[int, Callable[[ServedCall], list[Tensor]]] = {}
_function_numbers = itertools.count(1)
