"""What has to be looked at before the engine can take it: arrays of other libraries, strides, strings."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Union

import numpy as np

from ._status import Code, Error

# Dimensions and elements of an array of strings.
Strings = tuple[tuple[int, ...], list[bytes]]
Prepared = tuple[Union[np.ndarray, Strings], bool]


def prepared(value: Any) -> Prepared:
    """An array without gaps and in the byte order of the machine, and whether that is a copy; or strings."""
    array = as_array(value)
    if array.dtype.kind in "SUOT":
        return _elements(array), True
    if array.dtype.names is not None:
        fields = ", ".join(array.dtype.names)
        raise Error(Code.INVALID_ARGUMENT, f"an array of records cannot be sent; send each of its fields: {fields}")
    packed = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)
    return packed, not np.may_share_memory(packed, array)


def as_array(value: Any) -> np.ndarray:
    """An array over the memory of `value`, if it has any: arrays, DLPack, the buffer protocol, numbers, lists."""
    if isinstance(value, np.ndarray):
        return _plain(value)
    if isinstance(value, (str, bytes)):
        return strings([value], ())
    if hasattr(value, "__dlpack_device__"):
        _check_device(value)
    torch = sys.modules.get("torch")
    try:
        _check_complete(value)
        if torch is not None and isinstance(value, torch.Tensor):
            return _torch_array(torch, value)
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        array = np.asanyarray(value)
        if array.dtype.kind in "SU" and isinstance(value, (list, tuple)):
            # NumPy's own strings end before their last NULs.
            array = np.array(value, object)
        return _plain(array)
    except (Error, MemoryError):
        raise
    except Exception as error:
        raise Error(Code.INVALID_ARGUMENT, f"{_type_name(value)} does not lend its memory: {error}") from error


def _check_complete(value: Any) -> None:
    """Refuses what lacks elements, where they would become other numbers or change the type of the rest."""
    missing = getattr(value, "null_count", 0)
    missing = missing() if callable(missing) else missing
    # One number, or one for each column.
    missing = int(np.sum(np.asarray(missing)))
    if hasattr(value, "isna"):
        columns = getattr(value, "dtypes", None)
        types = columns.tolist() if hasattr(columns, "tolist") else [value.dtype]
        if not all(isinstance(kind, np.dtype) for kind in types):
            missing = int(np.sum(np.asarray(value.isna())))
    if missing:
        raise Error(
            Code.INVALID_ARGUMENT,
            f"{_type_name(value)} lacks {missing} of its elements, which cannot be sent; fill them first, with"
            " .fillna(value) or .fill_null(value)",
        )


def is_plain(array: np.ndarray) -> bool:
    """Whether the elements are all that an array is."""
    return type(array) in PLAIN


def _plain(array: np.ndarray) -> np.ndarray:
    """The elements of an array, if they are all that it is."""
    if is_plain(array):
        return array
    if isinstance(array, np.ma.MaskedArray):
        masked = np.count_nonzero(np.ma.getmaskarray(array))
        if masked == 0:
            return np.ma.getdata(array)
        raise Error(
            Code.INVALID_ARGUMENT,
            f"{masked} of {array.size} elements are masked, which cannot be sent; send array.filled(value), and"
            " numpy.ma.getmaskarray(array) beside it where the mask counts",
        )
    raise Error(
        Code.INVALID_ARGUMENT,
        f"{_type_name(array)} is more than an array, and only its elements can be sent; if they are what you mean, send"
        " numpy.asarray(array)",
    )


def torch_tensor(array: np.ndarray) -> Any:
    """A CPU tensor of PyTorch over the memory of an array, which must be writable.

    It takes what `torch.from_numpy` takes, and the types of `ml_dtypes` that PyTorch has too, such as bfloat16.
    """
    import torch

    kind = array.dtype.name
    if array.dtype.type.__module__ != "ml_dtypes":
        return torch.from_numpy(array)
    dtype = getattr(torch, kind, None)
    if dtype is None:
        raise Error(Code.INVALID_ARGUMENT, f"PyTorch {torch.__version__} has no type {kind}")
    return torch.from_numpy(array.view(_SIGNED[array.dtype.itemsize])).view(dtype)


def _torch_array(torch: Any, tensor: Any) -> np.ndarray:
    """An array over the memory of a CPU tensor, whatever its strides and whether or not it has a gradient."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        raise Error(Code.INVALID_ARGUMENT, f"a tensor with the layout {tensor.layout} has no plain memory: to_dense()")
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind.endswith("_x2"):
        text = f"{kind} packs two elements into a byte, and NumPy does not; send tensor.view(torch.uint8)"
        raise Error(Code.INVALID_ARGUMENT, text)
    if kind not in ("bfloat16", "complex32") and not kind.startswith("float8"):
        return tensor.resolve_conj().resolve_neg().numpy()
    try:
        import ml_dtypes
    except ImportError as error:
        raise Error(Code.INVALID_ARGUMENT, f"to send a tensor of {kind} install ml_dtypes") from error
    if not hasattr(ml_dtypes, kind):
        raise Error(Code.INVALID_ARGUMENT, f"tensors of {kind} cannot be sent: ml_dtypes has no such type")
    same_bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return tensor.resolve_conj().view(same_bits).numpy().view(getattr(ml_dtypes, kind))


def _check_device(value: Any) -> None:
    """Refuses memory that the CPU cannot read."""
    try:
        kind, number = value.__dlpack_device__()
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError):
        # Arrays over several devices have none to tell; what takes their memory says why it cannot.
        return
    if int(kind) not in CPU_DEVICES:
        name = DEVICES.get(int(kind), f"device type {int(kind)}")
        raise Error(
            Code.INVALID_ARGUMENT,
            f"{_type_name(value)} lies in memory of {name}:{number}, which cannot be sent; copy it to the CPU first,"
            " with .cpu() or jax.device_get",
        )


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def strings(elements: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    """An array of objects, which are `str` or `bytes`."""
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


def _elements(array: np.ndarray) -> Strings:
    elements = []
    for element in array.ravel().tolist():
        if isinstance(element, np.ndarray) and element.ndim == 0:
            element = element.item()
        if isinstance(element, str):
            element = _utf8(element)
        if not isinstance(element, bytes):
            raise Error(
                Code.INVALID_ARGUMENT,
                f"an array of {_dtype_name(array)} may hold str and bytes, and has a {_type_name(element)}; convert it"
                " to a type of numbers, or fill what is missing",
            )
        elements.append(element)
    return array.shape, elements


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Error(Code.INVALID_ARGUMENT, f"{text!r} is no text, and cannot be sent: {error.reason}") from error


def _dtype_name(array: np.ndarray) -> str:
    return "objects" if array.dtype.kind == "O" else "strings"


# Subclasses of arrays whose elements are all that they are. A matrix differs in how it multiplies, which is of no concern
# to who gets its elements; a record array without fields is an array.
PLAIN = {np.ndarray, np.memmap, np.matrix, np.recarray}
with warnings.catch_warnings():
    # NumPy 2.5 says that it will go.
    warnings.simplefilter("ignore", DeprecationWarning)
    PLAIN.update(filter(None, [getattr(np.char, "chararray", None)]))

# DLPack's numbers of devices. Memory that CUDA and ROCm have pinned is the CPU's, and what CUDA manages is both's.
CPU_DEVICES = (1, 3, 11, 13)
DEVICES = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 14: "oneapi", 15: "webgpu", 16: "hexagon"}
_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32}
