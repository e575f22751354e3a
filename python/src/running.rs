//! The functions of Python that run on threads of engines, so that a program can wait for their
//! end.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use grpcxx_memory::forks::PerProcess;
use pyo3::prelude::*;

use crate::lock::lock;
use crate::memory::let_interpreter_end;
use crate::waits::WAIT_SLICE;

/// One function that runs.
pub(crate) struct Run {
    name: Arc<str>,
}

/// Those of one process: none of them runs in a child of it.
#[derive(Default)]
struct Running {
    /// Their names.
    names: Mutex<Vec<Arc<str>>>,
    one_less: Condvar,
}

impl Running {
    fn own() -> &'static Self {
        RUNNING.get_or_make(|_parents| Self::default())
    }
}

impl Run {
    pub(crate) fn begin(name: &Arc<str>) -> Self {
        lock(&Running::own().names).push(Arc::clone(name));
        Self {
            name: Arc::clone(name),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let running = Running::own();
        let mut names = lock(&running.names);
        // In a child it may have begun in the parent.
        if let Some(at) = names.iter().position(|name| *name == self.name) {
            names.swap_remove(at);
        }
        running.one_less.notify_all();
    }
}

/// Waits until no function of Python runs on a thread of an engine, at most for so many seconds, at
/// the end of the interpreter.
/// Returns the names of those that do. Signals are heard meanwhile.
#[pyfunction]
pub(crate) fn until_idle(py: Python<'_>, seconds: f64) -> PyResult<Vec<String>> {
    let limit = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let begin = Instant::now();
    loop {
        let left = limit.saturating_sub(begin.elapsed());
        let running = py.detach(|| running(left.min(WAIT_SLICE)));
        let is_left = running.is_empty() && !py.detach(is_thread_leaving);
        if is_left || left.is_zero() {
            return Ok(running);
        }
        py.check_signals()?;
    }
}

/// Whether a thread that ends still needs the interpreter, after it had time for that.
fn is_thread_leaving() -> bool {
    let is_leaving = let_interpreter_end();
    if is_leaving {
        thread::sleep(LEAVE_INTERVAL);
    }
    is_leaving
}

/// The names of those that still run after so long.
fn running(wait: Duration) -> Vec<String> {
    let running = Running::own();
    let waited = (running.one_less)
        .wait_timeout_while(lock(&running.names), wait, |names| !names.is_empty());
    let (names, _) = waited.unwrap_or_else(PoisonError::into_inner);
    names.iter().map(|name| name.to_string()).collect()
}

/// How long a thread that ends gets between two looks.
const LEAVE_INTERVAL: Duration = Duration::from_millis(1);

static RUNNING: PerProcess<Running> = PerProcess::new();
