//! Waits of Python's threads without the interpreter, which signals can end.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use grpcxx_rpc::{Code, Status};
use pyo3::prelude::*;

use crate::status::{checked, refused};

/// Runs code on a thread of its own and waits for its end. Ctrl-C ends the wait alone. `what`
/// stands for the code in errors.
pub(crate) fn run_elsewhere<T: Send + 'static>(
    py: Python<'_>,
    (thread_name, what): (&str, &str),
    code: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = mpsc::channel();
    let thread = thread::Builder::new().name(thread_name.to_owned());
    // Who waits may have been interrupted.
    let spawned = thread.spawn(move || drop(sender.send(code())));
    if let Err(error) = spawned {
        let text = format!("there is no thread for {what}: {error}");
        return Err(refused(py, Code::ResourceExhausted, text));
    }
    loop {
        let next = &mut receiver;
        match py.detach(move || next.recv_timeout(WAIT_SLICE)) {
            Ok(result) => return checked(py, result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(refused(py, Code::Internal, format!("{what} failed")));
            }
        }
    }
}

/// Calls `wait`, which waits for what a function of this process may have to bring: see
/// [`grpcxx_runtime::waiting`].
#[pyfunction]
pub(crate) fn waiting<'py>(wait: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    grpcxx_runtime::waiting(|| wait.call0())
}

/// How long a wait lasts before Python looks for signals.
pub(crate) const WAIT_SLICE: Duration = Duration::from_millis(200);
