//! A call of a function on its way to a thread of the pool.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grpcxx_rpc::{Code, GraphCall, Reason, Status};

use super::Responder;
use crate::compute::Job;
use crate::watch::RequestWatch;

/// A call that waits for a thread. Withdrawn before that, it lets go of its tensors and never runs.
pub(crate) struct WaitingCall {
    /// None once a thread has it, or it was withdrawn.
    call: Mutex<Option<(Box<GraphCall>, Responder)>>,
}

impl WaitingCall {
    pub(crate) fn new(call: Box<GraphCall>, responder: Responder) -> Arc<Self> {
        Arc::new(Self {
            call: Mutex::new(Some((call, responder))),
        })
    }

    /// What the thread does: it lets `start` have the call, unless that is over.
    pub(crate) fn job(
        self: &Arc<Self>,
        start: impl FnOnce(Box<GraphCall>, Responder) + Send + 'static,
    ) -> Job {
        let waiting = Arc::clone(self);
        let job = Job::new(move || {
            if let Some((call, responder)) = waiting.take() {
                start(call, responder);
            }
        });
        let waiting = Arc::clone(self);
        job.until(move || waiting.call().is_none())
    }

    fn call(&self) -> MutexGuard<'_, Option<(Box<GraphCall>, Responder)>> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<(Box<GraphCall>, Responder)> {
        self.call().take()
    }
}

impl RequestWatch for WaitingCall {
    fn withdrawn(&self) {
        if let Some((call, responder)) = self.take() {
            drop(call);
            // The step that it counts in goes on to its end.
            let status = Status::new(Code::Cancelled, "the call was withdrawn");
            responder.answer(Err(status.because(Reason::Cancelled)));
        }
    }
}
