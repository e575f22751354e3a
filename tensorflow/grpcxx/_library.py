"""The engine's library: where it lies, and what it says of itself and of this machine."""

from __future__ import annotations

import atexit
import ctypes
import importlib.machinery
import importlib.util
import json
import logging
import os
import sys
from pathlib import Path
from typing import NamedTuple


class Variable(NamedTuple):
    """A variable of the configuration."""

    name: str
    default: str
    unit: str
    reader: str
    meaning: str


class EndpointMap(NamedTuple):
    """Which star address belongs to which gRPC address."""

    path: str
    entries: dict[str, str]


def library_path() -> Path:
    """Where the engine lies: GRPCXX_LIBRARY if it is set, else in this package.

    It is one file with the C interface, which the TensorFlow plugin uses, and the extension module, which this package
    uses: a process has one engine library.
    """
    chosen = os.environ.get("GRPCXX_LIBRARY")
    return Path(chosen) if chosen else Path(__file__).resolve().parent / "lib" / "libgrpcxx_capi.so"


def _load():
    path = library_path()
    if not path.is_file():
        raise ImportError(
            f"{path} is missing: install the package with `pip install ./tensorflow` in a checkout of grpcxx,"
            " or set GRPCXX_LIBRARY to a library that `cargo build -p grpcxx-python` has made"
        )
    name = f"{__package__}._native"
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path, loader=loader))
    loader.exec_module(module)
    if module.version() != VERSION:
        raise ImportError(
            f"{path} is of grpcxx {module.version()}, and this package of {VERSION}: install both from one checkout"
        )
    sys.modules[name] = module
    return module


def version() -> str:
    """The version of the engine."""
    return native.version()


def facts() -> dict[str, str]:
    """What the engine finds on this machine: driver, limits, CPUs, shared memory, RDMA, configuration."""
    return dict(native.facts())


def variables() -> dict[str, Variable]:
    """All variables of the configuration, by name."""
    return {texts[0]: Variable(*texts) for texts in native.variables()}


def memory_counters() -> dict[str, int]:
    """How arrays crossed the border between Python and the engine, as numbers of arrays and of bytes.

    `lent`: sent from the memory of the array. `landed`: received in the memory of `out`. `viewed`: received in memory
    of the engine, which the array shows. `copied`: all others: small ones (below 4 KiB), strings, and arrays to send
    that are not contiguous or have the other byte order.
    """
    return native.memory_counters()


def endpoint_map(path: str | None) -> EndpointMap:
    """The `.endpoint_map` at `path`, or where DeepRec looks for it, as the engine reads it."""
    found, entries = native.endpoint_map(path)
    return EndpointMap(found, dict(entries))


def plugin() -> ctypes.CDLL | None:
    """The plugin, if TensorFlow has loaded it."""
    for path in library_path().parent.glob("libgrpcxx_tensorflow_*.so"):
        try:
            # Only if TensorFlow has opened it: builds for other versions must not be.
            found = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            continue
        tell = found.GrpcxxTensorFlowCounters
        tell.restype, tell.argtypes = ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t]
        found.GrpcxxTensorFlowPutGroup.restype = found.GrpcxxTensorFlowRemoveGroup.restype = None
        found.GrpcxxTensorFlowPutGroup.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
        found.GrpcxxTensorFlowRemoveGroup.argtypes = [ctypes.c_char_p]
        return found
    return None


def tensorflow_counters() -> dict[str, int]:
    """What the plugin has done in this process since TensorFlow was imported; empty where it is not loaded."""
    found = plugin()
    if found is None:
        return {}
    buffer = ctypes.create_string_buffer(found.GrpcxxTensorFlowCounters(None, 0) + 256)
    found.GrpcxxTensorFlowCounters(buffer, len(buffer))
    return json.loads(buffer.value)


def log_to(logger: logging.Logger | None, level: int = logging.INFO) -> None:
    """Sends what all engines of the process log to `logger`, from `level` on; None stops that.

    The logger is called on a thread of the engine that does nothing else, so it may be slow.

    The engine has one place for this in a process: with TensorFlow it takes the log away from the plugin, which
    otherwise writes it to standard error.
    """
    global _is_logging
    if logger is None:
        native.log_to(0, None)
        _is_logging = False
        return

    def write(engine_level: int, target: str, message: str) -> None:
        logger.log(LEVELS.get(engine_level, logging.DEBUG), "%s: %s", target, message)

    native.log_to(max((number for number, python in LEVELS.items() if python >= level), default=1), write)
    _is_logging = True


def _end_log() -> None:
    # The engine's thread must not call into an interpreter that has ended.
    if _is_logging:
        log_to(None)


atexit.register(_end_log)

# Python has no level of its own for the engine's trace (5).
LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG, 5: 5}
_is_logging = False

# The version of this package, and of the library that belongs to it.
VERSION = "0.1.0"

native = _load()
"""The extension module."""
