//! Which type of NumPy, or of `ml_dtypes`, is which type of element on the wire.

use grpcxx_rpc::{Code, DType};
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::status::refused;

/// A type of element, and how Python calls it.
struct Known {
    dtype: DType,
    name: &'static str,
    /// Whether the package `ml_dtypes` has it, and not NumPy.
    is_extra: bool,
}

/// The types of NumPy that can be sent, and those of `ml_dtypes` where that is installed.
struct Found {
    descrs: Vec<(DType, Py<PyArrayDescr>)>,
    /// Numbers that NumPy has given to types of `ml_dtypes`.
    extra_numbers: Vec<(i32, DType)>,
}

/// The type of the elements of an array, if they can be sent as they lie in memory.
pub(crate) fn dtype_of(descr: &Bound<'_, PyArrayDescr>) -> Option<DType> {
    if descr.byteorder() == OTHER_BYTE_ORDER {
        return None;
    }
    let number = descr.num();
    match usize::try_from(number).ok().and_then(|at| BUILTIN.get(at)) {
        Some(dtype) => *dtype,
        None => {
            let extra = &found(descr.py()).ok()?.extra_numbers;
            let (_, dtype) = extra.iter().find(|(known, _)| *known == number)?;
            Some(*dtype)
        }
    }
}

/// The type of NumPy for a type of element.
pub(crate) fn descr_of(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyArrayDescr>> {
    let descrs = &found(py)?.descrs;
    if let Some((_, descr)) = descrs.iter().find(|(known, _)| *known == dtype) {
        return Ok(descr.bind(py).clone());
    }
    let is_extra = KNOWN
        .iter()
        .any(|known| known.dtype == dtype && known.is_extra);
    let advice = match is_extra {
        true => "install ml_dtypes, or a newer one",
        false => "NumPy has no such type",
    };
    let text = format!("a tensor of {dtype} cannot become an array: {advice}");
    Err(refused(py, Code::Unimplemented, text))
}

fn found(py: Python<'_>) -> PyResult<&'static Found> {
    FOUND.get_or_try_init(py, || {
        let extras = py.import("ml_dtypes").ok();
        let mut found = Found {
            descrs: Vec::new(),
            extra_numbers: Vec::new(),
        };
        for known in &KNOWN {
            let descr = if known.is_extra {
                // Older versions of ml_dtypes lack the newest types.
                let Some(class) = extras.as_ref().and_then(|all| all.getattr(known.name).ok())
                else {
                    continue;
                };
                let descr = PyArrayDescr::new(py, class)?;
                found.extra_numbers.push((descr.num(), known.dtype));
                descr
            } else {
                PyArrayDescr::new(py, known.name)?
            };
            found.descrs.push((known.dtype, descr.unbind()));
        }
        Ok(found)
    })
}

/// The name of a type as NumPy spells it, or as the wire does where NumPy has no such type.
#[pyfunction]
pub(crate) fn dtype_name(number: i32) -> Option<&'static str> {
    let dtype = DType::from_number(number)?;
    let known = KNOWN.iter().find(|known| known.dtype == dtype);
    Some(known.map_or(dtype.name(), |known| known.name))
}

/// The names of all types whose arrays can be sent, and their numbers on the wire.
#[pyfunction]
pub(crate) fn dtype_names() -> Vec<(&'static str, u8)> {
    let pairs = KNOWN.iter().map(|known| (known.name, known.dtype.number()));
    pairs.collect()
}

const fn known(dtype: DType, name: &'static str) -> Known {
    Known {
        dtype,
        name,
        is_extra: false,
    }
}

const fn extra(dtype: DType, name: &'static str) -> Known {
    Known {
        dtype,
        name,
        is_extra: true,
    }
}

const KNOWN: [Known; 34] = [
    known(DType::Bool, "bool"),
    known(DType::Int8, "int8"),
    known(DType::UInt8, "uint8"),
    known(DType::Int16, "int16"),
    known(DType::UInt16, "uint16"),
    known(DType::Int32, "int32"),
    known(DType::UInt32, "uint32"),
    known(DType::Int64, "int64"),
    known(DType::UInt64, "uint64"),
    known(DType::Float16, "float16"),
    known(DType::Float32, "float32"),
    known(DType::Float64, "float64"),
    known(DType::Complex64, "complex64"),
    known(DType::Complex128, "complex128"),
    extra(DType::BFloat16, "bfloat16"),
    extra(DType::Float8E3M4, "float8_e3m4"),
    extra(DType::Float8E4M3, "float8_e4m3"),
    extra(DType::Float8E4M3B11FnUz, "float8_e4m3b11fnuz"),
    extra(DType::Float8E4M3Fn, "float8_e4m3fn"),
    extra(DType::Float8E4M3FnUz, "float8_e4m3fnuz"),
    extra(DType::Float8E5M2, "float8_e5m2"),
    extra(DType::Float8E5M2FnUz, "float8_e5m2fnuz"),
    extra(DType::Float8E8M0FnU, "float8_e8m0fnu"),
    extra(DType::Float6E2M3Fn, "float6_e2m3fn"),
    extra(DType::Float6E3M2Fn, "float6_e3m2fn"),
    extra(DType::Float4E2M1Fn, "float4_e2m1fn"),
    extra(DType::Int1, "int1"),
    extra(DType::UInt1, "uint1"),
    extra(DType::Int2, "int2"),
    extra(DType::UInt2, "uint2"),
    extra(DType::Int4, "int4"),
    extra(DType::UInt4, "uint4"),
    extra(DType::Complex32, "complex32"),
    extra(DType::BComplex32, "bcomplex32"),
];

/// The types that NumPy has built in, at the places of their numbers (`NPY_TYPES`).
const BUILTIN: [Option<DType>; 24] = [
    Some(DType::Bool),
    Some(DType::Int8),
    Some(DType::UInt8),
    Some(DType::Int16),
    Some(DType::UInt16),
    Some(DType::Int32),
    Some(DType::UInt32),
    Some(DType::Int64),
    Some(DType::UInt64),
    Some(DType::Int64),
    Some(DType::UInt64),
    Some(DType::Float32),
    Some(DType::Float64),
    // Long double, which no other machine needs to understand.
    None,
    Some(DType::Complex64),
    Some(DType::Complex128),
    // Complex long double, objects, strings, structures, dates and times.
    None,
    None,
    None,
    None,
    None,
    None,
    None,
    Some(DType::Float16),
];

/// How NumPy marks elements whose bytes have the other order than this machine's.
const OTHER_BYTE_ORDER: u8 = match cfg!(target_endian = "little") {
    true => b'>',
    false => b'<',
};

static FOUND: PyOnceLock<Found> = PyOnceLock::new();
