//! An operation under way, as the program that called it holds it, and its one end.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_channel::oneshot;
use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_rpc::{Code, Reason, Status};
use grpcxx_runtime::Client;

/// An operation under way: a future of its result. The group goes on with it if it is dropped.
#[must_use = "an operation may fail"]
pub struct Operation<T> {
    receiver: oneshot::Receiver<Outcome>,
    take: Option<Take<T>>,
    /// The shard that brings the end, which a thread turns while it waits.
    shard: Option<(Client, usize)>,
}

/// Memory with the result, if this rank gets one.
type Outcome = Result<Option<BufferMut>, Status>;

type Take<T> = Box<dyn FnOnce(Option<BufferMut>) -> Result<T, Status> + Send>;

/// The one end of an operation. Whoever may still read or write memory of the operation holds an
/// ownership; a success is told when the last one is gone, a failure at once.
#[derive(Debug)]
pub(crate) struct Ending(Mutex<State>);

#[derive(Debug)]
struct State {
    sender: Option<oneshot::Sender<Outcome>>,
    output: Option<BufferMut>,
    has_succeeded: bool,
}

/// Memory that an operation sends from, until nobody sends from it any more.
struct Lent {
    buffer: Buffer,
    _ending: Arc<Ending>,
}

impl<T> Operation<T> {
    pub(crate) fn new(
        take: impl FnOnce(Option<BufferMut>) -> Result<T, Status> + Send + 'static,
    ) -> (Self, Arc<Ending>) {
        let (sender, receiver) = oneshot::channel();
        let state = State {
            sender: Some(sender),
            output: None,
            has_succeeded: false,
        };
        let operation = Self {
            receiver,
            take: Some(Box::new(take)),
            shard: None,
        };
        (operation, Arc::new(Ending(Mutex::new(state))))
    }

    /// This operation, whose end the shard brings.
    pub(crate) fn on(self, client: &Client, shard: usize) -> Self {
        Self {
            shard: Some((client.clone(), shard)),
            ..self
        }
    }

    /// This operation, with what `more` makes of its result.
    pub(crate) fn and_then<U>(
        mut self,
        more: impl FnOnce(T) -> Result<U, Status> + Send + 'static,
    ) -> Operation<U>
    where
        T: 'static,
    {
        let take = self.take.take();
        let take = take.map(|take| -> Take<U> { Box::new(|output| take(output).and_then(more)) });
        Operation {
            receiver: self.receiver,
            take,
            shard: self.shard,
        }
    }

    /// Blocks the calling thread until the operation has ended. Not for use on a shard.
    ///
    /// # Errors
    /// Why the group failed.
    pub fn wait(self) -> Result<T, Status> {
        match self.shard.clone() {
            Some((client, shard)) => {
                let result = client.wait(shard, self, None);
                result.expect("a wait without a limit ends with the operation")
            }
            None => futures_executor::block_on(self),
        }
    }

    /// Blocks the calling thread until the operation has ended, at most for `limit`. Not for use on
    /// a shard, nor again when it has given the result.
    pub fn wait_timeout(&mut self, limit: Duration) -> Option<Result<T, Status>> {
        let (client, shard) = self.shard.clone()?;
        client.wait(shard, self, Some(limit))
    }
}

impl<T> Future for Operation<T> {
    type Output = Result<T, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        let take = self
            .take
            .take()
            .expect("a future is not polled behind its end");
        Poll::Ready(outcome.unwrap_or_else(|_| Err(stopped())).and_then(take))
    }
}

impl<T> Unpin for Operation<T> {}

impl Ending {
    pub(crate) fn fail(&self, status: Status) {
        if let Some(sender) = self.state().sender.take() {
            // If the caller has gone, nobody wants to hear.
            let _ = sender.send(Err(status));
        }
    }

    /// All has come and all was sent; what is left is that others let go of the memory.
    pub(crate) fn succeed(&self) {
        self.state().has_succeeded = true;
    }

    /// The memory of the result is there again.
    pub(crate) fn give_back(&self, output: BufferMut) {
        self.state().output = Some(output);
    }

    /// Memory that the operation waits for before it ends.
    pub(crate) fn lend(self: &Arc<Self>, buffer: Buffer) -> Buffer {
        if buffer.is_empty() {
            return buffer;
        }
        Buffer::from_owner(Lent {
            buffer,
            _ending: Arc::clone(self),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let state = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = state.sender.take() {
            let outcome = match state.has_succeeded {
                true => Ok(state.output.take()),
                false => Err(stopped()),
            };
            // If the caller has gone, nobody wants to hear.
            let _ = sender.send(outcome);
        }
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl<T> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").finish_non_exhaustive()
    }
}

fn stopped() -> Status {
    let text = "the engine stopped before the operation ended";
    Status::new(Code::Unavailable, text).because(Reason::Stopping)
}
