"""Arrays to tensors of the engine and back, without a copy wherever the memory allows it."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence
from ctypes import byref, c_int64, c_size_t, c_void_p, cast, memmove, string_at
from typing import Any

import numpy as np

from ._c import RELEASE, Text, library
from ._status import Code, Error, check

STRING = 7
BFLOAT16 = 14

# Below this many bytes a copy costs less than keeping memory for the other side.
COPY_BELOW_BYTES = 4096


class Tensor:
    """One ownership of a tensor handle."""

    __slots__ = ("handle",)

    def __init__(self, handle: int):
        self.handle = handle

    def __del__(self):
        if library is not None:
            library.grpcxx_tensor_release(self.handle)

    @classmethod
    def retained(cls, handle: int) -> Tensor:
        """A further ownership of a borrowed handle."""
        return cls(library.grpcxx_tensor_retain(handle))


class Counts:
    """How arrays crossed the border between Python and the engine, since the package was imported."""

    def __init__(self):
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("lent", "copied", "viewed", "landed"), 0)
        self._bytes = dict(self._counts)

    def add(self, way: str, size_bytes: int) -> None:
        with self._lock:
            self._counts[way] += 1
            self._bytes[way] += size_bytes

    def entries(self) -> dict[str, int]:
        with self._lock:
            return {**self._counts, **{f"{way}_bytes": count for way, count in self._bytes.items()}}


counts = Counts()


def memory_counters() -> dict[str, int]:
    """How arrays crossed the border between Python and the engine, as numbers of arrays and of bytes.

    `lent`: sent from the memory of the array. `landed`: received in the memory of `out`. `viewed`: received in memory
    of the engine, which the array shows. `copied`: all others: small ones (below 4 KiB), strings, and arrays to send
    that are not contiguous or have the other byte order.
    """
    return counts.entries()


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


def tensor_of(value: Any, copy: bool = False) -> Tensor:
    """A tensor of `value`. Without `copy` it may lie in the memory of `value`, which must then stay as it is."""
    array = as_array(value)
    if array.dtype.kind in "SUO":
        return _strings_tensor(array)
    dtype = array.dtype.newbyteorder("=")
    number = NUMBERS.get(dtype)
    if number is None:
        raise Error(
            Code.INVALID_ARGUMENT,
            f"arrays of {array.dtype} cannot be sent; convert it to one of {', '.join(sorted(map(str, NUMBERS)))}",
        )
    packed = np.ascontiguousarray(array, dtype).reshape(array.shape)
    is_copied = copy or packed.nbytes < COPY_BELOW_BYTES
    counts.add("copied" if is_copied or _address(packed) != _address(array) else "lent", packed.nbytes)
    dims = (c_int64 * packed.ndim)(*packed.shape)
    arguments = (number, dims, packed.ndim, False, _address(packed), packed.nbytes)
    handle = c_void_p()
    if is_copied:
        check(library.grpcxx_tensor_copy_new(*arguments, byref(handle)))
        return Tensor(handle.value)
    loan = next(_loan_numbers)
    _loans[loan] = packed
    try:
        check(library.grpcxx_tensor_new(*arguments, _end_loan, loan, byref(handle)))
    except Error:
        del _loans[loan]
        raise
    return Tensor(handle.value)


def array_of(tensor: Tensor, must_be_writable: bool = False) -> np.ndarray:
    """An array over the memory of a tensor, which it keeps. Strings become an array of `bytes` objects.

    It is writable if nobody else can see the memory, such as a store, a step, or the process that sent it from memory
    that both share. Where that is not so and it must be, the array has a copy.
    """
    handle = tensor.handle
    number = library.grpcxx_tensor_dtype(handle)
    shape = shape_of(handle)
    if library.grpcxx_tensor_is_dead(handle):
        raise Error(Code.ABORTED, "the tensor is dead: it belongs to a branch of a graph that was not taken")
    if number == STRING:
        return _strings_array(handle, shape)
    dtype = dtype_of(number)
    size_bytes = library.grpcxx_tensor_data_size(handle)
    if size_bytes != math.prod(shape) * dtype.itemsize:
        raise Error(Code.DATA_LOSS, f"a tensor of {dtype} and shape {list(shape)} came with {size_bytes} bytes")
    if size_bytes == 0:
        return np.empty(shape, dtype)
    if size_bytes < COPY_BELOW_BYTES or must_be_writable and not library.grpcxx_tensor_mutable_data(handle):
        counts.add("copied", size_bytes)
        copy = np.empty(shape, dtype)
        memmove(_address(copy), library.grpcxx_tensor_data(handle), size_bytes)
        return copy
    counts.add("viewed", size_bytes)
    return np.asarray(_Memory(tensor, size_bytes)).view(dtype).reshape(shape)


def check_landed(handle: int, out: np.ndarray) -> None:
    """Raises unless the tensor came in the memory of `out` and is of its type and shape."""
    dtype, shape = dtype_of(library.grpcxx_tensor_dtype(handle)), shape_of(handle)
    if dtype != out.dtype or shape != out.shape:
        raise Error(
            Code.INVALID_ARGUMENT,
            f"out is an array of {out.dtype} and shape {list(out.shape)}, but {dtype} and shape {list(shape)} came",
        )
    if library.grpcxx_tensor_data(handle) == _address(out):
        counts.add("landed", out.nbytes)
    elif out.nbytes:
        # What the engine had before it knew of the call, such as a tensor of its own process.
        counts.add("copied", out.nbytes)
        out[...] = array_of(Tensor.retained(handle))


def check_out(out: np.ndarray) -> None:
    """Raises unless a tensor can be received into `out`."""
    if not (isinstance(out, np.ndarray) and out.flags.c_contiguous and out.flags.writeable):
        raise Error(Code.INVALID_ARGUMENT, "out must be a NumPy array, contiguous and writable")
    if out.dtype not in NUMBERS:
        raise Error(Code.INVALID_ARGUMENT, f"nothing can be received into an array of {out.dtype}")


def shape_of(handle: int) -> tuple:
    rank = library.grpcxx_tensor_rank(handle)
    dims = library.grpcxx_tensor_dims(handle)
    return tuple(dims[axis] for axis in range(rank))


def dtype_of(number: int) -> np.dtype:
    """The NumPy type for a number of TensorFlow's."""
    dtype = DTYPES.get(number)
    if dtype is None:
        name = f"type {number}"
        advice = "NumPy has no such type"
        if number == BFLOAT16:
            name, advice = "bfloat16", "install ml_dtypes"
        raise Error(Code.UNIMPLEMENTED, f"a tensor of {name} cannot become an array: {advice}")
    return dtype


