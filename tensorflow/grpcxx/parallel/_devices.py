"""Which GPUs each rank of this host uses: an equal share of those that are visible here, as with CPUs."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping

# What frameworks read, the one that counts first. ROCm numbers the devices of the first two within those of the last.
VARIABLES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def visible(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """The GPUs that this process may use, by number or name, and the variable that says it."""
    for variable in VARIABLES:
        if variable in environment:
            return variable, _listed(environment[variable])
    return "CUDA_VISIBLE_DEVICES", [str(at) for at in range(_counted())]


def share(rank: int, size: int, devices: list[str]) -> list[str]:
    """The GPUs of a rank: an equal share, or one that it shares with the next ranks where there are too few."""
    first, end = rank * len(devices) // size, (rank + 1) * len(devices) // size
    return devices[first : max(end, first + 1)]


def _listed(text: str) -> list[str]:
    """As CUDA reads a list: it ends before the first entry that names nothing."""
    names = [name.strip() for name in text.split(",")]
    return list(itertools.takewhile(_is_device, names))


def _is_device(name: str) -> bool:
    return name.isdecimal() or name.startswith(("GPU-", "MIG-"))


def _counted() -> int:
    """How many GPUs CUDA finds, by its driver, which is there where a GPU is; that takes no memory of them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    is_found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if is_found else 0
