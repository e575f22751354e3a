"""GRPC++ for TensorFlow and tensor calls for NumPy.

TensorFlow needs no import of this package: once it is installed, `import tensorflow` finds the plugin, and servers
take `protocol="grpc++"`. `python -m grpcxx doctor` says whether all is well.

Without TensorFlow, `Server` and `Client` move NumPy arrays between processes:

    import grpcxx, numpy

    with grpcxx.Server() as server:
        server.register(lambda x: x * 2, name="double")
        with grpcxx.Client(server.address) as client:
            print(client.call("double", {"x": numpy.arange(3)}))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._arrays import torch_tensor
    from ._library import facts, log_to, memory_counters, tensorflow_counters, variables, version
    from ._status import Code, DeadlineExceeded, Error, Reason, Unavailable
    from .client import Client, StoredTensor
    from .group import Group
    from .server import Server

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Code",
    "DeadlineExceeded",
    "Error",
    "Group",
    "Reason",
    "Server",
    "StoredTensor",
    "Unavailable",
    "facts",
    "log_to",
    "memory_counters",
    "tensorflow_counters",
    "torch_tensor",
    "variables",
    "version",
]

# The engine is opened at the first use, so that the doctor can say why it cannot be.
_PLACES = {
    "_arrays": ("torch_tensor",),
    "_library": ("facts", "log_to", "memory_counters", "tensorflow_counters", "variables", "version"),
    "_status": ("Code", "DeadlineExceeded", "Error", "Reason", "Unavailable"),
    "client": ("Client", "StoredTensor"),
    "group": ("Group",),
    "server": ("Server",),
}


def __getattr__(name: str):
    for module, names in _PLACES.items():
        if name in names:
            globals()[name] = value = getattr(importlib.import_module(f".{module}", __name__), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
