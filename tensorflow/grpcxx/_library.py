"""What the engine says of itself and of this machine."""

from __future__ import annotations

import atexit
import ctypes
import json
import logging
import os
from typing import NamedTuple

from ._c import FACT, LOG, VARIABLE, library, library_path


class Variable(NamedTuple):
    """A variable of the configuration."""

    name: str
    default: str
    unit: str
    reader: str
    meaning: str


def version() -> str:
    """The version of the engine."""
    return library.grpcxx_version().decode()


def facts() -> dict[str, str]:
    """What the engine finds on this machine: driver, limits, CPUs, shared memory, RDMA, configuration."""
    found = {}

    @FACT
    def add(_user, name, value):
        found[name.decode()] = value.decode("utf-8", "replace")

    library.grpcxx_facts(add, None)
    return found


def variables() -> dict[str, Variable]:
    """All variables of the configuration, by name."""
    found = {}

    @VARIABLE
    def add(_user, *texts):
        variable = Variable(*((text or b"").decode() for text in texts))
        found[variable.name] = variable

    library.grpcxx_variables(add, None)
    return found


def tensorflow_counters() -> dict[str, int]:
    """What the plugin has done in this process since TensorFlow was imported; empty where it is not loaded."""
    for path in library_path().parent.glob("libgrpcxx_tensorflow_*.so"):
        try:
            # Only if TensorFlow has opened it: builds for other versions must not be.
            plugin = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            continue
        tell = plugin.GrpcxxTensorFlowCounters
        tell.restype, tell.argtypes = ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t]
        buffer = ctypes.create_string_buffer(tell(None, 0) + 256)
        tell(buffer, len(buffer))
        return json.loads(buffer.value)
    return {}


def log_to(logger: logging.Logger | None, level: int = logging.INFO) -> None:
    """Sends what all engines of the process log to `logger`, from `level` on; None stops that.

    The logger is called on a thread of the engine that does nothing else, so it may be slow.

    The engine has one place for this in a process: with TensorFlow it takes the log away from the plugin, which
    otherwise writes it to standard error.
    """
    global _log
    if logger is None:
        callback = LOG()
    else:

        @LOG
        def callback(_user, engine_level, target, message):
            logger.log(LEVELS.get(engine_level, logging.DEBUG), "%s: %s", target.decode(), message.decode())

    engine_level = max((number for number, python in LEVELS.items() if python >= level), default=1)
    library.grpcxx_log_set(engine_level, callback, None)
    # The engine may still be in the old one; it is small, and stays.
    _log.append(callback)


def _end_log() -> None:
    # The engine's thread must not call into an interpreter that has ended.
    if _log:
        log_to(None)


atexit.register(_end_log)

# Python has no level of its own for the engine's trace (5).
LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG, 5: 5}
_log: list = []
