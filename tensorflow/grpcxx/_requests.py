"""Calls as requests: what to send, and what to make of the tensors that come back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ctypes import byref, c_void_p, sizeof
from typing import Any, Callable, Union

import numpy as np

from ._c import GraphCall, library
from ._engine import Request, call_options
from ._status import Code, Error
from ._tensors import Tensor, array_of, check_out, tensor_of, texts

Names = Union[str, Sequence[str]]
Out = Union[None, np.ndarray, Mapping[str, np.ndarray]]


def graph_call(
    peer: int,
    handle: str,
    feeds: Iterable[tuple[str, Tensor]],
    fetches: Sequence[str],
    timeout: float | None,
    finish: Callable[[list[Tensor]], Any],
    *,
    step: int = 0,
    out: Sequence[np.ndarray | None] = (),
) -> Request:
    """A StarRunGraph call of a function or a graph of the peer."""
    feeds = list(feeds)
    if len(set(fetches)) != len(fetches):
        raise Error(Code.INVALID_ARGUMENT, f"a name was asked for twice: {', '.join(fetches)}")
    handle_text = texts([handle.encode()])
    feed_names, fetch_names = texts([name.encode() for name, _ in feeds]), texts([name.encode() for name in fetches])
    call = GraphCall(
        struct_size=sizeof(GraphCall),
        handle=handle_text[0],
        step_id=step,
        feed_names=feed_names,
        feeds=(c_void_p * max(len(feeds), 1))(*[tensor.handle for _, tensor in feeds]),
        num_feeds=len(feeds),
        fetch_names=fetch_names,
        num_fetches=len(fetches),
    )
    options = call_options(timeout)

    def begin(call_handle, done, user):
        library.grpcxx_graph_call_begin(
            peer, call_handle, byref(call), byref(options) if options else None, None, done, user
        )

    return Request(begin, finish, out, kept=[feeds, handle_text, feed_names, fetch_names])


def recv_tensor(
    peer: int,
    step: int,
    key: str,
    timeout: float | None,
    out: np.ndarray | None,
    failed: Callable[[Error], None],
) -> Request:
    """A RecvTensor call."""
    encoded = key.encode()
    options = call_options(timeout)
    if out is not None:
        check_out(out)

    def begin(call_handle, done, user):
        library.grpcxx_recv_tensor(
            peer, call_handle, step, encoded, len(encoded), byref(options) if options else None, None, done, user
        )

    def finish(tensors):
        return out if out is not None else array_of(tensors[0], must_be_writable=True)

    return Request(begin, finish, (out,), failed=failed)


def fetched(names: Names, out: Out) -> tuple[list[str], list[np.ndarray | None], Callable[[list[Tensor]], Any]]:
    """The names to fetch, memory for each, and what makes the result: one array for one name, else a dict."""
    is_single = isinstance(names, str)
    listed = [names] if is_single else list(names)
    if is_single and not isinstance(out, Mapping):
        out = None if out is None else {names: out}
    memory = dict(out or {})
    for name, array in memory.items():
        if name not in listed:
            raise Error(Code.INVALID_ARGUMENT, f"out has memory for {name}, which is not asked for")
        check_out(array)
    places = [memory.get(name) for name in listed]

    def finish(tensors):
        arrays = [
            place if place is not None else array_of(tensor, must_be_writable=True)
            for tensor, place in zip(tensors, places)
        ]
        return arrays[0] if is_single else dict(zip(listed, arrays))

    return listed, places, finish


def named_tensors(name: str | Mapping[str, Any], value: Any, copy: bool = False) -> list[tuple[str, Tensor]]:
    """The pairs of name and tensor of `push(name, value)` and of `push({name: value, ...})`."""
    if isinstance(name, str):
        return [(name, tensor_of(value, copy))]
    if value is not None:
        raise Error(Code.INVALID_ARGUMENT, "give either a name and an array, or a mapping of names to arrays")
    return [(key, tensor_of(array, copy)) for key, array in name.items()]


def rendezvous_key(device: str, incarnation: int, name: str) -> str:
    """The key of an exchange by name at the task of `device`."""
    if not name or ";" in name:
        raise Error(Code.INVALID_ARGUMENT, f"a key must not be empty and must have no semicolon: {name!r}")
    return f"{device};{incarnation:016x};{device};{name};0:0"
