//! Calls that nobody waits for: the thread that ends their futures collects them here.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

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
    pending: HashMap<u64, Py<PyAny>>,
    ended: Vec<u64>,
    is_closing: bool,
}

/// Tells that one call has ended.
pub(crate) struct Report {
    to: Arc<Completions>,
    number: u64,
}

impl Completions {
    /// A number for a call that is about to begin.
    pub(crate) fn report(self: &Arc<Self>) -> Report {
        let mut state = lock(&self.state);
        state.next += 1;
        Report {
            to: Arc::clone(self),
            number: state.next,
        }
    }

    /// Keeps a call until it has ended.
    pub(crate) fn keep(&self, number: u64, call: Py<PyAny>) {
        lock(&self.state).pending.insert(number, call);
    }

    /// Waits for calls to end. None, if there are no more and there will be none.
    pub(crate) fn wait(&self) -> Vec<Py<PyAny>> {
        let mut state = lock(&self.state);
        loop {
            if !state.ended.is_empty() {
                let ended = std::mem::take(&mut state.ended);
                let calls = ended
                    .iter()
                    .filter_map(|number| state.pending.remove(number));
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
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn tell(&self) {
        lock(&self.to.state).ended.push(self.number);
        self.to.changed.notify_one();
    }
}
