//! One RDMA link: its queue, its streams, and its life.

use std::collections::VecDeque;

use grpcxx_transport::{CloseReason, Inbound, LinkId, Time, TransportError};

use crate::adapter::{Adapter, QueueTag};
use crate::credits::{CreditLimits, Credits};
use crate::incoming::Incoming;
use crate::outbound::Outbound;
use crate::queue_context::QueueContext;
use crate::registry::Lease;
use crate::wire::{HEADER_BYTES, Malformed};

/// One RDMA link.
pub(crate) struct Link<A: Adapter> {
    pub(crate) phase: Phase,
    pub(crate) tag: QueueTag,
    /// There once this side's queue exists.
    pub(crate) context: Option<QueueContext<A::Queue>>,
    /// There once the link is established, but for the time of a read, which holds it.
    pub(crate) inbound: Option<Inbound>,
    /// `inbound` is new or its pause has ended: it must be offered bytes, or the news that there
    /// are none.
    pub(crate) resumed: bool,
    pub(crate) incoming: Incoming,
    pub(crate) outbound: Outbound<Lease>,
    /// There once the peer's set-up data is known.
    pub(crate) peer: Option<Peer>,
    /// Keep the targets of the present reads registered, oldest first.
    pub(crate) targets: VecDeque<Option<A::Registration>>,
    /// Bytes of offers that were read and whose release the peer was not sent.
    pub(crate) unreleased_bytes: usize,
    pub(crate) side: Side,
    /// Whether the work list has the link.
    pub(crate) queued: bool,
    /// No frame leaves: those before are elsewhere.
    pub(crate) is_held: bool,
    /// By which id events are reported, if that is not the link's own.
    pub(crate) owner: Option<LinkId>,
}

/// A link that is gone.
pub(crate) struct Gone {
    pub(crate) id: LinkId,
    /// By which id its events were reported.
    pub(crate) reported_as: LinkId,
    pub(crate) reason: CloseReason,
}

/// What is known of the other end.
pub(crate) struct Peer {
    pub(crate) credits: Credits,
    pub(crate) limits: CreditLimits,
    /// Longest message that both ends take.
    pub(crate) message_bytes: usize,
    /// Whether the peer's queue is known to be up: a message to a queue that is not is lost.
    pub(crate) is_up: bool,
}

/// The life of a link.
#[derive(Debug)]
pub(crate) enum Phase {
    /// This side waits for the peer's set-up data.
    Preparing,
    /// Bytes flow both ways.
    Open,
    /// Accepted frames leave; nothing is read.
    Flushing {
        /// When patience ends; set in the turn after the close.
        until: Option<Time>,
    },
    /// The peer's stream has ended; it waits for the word that its last offers were read.
    Parting {
        /// When patience ends; set in the next turn.
        until: Option<Time>,
    },
    /// Over.
    Ended(CloseReason),
}

/// The connection beside the queue, which tells when the peer is gone.
#[derive(Debug)]
pub(crate) enum Side {
    Up,
    /// It ended for this reason. What arrived before is still read.
    Lost {
        reason: CloseReason,
        /// In the first turn after it.
        since: Option<Time>,
        /// Long enough ago that nothing more arrives.
        is_settled: bool,
    },
}

impl<A: Adapter> Link<A> {
    pub(crate) fn new(phase: Phase, inbound: Option<Inbound>) -> Self {
        Self {
            phase,
            tag: QueueTag {
                slot: 0,
                generation: 0,
            },
            context: None,
            inbound,
            resumed: true,
            incoming: Incoming::new(HEADER_BYTES),
            outbound: Outbound::new(),
            peer: None,
            targets: VecDeque::new(),
            unreleased_bytes: 0,
            side: Side::Up,
            queued: false,
            is_held: false,
            owner: None,
        }
    }

    /// By which id events of the link `id` are reported.
    pub(crate) fn reported_as(&self, id: LinkId) -> LinkId {
        self.owner.unwrap_or(id)
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    /// Whether the peer's connection has ended so long ago that nothing more arrives.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(
            self.side,
            Side::Lost {
                is_settled: true,
                ..
            }
        )
    }

    /// Whether the peer does not know yet of all offers that were read.
    pub(crate) fn owes_releases(&self) -> bool {
        (self.peer.as_ref()).is_some_and(|peer| peer.credits.owes_releases())
    }

    /// Whether payload is being read.
    pub(crate) fn is_reading(&self) -> bool {
        (self.context.as_ref()).is_some_and(|context| context.reading_count() > 0)
    }

    /// Ends the link, unless that has happened already.
    pub(crate) fn end(&mut self, reason: CloseReason) {
        if !self.is_ended() {
            self.phase = Phase::Ended(reason);
        }
    }

    /// Ends the link because of its queue. The connection beside it knows better, if that has
    /// ended.
    pub(crate) fn fail(&mut self, operation: &str, message: impl Into<String>) {
        self.fail_with(TransportError {
            operation: operation.to_owned(),
            errno: 0,
            message: message.into(),
        });
    }

    pub(crate) fn fail_with(&mut self, error: TransportError) {
        let reason = match (&self.phase, &self.side) {
            // The peer needs its queue no longer once it has read the end.
            (Phase::Flushing { .. }, _) if self.outbound.is_flushed() => CloseReason::Local,
            (Phase::Parting { .. }, _) => CloseReason::EndOfStream,
            (_, Side::Lost { reason, .. }) => reason.clone(),
            (_, Side::Up) => CloseReason::Failed(error),
        };
        self.end(reason);
    }

    pub(crate) fn violate(&mut self, malformed: Malformed) {
        self.end(CloseReason::Failed(TransportError {
            operation: "read a message of an RDMA link".to_owned(),
            errno: 0,
            message: malformed.to_string(),
        }));
    }

    /// Ends the link as the connection beside it did, once all that arrived is read.
    pub(crate) fn end_as_side(&mut self) {
        if let Side::Lost { reason, .. } = &self.side {
            let reason = reason.clone();
            self.end(reason);
        }
    }
}
