//! Values of Python as tensors, and tensors as arrays, without a copy wherever the memory allows
//! it.

use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, DType, DTypeClass, Shape, Tensor};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyTuple};
use smallvec::SmallVec;

use crate::counts::{Way, count};
use crate::dtypes::{descr_of, dtype_of};
use crate::memory;
use crate::status::{checked, invalid, refused};

/// How the memory of a received tensor becomes an array.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// An array of its own: a copy where somebody else sees the memory too.
    Writable,
    /// The memory itself, read-only where somebody else sees it too.
    Shared,
}

/// A tensor of `value`. Without `must_copy` it may lie in the memory of `value`, which must then
/// stay as it is.
pub(crate) fn tensor_of(value: &Bound<'_, PyAny>, must_copy: bool) -> PyResult<Tensor> {
    if let Ok(array) = value.cast::<PyUntypedArray>()
        && memory::is_exactly_array(array)
        && array.is_c_contiguous()
        && let Some(dtype) = dtype_of(&array.dtype())
    {
        return plain_tensor(array, dtype, must_copy, false);
    }
    let py = value.py();
    // What NumPy has to look at first: other libraries' arrays, lists, strides, strings.
    let prepared = PREPARED
        .import(py, "grpcxx._arrays", "prepared")?
        .call1((value,))?;
    let (prepared, was_copied): (Bound<'_, PyAny>, bool) = prepared.extract()?;
    if let Ok(strings) = prepared.cast::<PyTuple>() {
        return strings_tensor(strings);
    }
    let array = prepared.cast::<PyUntypedArray>()?;
    match dtype_of(&array.dtype()) {
        Some(dtype) => plain_tensor(array, dtype, must_copy, was_copied),
        None => Err(refused_type(py, &array.dtype().str()?.to_string())),
    }
}

fn plain_tensor(
    array: &Bound<'_, PyUntypedArray>,
    dtype: DType,
    must_copy: bool,
    was_copied: bool,
) -> PyResult<Tensor> {
    let bytes = memory::bytes_of(array);
    let is_copied = must_copy || bytes < LENT_BYTES_MIN;
    let way = match is_copied || was_copied {
        true => Way::Copied,
        false => Way::Lent,
    };
    count(way, bytes);
    let data = match is_copied {
        true => memory::copied(array, bytes),
        false => memory::lent(array, bytes),
    };
    let dims: SmallVec<[u64; 6]> = array.shape().iter().map(|&dim| dim as u64).collect();
    let shape = Shape::new(&dims).map_err(Into::into);
    let tensor = shape.and_then(|shape| Tensor::new(dtype, shape, data));
    checked(array.py(), tensor)
}

/// A tensor of a tuple of dimensions and a list of `bytes`.
fn strings_tensor(parts: &Bound<'_, PyTuple>) -> PyResult<Tensor> {
    let (dims, elements): (Vec<u64>, Vec<Bound<'_, PyBytes>>) = parts.extract()?;
    let elements = elements.iter().map(|element| element.as_bytes());
    count(Way::Copied, elements.clone().map(<[u8]>::len).sum());
    let shape = Shape::new(&dims).map_err(Into::into);
    let tensor = shape.and_then(|shape| Tensor::from_strings(shape, elements));
    checked(parts.py(), tensor)
}

/// An array over the memory of a tensor, which it keeps, or with a copy of it. Strings become an
/// array of `bytes`.
pub(crate) fn array_of(
    py: Python<'_>,
    tensor: Tensor,
    access: Access,
) -> PyResult<Bound<'_, PyAny>> {
    if tensor.is_dead {
        let text = "the tensor is dead: it belongs to a branch of a graph that was not taken";
        return Err(refused(py, Code::Aborted, text));
    }
    if tensor.dtype == DType::String {
        return strings_array(py, &tensor);
    }
    let tensor = unpacked(tensor);
    let descr = descr_of(py, tensor.dtype)?;
    check_size(py, &tensor, descr.itemsize())?;
    let bytes = tensor.data.len();
    let is_ours = tensor.data.is_unique();
    if bytes < LENT_BYTES_MIN || access == Access::Writable && !is_ours {
        if bytes > 0 {
            count(Way::Copied, bytes);
        }
        return memory::array_with(descr, tensor.shape.dims(), &tensor.data);
    }
    count(Way::Viewed, bytes);
    memory::view(descr, tensor.shape.dims(), tensor.data, is_ours)
}

/// A tensor of a packed type, which no array can have, as one of the bytes that it consists of. Its
/// last dimension is in bytes; where that ends within one, there is one dimension.
fn unpacked(tensor: Tensor) -> Tensor {
    let DTypeClass::Packed { element_bits } = tensor.dtype.class() else {
        return tensor;
    };
    let mut dims: SmallVec<[u64; 6]> = tensor.shape.dims().iter().copied().collect();
    let bits = (dims.last()).and_then(|last| last.checked_mul(element_bits as u64));
    match (dims.last_mut(), bits) {
        (Some(last), Some(bits)) if bits.is_multiple_of(8) => *last = bits / 8,
        _ => dims = SmallVec::from_slice(&[tensor.data.len() as u64]),
    }
    let shape = Shape::new(&dims).unwrap_or_else(|_| Shape::vector(tensor.data.len()));
    Tensor {
        dtype: DType::UInt8,
        shape,
        ..tensor
    }
}

/// Puts a tensor into an array that has its type and shape, unless it landed there.
pub(crate) fn put(
    tensor: &Tensor,
    has_landed: bool,
    out: &Bound<'_, PyUntypedArray>,
) -> PyResult<()> {
    let py = out.py();
    let dims = tensor.shape.dims();
    let has_shape = dims
        .iter()
        .copied()
        .eq(out.shape().iter().map(|&dim| dim as u64));
    if dtype_of(&out.dtype()) != Some(tensor.dtype) || !has_shape || tensor.is_dead {
        return Err(invalid(
            py,
            format!(
                "out is an array of {} and shape {:?}, but {} and shape {dims:?} came",
                out.dtype().str()?,
                out.shape(),
                tensor.dtype
            ),
        ));
    }
    let bytes = memory::bytes_of(out);
    if has_landed {
        count(Way::Landed, bytes);
    } else if bytes > 0 {
        // What the engine had before it knew of the call, such as a tensor of its own process.
        check_size(py, tensor, out.dtype().itemsize())?;
        count(Way::Copied, bytes);
        memory::fill(py, out, &tensor.data);
    }
    Ok(())
}

/// Refuses an array into which nothing can be received.
pub(crate) fn check_out<'py>(out: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = out.py();
    let array = match out.cast::<PyUntypedArray>() {
        Ok(array) if array.is_c_contiguous() && memory::is_writable(array) && is_plain(array)? => {
            array
        }
        _ => {
            let text = "out must be a NumPy array, contiguous and writable, and none with a mask or the like";
            return Err(invalid(py, text));
        }
    };
    if dtype_of(&array.dtype()).is_none() {
        let text = format!(
            "nothing can be received into an array of {}",
            array.dtype().str()?
        );
        return Err(invalid(py, text));
    }
    Ok(array.clone())
}

