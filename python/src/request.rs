//! What Python gives for a call, as a request.

use std::collections::HashSet;
use std::time::Duration;

use grpcxx_rpc::{GraphCall, Tensor, Text};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString};

use crate::arrays::tensor_of;
use crate::status::{error as exception, invalid, of_exception};

/// A call of a function with named tensors.
pub(crate) fn graph_call(
    py: Python<'_>,
    function: &str,
    feeds: Vec<(Text, Tensor)>,
    fetches: Vec<Text>,
) -> PyResult<GraphCall> {
    if fetches.len() > 1 {
        let mut seen = HashSet::with_capacity(fetches.len());
        if !fetches.iter().all(|name| seen.insert(name)) {
            let listed: Vec<&str> = fetches.iter().map(Text::as_str).collect();
            let text = format!("a name was asked for twice: {}", listed.join(", "));
            return Err(invalid(py, text));
        }
    }
    Ok(GraphCall {
        feeds: feeds.into(),
        fetches: fetches.into(),
        ..GraphCall::new(function)
    })
}

/// The tensors of a mapping of names to values.
pub(crate) fn tensors_of(
    feeds: &Bound<'_, PyAny>,
    must_copy: bool,
) -> PyResult<Vec<(Text, Tensor)>> {
    let pair =
        |name: Bound<'_, PyAny>, value: Bound<'_, PyAny>| named_tensor(&name, &value, must_copy);
    if let Ok(feeds) = feeds.cast_exact::<PyDict>() {
        return feeds
            .iter()
            .map(|(name, value)| pair(name, value))
            .collect();
    }
    let items = feeds.cast::<PyMapping>()?.items()?;
    let pairs = items.iter().map(|item| {
        let (name, value) = item.extract()?;
        pair(name, value)
    });
    pairs.collect()
}

/// The tensor of a value that has a name, which stands in the error if it has none.
fn named_tensor(
    name: &Bound<'_, PyAny>,
    value: &Bound<'_, PyAny>,
    must_copy: bool,
) -> PyResult<(Text, Tensor)> {
    let py = name.py();
    let name = text_of(name_of(name)?)?;
    match tensor_of(value, must_copy) {
        Ok(tensor) => Ok((name, tensor)),
        Err(error) => Err(naming(py, &name, error)),
    }
}

/// What stands where a name of an array must stand.
pub(crate) fn name_of<'a, 'py>(name: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyString>> {
    let Ok(name) = name.cast::<PyString>() else {
        let text = format!("names of arrays are str, and {} is not", name.repr()?);
        return Err(invalid(name.py(), text));
    };
    Ok(name)
}

/// The error of an array with its name in front.
pub(crate) fn naming(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    match of_exception(py, &error) {
        Some(status) => {
            let text = format!("{name}: {}", status.message);
            exception(py, &status.with_message(text))
        }
        None => error,
    }
}

/// The tensors of `push(name, value)` and of `push({name: value, ...})`.
pub(crate) fn named_tensors(
    name: &Bound<'_, PyAny>,
    value: Option<&Bound<'_, PyAny>>,
    must_copy: bool,
) -> PyResult<Vec<(Text, Tensor)>> {
    if let Ok(name) = name.cast::<PyString>() {
        let none = name.py().None().into_bound(name.py());
        let value = value.unwrap_or(&none);
        return Ok(vec![named_tensor(name, value, must_copy)?]);
    }
    if value.is_some() {
        let text = "give either a name and an array, or a mapping of names to arrays";
        return Err(invalid(name.py(), text));
    }
    tensors_of(name, must_copy)
}

/// The time that a call may take, of seconds.
pub(crate) fn timeout_of(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    // Not a number is refused too.
    if seconds > 0.0 {
        let timeout = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        return Ok(Some(timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX)));
    }
    let text = format!("a timeout must be more than 0 seconds, and is {seconds}");
    Err(invalid(py, text))
}

/// The key of an exchange by name at the task of a device.
pub(crate) fn rendezvous_key(
    py: Python<'_>,
    (device, incarnation): (&str, u64),
    name: &str,
) -> PyResult<Text> {
    if name.is_empty() || name.contains(';') {
        let text = format!("a key must not be empty and must have no semicolon: {name:?}");
        return Err(invalid(py, text));
    }
    Ok(Text::from(key_text(device, incarnation, name)))
}

/// A rendezvous key from a task's first device to itself.
pub(crate) fn key_text(device: &str, incarnation: u64, name: &str) -> String {
    format!("{device};{incarnation:016x};{device};{name};0:0")
}

pub(crate) fn text_of(text: &Bound<'_, PyString>) -> PyResult<Text> {
    match text.to_cow() {
        Ok(text) => Ok(Text::from(text.as_ref())),
        Err(_) => {
            let why = format!("{} is no text that has an encoding", text.repr()?);
            Err(invalid(text.py(), why))
        }
    }
}

/// Shorter ones are as good as none.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// Longer ones than a century are as good as it.
const TIMEOUT_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
