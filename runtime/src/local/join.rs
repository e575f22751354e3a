use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_channel::oneshot;
use futures_util::future::{AbortHandle, AbortRegistration, Abortable};
use grpcxx_rpc::{Code, Reason, Status};

use crate::fate::stopped;
use crate::host::{Beside, wait};
use crate::sharded::Shards;

/// The result to come of code that runs on a shard or on the compute pool.
///
/// It is a future, on any executor. Dropping it lets the code go on; nobody gets the result then.
#[must_use = "a handle is a future of the result"]
pub struct JoinHandle<T> {
    receiver: oneshot::Receiver<Result<T, Status>>,
    abort: Option<AbortHandle>,
    /// Those of the engine, which knows why the code was lost.
    shards: Option<Shards>,
}

impl<T> JoinHandle<T> {
    pub(crate) fn new(
        receiver: oneshot::Receiver<Result<T, Status>>,
        abort: Option<AbortHandle>,
        shards: Option<Shards>,
    ) -> Self {
        Self {
            receiver,
            abort,
            shards,
        }
    }

    /// Of code that was not taken.
    pub(crate) fn failed(status: Status) -> Self {
        let (sender, receiver) = oneshot::channel();
        // The receiver is right here, so the result cannot be refused.
        let _ = sender.send(Err(status));
        Self::new(receiver, None, None)
    }

    /// Drops the future before its next poll; the handle ends with `CANCELLED`. Code without awaits
    /// runs to its end.
    pub fn abort(&self) {
        if let Some(abort) = &self.abort {
            abort.abort();
        }
    }

    /// Blocks the calling thread until the result is there.
    ///
    /// # Errors
    /// As the future: why there is no result. `FAILED_PRECONDITION` on the thread of a shard, which
    /// must not block.
    pub fn wait(self) -> Result<T, Status> {
        if Beside::here().is_some() {
            return Err(would_block());
        }
        wait(self)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let received = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        let lost = |oneshot::Canceled| Err(lost(self.shards.as_ref()));
        Poll::Ready(received.unwrap_or_else(lost))
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").finish_non_exhaustive()
    }
}

/// Why code of an engine gave no result that was neither aborted nor panicked off the shards.
fn lost(shards: Option<&Shards>) -> Status {
    shards.map_or_else(stopped, Shards::status_of_loss)
}

/// Runs a future and hands its result over. If it panics, the sender stays until the future is
/// dropped: whoever waits shall not hear that it was lost before all know why.
pub(crate) fn report<T>(
    future: impl Future<Output = Result<T, Status>>,
    registration: AbortRegistration,
    sender: oneshot::Sender<Result<T, Status>>,
) -> impl Future<Output = ()> {
    let mut future = Box::pin(Abortable::new(future, registration));
    let mut sender = Some(sender);
    poll_fn(move |context| {
        let result = std::task::ready!(future.as_mut().poll(context));
        if let Some(sender) = sender.take() {
            // Whoever has let go of the handle does not want the result.
            drop(sender.send(result.unwrap_or_else(|_| Err(aborted()))));
        }
        Poll::Ready(())
    })
}

fn aborted() -> Status {
    Status::new(Code::Cancelled, "the future was aborted").because(Reason::Cancelled)
}

/// Why nobody waits on a shard.
pub(crate) fn would_block() -> Status {
    let text = "the thread of a shard must not block; await the result";
    Status::new(Code::FailedPrecondition, text)
}
