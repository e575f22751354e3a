"""Reads `.endpoint_map` as the engine does."""

from __future__ import annotations

from ctypes import byref, c_char_p, c_void_p
from typing import NamedTuple

from ._c import library
from ._status import check


class EndpointMap(NamedTuple):
    """Which star address belongs to which gRPC address."""

    path: str
    entries: dict[str, str]


def read(path: str | None) -> EndpointMap:
    """The map at `path`, or where DeepRec looks for it."""
    encoded, handle = (path or "").encode(), c_void_p()
    check(library.grpcxx_endpoint_map_new(encoded, len(encoded), byref(handle)))
    try:
        entries, value = {}, c_char_p()
        for place in range(library.grpcxx_endpoint_map_size(handle)):
            key = library.grpcxx_endpoint_map_entry(handle, place, byref(value))
            entries[key.decode()] = value.value.decode()
        return EndpointMap(library.grpcxx_endpoint_map_path(handle).decode(), entries)
    finally:
        library.grpcxx_endpoint_map_free(handle)
