"""Failures: gRPC's codes, and the exceptions that carry them."""

from __future__ import annotations

import enum
from ctypes import c_void_p

from ._c import library


class Code(enum.IntEnum):
    """gRPC's status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Error(Exception):
    """A call, a start or a conversion that failed.

    A function that a server has registered may raise it: the caller then gets the same code and text.
    """

    def __init__(self, code: Code, message: str):
        super().__init__(code, message)
        self.code = Code(code)
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class DeadlineExceeded(Error, TimeoutError):
    """The timeout of a call has passed."""


class Unavailable(Error, ConnectionError):
    """The peer cannot be reached, or the connection was lost."""


# How the engine begins its text about a peer that cannot be reached, with the code INTERNAL, as DeepRec does.
NOT_CONNECTED = "Seastar channel: "


def error_of(code: int, message: str) -> Error:
    """The exception for a code."""
    if code not in Code.__members__.values():
        code = Code.UNKNOWN
    elif code == Code.INTERNAL and message.startswith(NOT_CONNECTED):
        code, message = Code.UNAVAILABLE, message[len(NOT_CONNECTED) :]
    kind = {Code.DEADLINE_EXCEEDED: DeadlineExceeded, Code.UNAVAILABLE: Unavailable}.get(code, Error)
    return kind(Code(code), message)


def taken(status: int | None) -> Error | None:
    """The exception for a status, which is ended; None for success."""
    if not status:
        return None
    error = borrowed(status)
    library.grpcxx_status_free(c_void_p(status))
    return error


def borrowed(status: int) -> Error:
    """The exception for a status that somebody else ends."""
    message = library.grpcxx_status_message(status, None) or b""
    return error_of(library.grpcxx_status_code(status), message.decode("utf-8", "replace"))


def check(status: int | None) -> None:
    """Raises what the status says, and ends it."""
    error = taken(status)
    if error is not None:
        raise error
