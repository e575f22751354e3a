"""What NumPy has to look at before the engine can take it, and arrays of strings."""

from __future__ import annotations

from typing import Any, Union

import numpy as np

from ._status import Code, Error

# Dimensions and elements of an array of strings.
Strings = tuple[tuple[int, ...], list[bytes]]
Prepared = tuple[Union[np.ndarray, Strings], bool]


def prepared(value: Any) -> Prepared:
    """An array without gaps and in the byte order of the machine, and whether that is a copy; or strings."""
    array = as_array(value)
    if array.dtype.kind in "SUO":
        return _elements(array), True
    packed = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)
    return packed, not np.may_share_memory(packed, array)


def as_array(value: Any) -> np.ndarray:
    """An array over the memory of `value`, if it has any: arrays, DLPack, the buffer protocol, numbers, lists."""
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as error:
            if not hasattr(value, "__array__"):
                raise Error(
                    Code.INVALID_ARGUMENT, f"{type(value).__name__} does not lend its memory: {error}"
                ) from error
    return np.asarray(value)


def strings(elements: list[bytes], shape: tuple[int, ...]) -> np.ndarray:
    """An array of `bytes` objects."""
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


def _elements(array: np.ndarray) -> Strings:
    elements = []
    for element in array.ravel().tolist():
        if isinstance(element, str):
            element = element.encode()
        if not isinstance(element, bytes):
            kind = type(element).__name__
            raise Error(Code.INVALID_ARGUMENT, f"an array of objects may hold str and bytes, and has a {kind}")
        elements.append(element)
    return array.shape, elements
