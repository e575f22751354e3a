"""Safetensors files as arrays over their mapped bytes.

The package safetensors gives NumPy no bfloat16 and no float8, and refuses a file for one type that it does not know.
"""

from __future__ import annotations

import json
import math
import os
import warnings

import numpy as np


def arrays(path: str) -> dict[str, np.ndarray]:
    """The tensors of a file, read-only. One of a type that is not known is left out, with a warning.

    Packed types, which NumPy does not have, are arrays of their bytes: the last dimension is in bytes.
    """
    header, begin = _header(path)
    data = np.memmap(path, np.uint8, "r", begin) if os.path.getsize(path) > begin else np.empty(0, np.uint8)
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            kind, shape, (start, end) = entry["dtype"], [int(size) for size in entry["shape"]], entry["data_offsets"]
            dtype = _dtype(kind)
            if dtype is None:
                warnings.warn(f"{path}: tensor {name!r} is left out: {_why(kind)}", stacklevel=2)
                continue
            shape = _in_bytes(shape, PACKED_BITS[kind]) if kind in PACKED_BITS else shape
            if not 0 <= start <= end <= len(data) or end - start != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"data_offsets {[start, end]} do not hold {kind} of shape {shape}")
            found[name] = data[start:end].view(dtype).reshape(shape)
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path}: tensor {name!r}: {error}; the file is damaged, copy it again") from None
    return found


def _header(path: str) -> tuple[dict, int]:
    """The header of a file, and where its data begins."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > min(HEADER_BYTES_MAX, os.path.getsize(path)):
            raise ValueError(f"{path} is no safetensors file, or was cut off: its header has {size} bytes")
        try:
            header = json.loads(file.read(size))
        except ValueError as error:
            raise ValueError(f"{path}: the header is no JSON ({error}); the file is damaged, copy it again") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path}: the header is no object; the file is damaged, copy it again")
    return header, 8 + size


def _dtype(kind: str) -> np.dtype | None:
    """The type of NumPy for a type of a file."""
    if kind in PACKED_BITS:
        return np.dtype(np.uint8)
    if kind in PLAIN:
        return np.dtype(PLAIN[kind])
    try:
        import ml_dtypes
    except ImportError:
        return None
    extra = getattr(ml_dtypes, EXTRA.get(kind, ""), None)
    return None if extra is None else np.dtype(extra)


def _why(kind: str) -> str:
    if kind in EXTRA:
        return f"NumPy has no {kind}; pip install ml_dtypes, or a newer one"
    return f"its type {kind!r} is none of {', '.join([*PLAIN, *EXTRA, *PACKED_BITS])}"


def _in_bytes(shape: list[int], element_bits: int) -> list[int]:
    """A shape of elements as one of bytes, or in one dimension where rows end within a byte."""
    if shape and shape[-1] * element_bits % 8 == 0:
        return [*shape[:-1], shape[-1] * element_bits // 8]
    return [math.prod(shape) * element_bits // 8]


HEADER_BYTES_MAX = 100_000_000
PLAIN = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8",
    "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?", "C64": "<c8",
}  # fmt: skip
EXTRA = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
