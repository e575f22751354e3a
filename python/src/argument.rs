//! Arguments of Python, refused by name where they are out of range or have no encoding.

use std::fmt::Display;

use grpcxx_collectives::ReduceOp;
use grpcxx_rpc::Text;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::request::text_of;
use crate::status::{checked, invalid};

/// A text that has an encoding.
pub(crate) struct Word(pub(crate) Text);

impl<'py> FromPyObject<'_, 'py> for Word {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        text_of(&*value.cast::<PyString>()?).map(Self)
    }
}

/// The number of a step.
pub(crate) fn step(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    number("step", value, i64::MIN, i64::MAX)
}

/// The number of a rank in its group.
pub(crate) fn rank(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    number("rank", value, 0, u32::MAX)
}

/// How many ranks a group has.
pub(crate) fn size(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    number("size", value, 0, u32::MAX)
}

/// The rank that has or gets an array.
pub(crate) fn root(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    number("root", value, 0, u32::MAX)
}

/// How arrays are combined.
pub(crate) fn op(value: &Bound<'_, PyAny>) -> PyResult<ReduceOp> {
    let name = value.cast::<PyString>().map_err(|error| {
        let text = format!("op must be a str: {error}");
        PyTypeError::new_err(text)
    })?;
    checked(value.py(), ReduceOp::from_name(&text_of(name)?))
}

/// Which group of a name this is.
pub(crate) fn generation(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    number("generation", value, 0, u64::MAX)
}

/// The number of a task in its job.
pub(crate) fn index(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    number("a rank, or the index of a task,", value, 0, u32::MAX)
}

/// Job and index of a task, if one is named.
pub(crate) fn task(value: &Bound<'_, PyAny>) -> PyResult<Option<(Word, u32)>> {
    let pair: Option<(Word, Bound<'_, PyAny>)> = value.extract()?;
    pair.map(|(job, at)| Ok((job, index(&at)?))).transpose()
}

fn number<'py, T>(what: &str, value: &Bound<'py, PyAny>, min: T, max: T) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py> + Display,
{
    let refused = |error: PyErr| {
        let py = value.py();
        if error.is_instance_of::<PyOverflowError>(py) {
            let text = format!("{what} must be from {min} to {max}, and is {value}");
            invalid(py, text)
        } else if error.is_instance_of::<PyTypeError>(py) {
            PyTypeError::new_err(format!("{what} must be an int: {}", error.value(py)))
        } else {
            error
        }
    };
    let found = value.extract::<T>().map_err(Into::into);
    found.map_err(refused)
}
