"""Failures: gRPC's codes, reasons to decide by, and the exceptions that carry them."""

from __future__ import annotations

import enum
import logging


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


class Reason(enum.IntEnum):
    """Why a call failed, for code that decides what to do next.

    A reason is known in this process only: what a peer answered has `PEER`, whatever its reason was.
    """

    UNSPECIFIED = 0
    PEER = 1
    DEADLINE = 2
    CANCELLED = 3
    NO_CONNECTION = 4
    CONNECTION_LOST = 5
    PEER_VIOLATION = 6
    MEMORY = 7
    QUEUE_FULL = 8
    TOO_MANY_CALLS = 9
    LIMIT = 10
    STOPPING = 11
    SHARD_DIED = 12
    UNKNOWN_DEVICE = 13
    OTHER_INCARNATION = 14
    STEP_OVER = 15
    PANICKED = 16
    UNANSWERED = 17
    FORBIDDEN = 18
    UNPROVEN = 19


class Error(Exception):
    """A call, a start or a conversion that failed.

    A function that a server has registered may raise it: the caller then gets the same code and text.
    """

    def __init__(self, code: Code, message: str, reason: Reason = Reason.UNSPECIFIED):
        super().__init__(code, message)
        if isinstance(self, OSError):
            # OSError takes them for a number of the system and its text: a deadline would be EINTR.
            self.errno = self.strerror = None
        self.code = Code(code)
        self.message = message
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class DeadlineExceeded(Error, TimeoutError):
    """The timeout of a call has passed."""


class Unavailable(Error, ConnectionError):
    """The peer cannot be reached, or the connection was lost."""


# Calls that end for these reasons before they were sent have the code INTERNAL, as DeepRec's do.
NOT_SENT = {Reason.NO_CONNECTION: Code.UNAVAILABLE, Reason.DEADLINE: Code.DEADLINE_EXCEEDED}
# How the texts of DeepRec about them begin.
CHANNEL = "Seastar channel: "


def error_of(code: int, message: str, number: int = 0) -> Error:
    """The exception for a code and the number of a reason."""
    reason = Reason(number) if number in Reason.__members__.values() else Reason.UNSPECIFIED
    if code not in Code.__members__.values():
        code = Code.UNKNOWN
    elif code == Code.INTERNAL and reason in NOT_SENT:
        code, message = NOT_SENT[reason], message.removeprefix(CHANNEL)
    kind = {Code.DEADLINE_EXCEEDED: DeadlineExceeded, Code.UNAVAILABLE: Unavailable}.get(code, Error)
    return kind(Code(code), message, reason)


def log_failure(error: BaseException) -> None:
    """Notes in the log of the server what a registered function has raised."""
    try:
        text = str(error)
    except Exception:  # The log says so itself.
        text = ""
    if len(text) <= TEXT_LOGGED_MAX:
        log.error("a registered function failed", exc_info=error)
    else:
        begin = text[:TEXT_LOGGED_MAX]
        log.error("a registered function failed: %s of %d characters: %s...", type(error).__name__, len(text), begin)


TEXT_LOGGED_MAX = 4096
"""Most characters of the text of an exception that the log shows: peers may have written them."""


log = logging.getLogger("grpcxx")
