//! Messages of one direction of a stream on their way between its user and a shard, or between two
//! users: a bounded queue of batches, so that a lock is taken for each batch and not each message.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use grpcxx_memory::Buffer;
use grpcxx_rpc::{Credit, Metadata, Status};

use crate::shard::StreamShare;

/// A part of what goes through a pipe.
#[derive(Debug)]
pub(crate) enum Chunk {
    /// So many messages, each behind its length.
    Messages(Buffer, u32),
    /// One message, in pieces.
    Message(Vec<Buffer>),
    /// A part of a message.
    Part { bytes: Buffer, is_last: bool },
}

/// The end of a pipe that messages go into. Dropped without [`PipeSender::end`], it cuts the pipe.
#[derive(Debug)]
pub(crate) struct PipeSender(Arc<Pipe>);

/// The end of a pipe that messages come out of, and the share of the peer that sends them, if one
/// is counted.
#[derive(Debug)]
pub(crate) struct PipeReceiver(Arc<Pipe>, Option<Arc<StreamShare>>);

/// Counts what goes through a pipe.
pub(crate) struct Meter(Arc<Pipe>);

#[derive(Debug, Default)]
struct Pipe {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<Chunk>,
    head: Option<Metadata>,
    has_head: bool,
    /// What is in the pipe.
    held: Held,
    /// What has been taken out of it since the sender asked.
    released: Held,
    /// All that ever went in, in bytes.
    passed_bytes: u64,
    ending: Ending,
    /// Why the sender has cut the pipe, if it says so.
    failure: Option<Status>,
    /// Whether nobody takes anything out any more.
    is_closed: bool,
    /// Whether the sender waits until there is room again.
    is_full: bool,
    /// Wakes the sender when there is room, and when the receiver is gone.
    sender: Option<Wakes>,
    /// Wakes the receiver when there is something, and at the end.
    receiver: Option<Wakes>,
}

/// How many messages, and how long they are together.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    messages: u64,
    bytes: u64,
}

/// What the sender has said of the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ending {
    /// More may come.
    #[default]
    None,
    /// All messages are there.
    Ended,
    /// The sender was dropped before.
    Cut,
}

/// Who is to be woken, once or each time.
#[derive(Clone, Debug)]
enum Wakes {
    Once(Waker),
    Always(Waker),
}

/// Two ends of a pipe.
pub(crate) fn pipe() -> (PipeSender, PipeReceiver) {
    let pipe = Arc::<Pipe>::default();
    (PipeSender(Arc::clone(&pipe)), PipeReceiver(pipe, None))
}

impl Pipe {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.chunks.is_empty() && self.ending != Ending::None
    }

    /// Takes what comes first. Returns who is to be woken, because there is room again.
    fn take(&mut self) -> Option<(Chunk, Option<Waker>)> {
        let chunk = self.chunks.pop_front()?;
        let size = chunk.size();
        self.held.messages -= size.messages;
        self.held.bytes -= size.bytes;
        self.released.add(size);
        let wakes = match self.sender {
            Some(Wakes::Always(_)) => !self.released.is_within(RELEASED),
            Some(Wakes::Once(_)) => self.is_full && self.held.is_within(LOW),
            None => false,
        };
        self.is_full &= !wakes;
        let waker = wakes.then(|| take_waker(&mut self.sender)).flatten();
        Some((chunk, waker))
    }
}

impl Held {
    fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.bytes += more.bytes;
    }

    fn is_within(self, limit: Credit) -> bool {
        self.messages < u64::from(limit.messages) && self.bytes < u64::from(limit.bytes)
    }
}

impl Chunk {
    fn size(&self) -> Held {
        match self {
            Self::Messages(bytes, count) => Held {
                messages: u64::from(*count),
                bytes: bytes.len() as u64,
            },
            Self::Message(pieces) => Held {
                messages: 1,
                bytes: pieces.iter().map(|piece| piece.len() as u64).sum(),
            },
            Self::Part { bytes, is_last } => Held {
                messages: u64::from(*is_last),
                bytes: bytes.len() as u64,
            },
        }
    }
}

impl PipeSender {
    /// Whether there is room, or `false` if nobody takes anything out any more. It is full before
    /// the receiver has half of it.
    pub(crate) fn poll_room(&self, context: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.0.state();
        state.sender = Some(Wakes::Once(context.waker().clone()));
        if state.is_closed {
            return Poll::Ready(false);
        }
        if state.held.is_within(HIGH) {
            return Poll::Ready(true);
        }
        state.is_full = true;
        Poll::Pending
    }

    /// Puts something in, also if there is no room.
    pub(crate) fn push(&self, chunk: Chunk) {
        let waker = {
            let mut state = self.0.state();
            let size = chunk.size();
            if state.is_closed {
                // Nobody will take it, and its sender may send more.
                state.released.add(size);
                let is_much = !state.released.is_within(RELEASED);
                is_much.then(|| take_waker(&mut state.sender)).flatten()
            } else {
                state.held.add(size);
                state.passed_bytes += size.bytes;
                state.chunks.push_back(chunk);
                take_waker(&mut state.receiver)
            }
        };
        wake(waker);
    }

    /// Says what comes before all messages.
    pub(crate) fn set_head(&self, metadata: Metadata) {
        let waker = {
            let mut state = self.0.state();
            state.head = Some(metadata);
            state.has_head = true;
            take_waker(&mut state.receiver)
        };
        wake(waker);
    }

    /// Says that all messages are there.
    pub(crate) fn end(&self) {
        self.finish(Ending::Ended, None);
    }

    /// Cuts the pipe, and says why.
    pub(crate) fn fail(&self, status: Status) {
        self.finish(Ending::Cut, Some(status));
    }