def texts(elements: Sequence[bytes]) -> Any:
    """A C array of grpcxx_text over a copy of `elements`, which it keeps."""
    joined = b"".join(elements)
    table = np.zeros((max(len(elements), 1), 2), np.uint64)
    sizes = np.fromiter(map(len, elements), np.uint64, len(elements))
    table[: len(elements), 1] = sizes
    table[: len(elements), 0] = cast(joined, c_void_p).value + np.cumsum(sizes) - sizes
    array = (Text * len(table)).from_buffer(table)
    array.joined = joined
    return array


class _Memory:
    """Lends the memory of a tensor to NumPy and keeps the tensor."""

    def __init__(self, tensor: Tensor, size_bytes: int):
        self._tensor = tensor
        writable = library.grpcxx_tensor_mutable_data(tensor.handle)
        self.__array_interface__ = {
            "version": 3,
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (writable or library.grpcxx_tensor_data(tensor.handle), not writable),
        }


def _strings_tensor(array: np.ndarray) -> Tensor:
    elements = []
    for element in array.ravel().tolist():
        if isinstance(element, str):
            element = element.encode()
        if not isinstance(element, bytes):
            kind = type(element).__name__
            raise Error(Code.INVALID_ARGUMENT, f"an array of objects may hold str and bytes, and has a {kind}")
        elements.append(element)
    counts.add("copied", sum(map(len, elements)))
    handle = c_void_p()
    dims = (c_int64 * array.ndim)(*array.shape)
    pointers = texts(elements)
    check(library.grpcxx_tensor_strings_new(dims, array.ndim, pointers, len(elements), byref(handle)))
    return Tensor(handle.value)


def _strings_array(handle: int, shape: tuple) -> np.ndarray:
    size = library.grpcxx_tensor_num_elements(handle)
    elements = (Text * max(size, 1))()
    check(library.grpcxx_tensor_strings(handle, elements, c_size_t(size)))
    array = np.empty(size, object)
    array[:] = [string_at(elements[place].data, elements[place].size) for place in range(size)]
    counts.add("copied", sum(map(len, array)))
    return array.reshape(shape)


def _address(array: np.ndarray) -> int | None:
    return array.__array_interface__["data"][0]


@RELEASE
def _end_loan(loan, _delivered):
    _loans.pop(loan, None)


# Arrays whose memory the engine uses, by the number that it gives back.
_loans: dict[int, np.ndarray] = {}
_loan_numbers = itertools.count(1)

DTYPES = {
    number: np.dtype(name)
    for number, name in {
        1: "float32",
        2: "float64",
        3: "int32",
        4: "uint8",
        5: "int16",
        6: "int8",
        8: "complex64",
        9: "int64",
        10: "bool",
        17: "uint16",
        18: "complex128",
        19: "float16",
        22: "uint32",
        23: "uint64",
    }.items()
}
try:
    import ml_dtypes

    DTYPES[BFLOAT16] = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    pass
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
