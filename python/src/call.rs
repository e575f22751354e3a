//! Calls that Python waits for, and calls that go on while it does something else.

use std::sync::{Arc, Mutex};

use grpcxx_runtime::{Cancellation, Client, Peer};
use pyo3::prelude::*;

use crate::completions::Completions;
use crate::fetched::Wanted;
use crate::flight::{Arrived, Ending, Outcome};
use crate::lock::lock;
use crate::shard::may_wait;
use crate::status::checked;
use crate::waits::WAIT_SLICE;

/// A call that goes on. The thread that ends futures asks for its result.
#[pyclass(frozen, module = "grpcxx._native")]
pub(crate) struct Pending {
    /// What Python gave to know the call by. It knows the call too, so that one has to let go of
    /// the other.
    future: Mutex<Option<Py<PyAny>>>,
    ending: Arc<Ending>,
    cancellation: Cancellation,
    wanted: Wanted,
    device: Option<Arc<KnownDevice>>,
}

/// Name and incarnation of the first device of a task, if they are known.
#[derive(Default)]
pub(crate) struct KnownDevice(Mutex<Option<(String, u64)>>);

impl KnownDevice {
    pub(crate) fn get(&self) -> Option<(String, u64)> {
        lock(&self.0).clone()
    }

    pub(crate) fn set(&self, device: (String, u64)) {
        *lock(&self.0) = Some(device);
    }

    fn forget(&self) {
        lock(&self.0).take();
    }
}

#[pymethods]
impl Pending {
    /// What Python gave to know the call by, once.
    fn take_future(&self) -> Option<Py<PyAny>> {
        lock(&self.future).take()
    }

    /// Withdraws the call, and waits until nothing uses its arrays.
    fn cancel(&self, py: Python<'_>) {
        self.ending.note_withdrawn();
        self.cancellation.cancel();
        if may_wait().is_ok() {
            py.detach(|| self.ending.await_withdrawn());
        }
    }

    /// Whether it can be withdrawn.
    #[getter]
    fn is_withdrawable(&self) -> bool {
        true
    }

    /// The result of the call, once, when it has ended.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.ending.take() {
            Some(outcome) => {
                let arrived = told(py, outcome, self.device.as_deref())?;
                self.wanted.result(py, arrived).map(Some)
            }
            None => Ok(None),
        }
    }
}

/// What is ready to begin, and ends once.
pub(crate) trait Begin: Send {
    /// Begins it. Whatever keeps it from beginning is its end.
    fn begin(self, ending: &Arc<Ending>, cancellation: &Cancellation);

    /// Whom it calls, and by whose client.
    fn road(&self) -> (&Client, &Peer);
}

/// Makes a call and waits for its end, without the interpreter. Ctrl-C withdraws the call; a second
/// one leaves it while its arrays may still be in use.
pub(crate) fn wait(py: Python<'_>, departure: impl Begin) -> PyResult<Outcome> {
    checked(py, may_wait())?;
    let ending = Ending::new(None);
    let cancellation = Cancellation::new();
    let (client, peer) = departure.road();
    let (client, peer) = (client.clone(), peer.clone());
    let wait = || ending.wait(&client, &peer, WAIT_SLICE);
    let mut outcome = py.detach(|| {
        departure.begin(&ending, &cancellation);
        wait()
    });
    loop {
        if let Some(outcome) = outcome {
            return Ok(outcome);
        }
        if let Err(interrupt) = py.check_signals() {
            ending.note_withdrawn();
            cancellation.cancel();
            while py.detach(wait).is_none() {
                py.check_signals()?;
            }
            return Err(interrupt);
        }
        outcome = py.detach(wait);
    }
}

/// Makes a call and returns what it brings.
pub(crate) fn run<'py>(
    py: Python<'py>,
    departure: impl Begin,
    wanted: &Wanted,
    device: Option<&KnownDevice>,
) -> PyResult<Bound<'py, PyAny>> {
    let outcome = wait(py, departure)?;
    wanted.result(py, told(py, outcome, device)?)
}

/// Begins a call of which `completions` shall hear.
pub(crate) fn submit(
    py: Python<'_>,
    departure: impl Begin,
    wanted: Wanted,
    device: Option<Arc<KnownDevice>>,
    completions: &Arc<Completions>,
    future: Py<PyAny>,
) -> PyResult<Py<Pending>> {
    let report = checked(py, completions.report())?;
    let ending = Ending::new(Some(Arc::clone(&report)));
    let cancellation = Cancellation::new();
    let pending = Pending {
        future: Mutex::new(Some(future)),
        ending: Arc::clone(&ending),
        cancellation: cancellation.clone(),
        wanted,
        device,
    };
    let pending = Py::new(py, pending)?;
    completions.keep(&report, pending.clone_ref(py).into_any());
    py.detach(|| departure.begin(&ending, &cancellation));
    Ok(pending)
}

/// What came, or the exception. The task may have been started again, and then its device has
/// another number.
fn told(py: Python<'_>, outcome: Outcome, device: Option<&KnownDevice>) -> PyResult<Arrived> {
    if outcome.is_err()
        && let Some(device) = device
    {
        device.forget();
    }
    checked(py, outcome)
}