    fn finish(&self, ending: Ending, failure: Option<Status>) {
        let waker = {
            let mut state = self.0.state();
            if state.ending != Ending::None {
                return;
            }
            state.ending = ending;
            state.failure = failure;
            take_waker(&mut state.receiver)
        };
        wake(waker);
    }

    /// Wakes somebody each time when the receiver has taken much.
    pub(crate) fn wake_always(&self, waker: Waker) {
        self.0.state().sender = Some(Wakes::Always(waker));
    }

    /// What the receiver has taken since this was asked, if it is much.
    pub(crate) fn take_released(&self) -> Credit {
        let mut state = self.0.state();
        if state.released.is_within(RELEASED) {
            return Credit::default();
        }
        let released = mem::take(&mut state.released);
        Credit {
            messages: u32::try_from(released.messages).unwrap_or(u32::MAX),
            bytes: u32::try_from(released.bytes).unwrap_or(u32::MAX),
        }
    }

    /// Counts what goes in.
    pub(crate) fn meter(&self) -> Meter {
        Meter(Arc::clone(&self.0))
    }
}

impl PipeReceiver {
    /// What is taken out is of a stream with this share.
    pub(crate) fn counted(self, share: Option<&Arc<StreamShare>>) -> Self {
        let mut counted = self;
        counted.1 = share.cloned();
        counted
    }

    /// The share of who sends.
    pub(crate) fn share(&self) -> Option<&Arc<StreamShare>> {
        self.1.as_ref()
    }

    /// What comes first; `None` at the end.
    pub(crate) fn poll_take(&self, context: &mut Context<'_>) -> Poll<Option<Chunk>> {
        let (chunk, waker) = {
            let mut state = self.0.state();
            match state.take() {
                Some(taken) => taken,
                None if state.is_over() => return Poll::Ready(None),
                None => {
                    state.receiver = Some(Wakes::Once(context.waker().clone()));
                    return Poll::Pending;
                }
            }
        };
        wake(waker);
        Poll::Ready(Some(chunk))
    }

    /// What comes first, if it is there.
    pub(crate) fn take(&self) -> Option<Chunk> {
        let (chunk, waker) = self.0.state().take()?;
        wake(waker);
        Some(chunk)
    }

    /// Waits until the sender has said something: metadata, a message or the end.
    pub(crate) fn poll_begun(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.state();
        if state.has_head || !state.chunks.is_empty() || state.is_over() {
            return Poll::Ready(());
        }
        state.receiver = Some(Wakes::Once(context.waker().clone()));
        Poll::Pending
    }

    /// What came before all messages, unless it was taken.
    pub(crate) fn take_head(&self) -> Option<Metadata> {
        self.0.state().head.take()
    }

    /// What the sender has said of the end, if all else was taken.
    pub(crate) fn ending(&self) -> Ending {
        let state = self.0.state();
        match state.chunks.is_empty() {
            true => state.ending,
            false => Ending::None,
        }
    }

    /// Why the sender has cut the pipe, if it has said so.
    pub(crate) fn take_failure(&self) -> Option<Status> {
        self.0.state().failure.take()
    }

    /// Wakes somebody each time when there is something, and at the end.
    pub(crate) fn wake_always(&self, waker: Waker) {
        self.0.state().receiver = Some(Wakes::Always(waker));
    }

    /// Counts what went in.
    pub(crate) fn meter(&self) -> Meter {
        Meter(Arc::clone(&self.0))
    }
}

impl Meter {
    /// All bytes that went in.
    pub(crate) fn passed_bytes(&self) -> u64 {
        self.0.state().passed_bytes
    }
}

impl Drop for PipeSender {
    fn drop(&mut self) {
        self.finish(Ending::Cut, None);
    }
}

impl Drop for PipeReceiver {
    fn drop(&mut self) {
        let (chunks, waker) = {
            let mut state = self.0.state();
            state.is_closed = true;
            let dropped = mem::take(&mut state.held);
            state.released.add(dropped);
            (mem::take(&mut state.chunks), take_waker(&mut state.sender))
        };
        drop(chunks);
        wake(waker);
    }
}

fn take_waker(wakes: &mut Option<Wakes>) -> Option<Waker> {
    match wakes {
        Some(Wakes::Always(waker)) => Some(waker.clone()),
        Some(Wakes::Once(_)) | None => match wakes.take() {
            Some(Wakes::Once(waker)) => Some(waker),
            _ => None,
        },
    }
}

/// Not under the lock: who is woken may come back at once.
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// What a receiver lets its peer send at once, on a connection.
pub(crate) const WINDOW: Credit = Credit {
    messages: 16 << 10,
    bytes: 4 << 20,
};

/// What goes back to the peer at once: half of that, so that credits cost little, and the peer
/// still has the other half.
const RELEASED: Credit = Credit {
    messages: WINDOW.messages / 2,
    bytes: WINDOW.bytes / 2,
};

/// A pipe that has so much takes no more.
const HIGH: Credit = Credit {
    messages: 16 << 10,
    bytes: 1 << 20,
};

/// A pipe that was full has room again when it has no more than this.
const LOW: Credit = Credit {
    messages: HIGH.messages / 2,
    bytes: HIGH.bytes / 2,
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_takes_any_more_gives_its_credits_back() {
        let (sender, receiver) = pipe();
        let push = || sender.push(Chunk::Messages(Buffer::from(vec![0; 600]), 100));
        (0..10).for_each(|_| push());
        drop(receiver);
        let (mut sent, mut given) = (1000, 0);
        for _ in 0..1000 {
            push();
            sent += 100;
            given += sender.take_released().messages;
            assert!(sent - given < WINDOW.messages, "the peer can send");
        }
    }
}
