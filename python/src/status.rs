//! Statuses of the engine as exceptions of Python, and back.

use grpcxx_rpc::{Code, Reason, Status};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// The exception for a status.
pub(crate) fn error(py: Python<'_>, status: &Status) -> PyErr {
    let made = ERROR_OF
        .import(py, "grpcxx._status", "error_of")
        .and_then(|error_of| {
            let (code, reason) = (status.code as i32, status.reason as i32);
            error_of.call1((code, status.message.as_ref(), reason))
        });
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// The exception for a failure of the caller.
pub(crate) fn invalid(py: Python<'_>, text: impl Into<String>) -> PyErr {
    refused(py, Code::InvalidArgument, text)
}

/// The exception with a code and a text.
pub(crate) fn refused(py: Python<'_>, code: Code, text: impl Into<String>) -> PyErr {
    error(py, &Status::new(code, text.into()))
}

/// The result of the engine as one of Python.
pub(crate) fn checked<T>(py: Python<'_>, result: Result<T, Status>) -> PyResult<T> {
    result.map_err(|status| error(py, &status))
}

/// The status that an exception of the package stands for; `None` for all other exceptions.
pub(crate) fn of_exception(py: Python<'_>, exception: &PyErr) -> Option<Status> {
    let class = ERROR.import(py, "grpcxx._status", "Error").ok()?;
    let value = exception.value(py);
    if !value.is_instance(class).ok()? {
        return None;
    }
    let code = value.getattr("code").ok()?.extract().ok()?;
    let message: String = value.getattr("message").ok()?.extract().ok()?;
    let reason = value.getattr("reason").and_then(|reason| reason.extract());
    let status = Status::new(Code::from_number(code).unwrap_or(Code::Unknown), message);
    Some(
        status.because(
            reason
                .ok()
                .and_then(Reason::from_number)
                .unwrap_or_default(),
        ),
    )
}

static ERROR_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
