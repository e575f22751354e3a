//! What a shard has of a stream: the ends of its pipes that are not its user's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use grpcxx_rpc::StreamEvent;

use super::pipe::{Chunk, PipeReceiver, PipeSender};

/// The ends of the pipes of one stream that are not its user's.
#[derive(Debug)]
pub(crate) struct StreamEnds {
    /// What the user sends.
    pub(crate) outgoing: PipeReceiver,
    /// What the user takes.
    pub(crate) incoming: PipeSender,
    /// Whether the shard knows that it is to look.
    is_rung: Arc<AtomicBool>,
    /// Whether the peer knows that no message follows.
    pub(crate) has_ended: bool,
    /// Whether the peer has credits for the whole window.
    pub(crate) has_window: bool,
}

impl StreamEnds {
    pub(crate) fn new(outgoing: PipeReceiver, incoming: PipeSender) -> Self {
        Self {
            outgoing,
            incoming,
            is_rung: Arc::default(),
            has_ended: false,
            has_window: false,
        }
    }

    /// Lets a shard hear of what the user does, through a waker that does nothing while `is_rung`
    /// is set.
    pub(super) fn hang(&mut self, waker: &Waker, is_rung: Arc<AtomicBool>) {
        self.outgoing.wake_always(waker.clone());
        self.incoming.wake_always(waker.clone());
        self.is_rung = is_rung;
    }

    /// Notes that the shard looks now: what comes from here on rings again.
    pub(crate) fn look(&self) {
        self.is_rung.store(false, Ordering::SeqCst);
    }

    /// Hands the user what has come. Returns whether it is time to send more.
    pub(crate) fn take(&self, event: StreamEvent) -> bool {
        match event {
            StreamEvent::Messages(run, count) => self.incoming.push(Chunk::Messages(run, count)),
            StreamEvent::Part { bytes, is_last } => {
                self.incoming.push(Chunk::Part { bytes, is_last });
            }
            StreamEvent::Head(metadata) => self.incoming.set_head(metadata),
            StreamEvent::Ended => self.incoming.end(),
            StreamEvent::Drained => return true,
        }
        false
    }
}
