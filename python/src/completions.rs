//! Calls that nobody waits for: the thread that ends their futures collects them here.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use grpcxx_rpc::{Code, Status};
use pyo3::prelude::*;

use crate::lock::lock;

/// The calls of one engine that go on, and those that have ended.
#[derive(Default)]
pub(crate) struct Completions {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next: u64,
    /// By the numbers of their reports. `None`: the call is about to begin.
    pending: HashMap<u64, Option<Py<PyAny>>>,
    ended: Vec<u64>,
    is_closing: bool,
}

/// Tells that one call has ended.
pub(crate) struct Report {
    to: Arc<Completions>,
    number: u64,
}

impl Completions {
    /// A number for a call that is about to begin. Until it was kept, or the report is gone, there
    /// is one more to come.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` once this is closing, when nobody would end the call.
    pub(crate) fn report(self: &Arc<Self>) -> Result<Arc<Report>, Status> {
        let mut state = lock(&self.state);
        if state.is_closing {
            return Err(Status::new(Code::FailedPrecondition, "this is closed"));
        }
        state.next += 1;
        let number = state.next;
        state.pending.insert(number, None);
        Ok(Arc::new(Report {
            to: Arc::clone(self),
            number,
        }))
    }

    /// Keeps a call until it has ended.
    pub(crate) fn keep(&self, report: &Report, call: Py<PyAny>) {
        lock(&self.state).pending.insert(report.number, Some(call));
    }

    /// Waits for calls to end. None, if there are no more and there will be none.
    pub(crate) fn wait(&self) -> Vec<Py<PyAny>> {
        let mut state = lock(&self.state);
        loop {
            if !state.ended.is_empty() {
                let ended = std::mem::take(&mut state.ended);
                let calls = ended
                    .iter()
                    .filter_map(|number| state.pending.remove(number).flatten());
                let calls: Vec<_> = calls.collect();
                // A call may be told twice, and was taken the first time then.
                if !calls.is_empty() {
                    return calls;
                }
            }
            if state.is_closing && state.pending.is_empty() {
                return Vec::new();
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets [`Completions::wait`] come to an end.
    pub(crate) fn close(&self) {
        lock(&self.state).is_closing = true;
        self.changed.notify_all();
    }
}

impl Report {
    pub(crate) fn tell(&self) {
        lock(&self.to.state).ended.push(self.number);
        self.to.changed.notify_one();
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let mut state = lock(&self.to.state);
        // The call did not begin.
        if let Some(None) = state.pending.get(&self.number) {
            state.pending.remove(&self.number);
            self.to.changed.notify_one();
        }
    }
}