/// Whether the elements are all that an array is.
fn is_plain(array: &Bound<'_, PyUntypedArray>) -> PyResult<bool> {
    if memory::is_exactly_array(array) {
        return Ok(true);
    }
    let is_plain = PLAIN.import(array.py(), "grpcxx._arrays", "is_plain")?;
    is_plain.call1((array,))?.extract()
}

/// A type that arrays to send may not have.
fn refused_type(py: Python<'_>, dtype: &str) -> PyErr {
    let mut names: Vec<&str> = crate::dtypes::dtype_names()
        .iter()
        .map(|(name, _)| *name)
        .collect();
    names.sort_unstable();
    let text = format!(
        "arrays of {dtype} cannot be sent; convert it to one of {}",
        names.join(", ")
    );
    invalid(py, text)
}

fn check_size(py: Python<'_>, tensor: &Tensor, element_bytes: usize) -> PyResult<()> {
    let expected = tensor
        .shape
        .num_elements()
        .checked_mul(element_bytes as u64);
    if expected == Some(tensor.data.len() as u64) {
        return Ok(());
    }
    let text = format!(
        "a tensor of {} and shape {} came with {} bytes",
        tensor.dtype,
        tensor.shape,
        tensor.data.len()
    );
    Err(refused(py, Code::DataLoss, text))
}

fn strings_array<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let strings = checked(py, tensor.strings())?;
    count(Way::Copied, strings.iter().map(|string| string.len()).sum());
    let elements = PyList::new(py, strings.iter().map(|string| PyBytes::new(py, string)))?;
    let dims = PyTuple::new(py, tensor.shape.dims())?;
    let make = STRINGS.import(py, "grpcxx._arrays", "strings")?;
    make.call1((elements, dims))
}

/// A tensor without data, in place of one whose data lies elsewhere.
pub(crate) fn without_data(tensor: &mut Tensor) {
    tensor.data = Buffer::new();
}

static PLAIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static PREPARED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static STRINGS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Below this many bytes a copy costs less than keeping memory for the other side.
pub(crate) const LENT_BYTES_MIN: usize = 4096;
