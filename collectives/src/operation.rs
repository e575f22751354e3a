//! An operation under way, as the program that called it holds it, and its one end.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

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
    lookout: Lookout,
}

/// Brings an operation on without a shard, as long as a thread looks.
pub(crate) trait Looks: Send {
    /// Takes what has come.
    fn look(&self) -> Looked;

    /// Leaves the operation to the shard.
    fn rest(&self);

    /// Lets some time pass before the next look. So many looks in a row have found nothing.
    fn pause(&self, looks: u32);
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// Nothing new; more may come where it is looked for.
    Waits,
    /// The operation has come on.
    Steps,
    /// Only the shard brings more.
    Elsewhere,
}

/// Who looks for an operation, until it is left to the shard: at the latest when nobody waits for
/// it any more.
struct Lookout(Option<Box<dyn Looks>>);

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
            lookout: Lookout(None),
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

    /// This operation, which comes on when it is looked for, or left to the shard.
    pub(crate) fn looked_for(self, looks: impl Looks + 'static) -> Self {
        Self {
            lookout: Lookout(Some(Box::new(looks))),
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
            lookout: self.lookout,
        }
    }

    /// Blocks the calling thread until the operation has ended. Not for use on a shard.
    ///
    /// # Errors
    /// Why the group failed.
    pub fn wait(mut self) -> Result<T, Status> {
        if let Some(result) = self.look(None) {
            return result;
        }
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
        if let Some(result) = self.look(Some(limit)) {
            return Some(result);
        }
        let (client, shard) = self.shard.clone()?;
        client.wait(shard, self, Some(limit))
    }

    /// Looks for the end on this thread, for a moment: others that work in step with this one are
    /// there by then. Who waits for longer had better sleep.
    fn look(&mut self, limit: Option<Duration>) -> Option<Result<T, Status>> {
        let looks = self.lookout.0.as_ref()?;
        if let Some(outcome) = self.receiver.try_recv().transpose() {
            self.lookout.rest();
            return Some(self.finish(outcome));
        }
        let begun = Instant::now();
        let end = limit.and_then(|limit| begun.checked_add(limit));
        let (mut until, mut looks_in_vain) = (begun + LOOK_TIME, 0);
        let mut outcome;
        loop {
            let looked = looks.look();
            outcome = self.receiver.try_recv().transpose();
            let now = Instant::now();
            if looked == Looked::Steps {
                (until, looks_in_vain) = (now + LOOK_TIME, 0);
            }
            let is_over = now >= until || end.is_some_and(|end| now >= end);
            if outcome.is_some() || looked == Looked::Elsewhere || is_over {
                break;
            }
            looks.pause(looks_in_vain);
            looks_in_vain += 1;
        }
        self.lookout.rest();
        let outcome = outcome?;
        Some(self.finish(outcome))
    }

    fn finish(&mut self, outcome: Result<Outcome, oneshot::Canceled>) -> Result<T, Status> {
        let take = self
            .take
            .take()
            .expect("a future is not polled behind its end");
        outcome.unwrap_or_else(|_| Err(stopped())).and_then(take)
    }
}

impl Lookout {
    fn rest(&mut self) {
        if let Some(looks) = self.0.take() {
            looks.rest();
        }
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.rest();
    }
}

impl<T> Future for Operation<T> {
    type Output = Result<T, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.lookout.rest();
        let outcome = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        Poll::Ready(self.finish(outcome))
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

/// How long a thread looks for what others show before it sleeps: about as long as it takes to be
/// woken.
pub(crate) const LOOK_TIME: Duration = Duration::from_micros(100);
