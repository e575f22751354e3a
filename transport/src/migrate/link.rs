//! One link that can migrate: its stream on the base transport, and where that goes on.

use std::collections::VecDeque;

use super::Medium;
use crate::{CloseReason, Ends, Frame, LinkId, Next, Time, TransportError};

/// One link of a [`Migrating`](super::Migrating) transport.
pub struct MigratingLink<M: Medium> {
    /// The link of the base transport, while it is there.
    pub(super) base: Option<LinkId>,
    /// The addresses of the base transport's connection, known once the link may migrate.
    pub(super) ends: Option<Ends>,
    /// Bytes of all frames that the base transport has accepted.
    pub(super) sent_bytes: u64,
    /// Frames that the base transport has accepted and not given back, with the record.
    pub(super) base_frames: usize,
    /// Bytes of the base transport that the handler is done with.
    taken_bytes: u64,
    /// What the base transport was told to do next.
    order: Order,
    /// How many bytes of the base transport the peer's stream has before it goes on in the medium.
    cut: Option<u64>,
    /// Whether the medium reads.
    pub(super) reads_medium: bool,
    pub(super) stage: Stage<M>,
    pub(super) question: Question,
    /// A record that the base transport has not accepted.
    pub(super) record: Option<Box<Frame>>,
    /// A record that the base transport has accepted: how many frames are before it.
    pub(super) record_after: Option<usize>,
    /// Frames that wait for the answer, or for room on the base transport behind it.
    pub(super) held: VecDeque<Box<Frame>>,
    pub(super) closing: Option<Closing>,
    /// Why the link ends, once that is decided.
    pub(super) over: Option<CloseReason>,
}

/// Where the frames of a link go.
pub(super) enum Stage<M: Medium> {
    /// To the base transport.
    Base(M::Handshake),
    /// To the medium.
    Migrated(M::Link),
    /// Nowhere: the medium's end is gone.
    Left,
}

/// Whether the peer was asked to migrate.
pub(super) enum Question {
    None,
    Asked {
        /// In the first turn after it.
        since: Option<Time>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    Flush,
    Now,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Head { at_least_bytes: usize },
    Land { bytes: u64 },
    Paused,
}

impl<M: Medium> MigratingLink<M> {
    pub(super) fn new() -> Self {
        Self {
            base: None,
            ends: None,
            sent_bytes: 0,
            base_frames: 0,
            taken_bytes: 0,
            order: Order::Head { at_least_bytes: 1 },
            cut: None,
            reads_medium: false,
            stage: Stage::Base(M::Handshake::default()),
            question: Question::None,
            record: None,
            record_after: None,
            held: VecDeque::new(),
            closing: None,
            over: None,
        }
    }

    /// Bytes of the stream that the base transport carries: where this end's cut is if it migrates
    /// now.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// The addresses of the connection that the link began on, where its transport knows them. Who
    /// asks for the link elsewhere, and sees the same, is the peer of that connection.
    pub fn ends(&self) -> Option<Ends> {
        self.ends
    }

    /// The handshake, unless the link has migrated or is about to end.
    pub fn handshake(&mut self) -> Option<&mut M::Handshake> {
        match &mut self.stage {
            Stage::Base(handshake) if self.over.is_none() => Some(handshake),
            Stage::Base(_) | Stage::Migrated(_) | Stage::Left => None,
        }
    }

    /// The medium's end of the link, once it has migrated.
    pub fn migrated(&mut self) -> Option<&mut M::Link> {
        match &mut self.stage {
            Stage::Migrated(link) => Some(link),
            Stage::Base(_) | Stage::Left => None,
        }
    }

    /// Whether nobody has closed the link.
    pub fn is_open(&self) -> bool {
        self.closing.is_none() && self.over.is_none()
    }

    /// Whether the base transport still has the link.
    pub fn has_base(&self) -> bool {
        self.base.is_some()
    }

    /// Whether the end of the link is decided.
    pub fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Whether the base transport still carries or awaits a record of this end.
    pub fn has_record(&self) -> bool {
        self.record.is_some() || self.record_after.is_some()
    }

    /// Whether this end has asked, and has no answer.
    pub(super) fn is_asked(&self) -> bool {
        matches!(self.question, Question::Asked { .. })
    }

    /// Whether frames of a link that has not migrated must wait.
    pub(super) fn holds_frames(&self) -> bool {
        M::HOLDS_FRAMES && self.is_asked()
    }

    /// Whether the base transport is paused.
    pub(super) fn is_paused(&self) -> bool {
        self.order == Order::Paused
    }

    /// What the handler wants to see of the base transport at least.
    pub(super) fn head_bytes(&self) -> usize {
        match self.order {
            Order::Head { at_least_bytes } => at_least_bytes.max(1),
            Order::Land { .. } | Order::Paused => 1,
        }
    }

    /// Notes that the handler is done with bytes of the base transport.
    pub(super) fn take(&mut self, bytes: usize) {
        self.taken_bytes += bytes as u64;
    }

    /// Notes that the landing of the last order is full. It may have had bytes before, which are
    /// not of the link.
    pub(super) fn take_landing(&mut self) {
        if let Order::Land { bytes } = self.order {
            self.taken_bytes += bytes;
        }
    }

    /// Notes an order that the base transport takes.
    pub(super) fn note(&mut self, next: &Next) {
        self.order = match next {
            Next::Head { at_least_bytes } => Order::Head {
                at_least_bytes: *at_least_bytes,
            },
            Next::Land(landing) => Order::Land {
                bytes: landing.remaining_bytes() as u64,
            },
            Next::Discard {
                bytes,
                then_at_least_bytes,
            } => {
                self.taken_bytes += bytes;
                Order::Head {
                    at_least_bytes: *then_at_least_bytes,
                }
            }
            Next::Pause => Order::Paused,
        };
    }

    /// Divides an order of the handler at the peer's cut: returns what the base transport shall do,
    /// and lets the medium do what is beyond.
    pub(super) fn steer(&mut self, next: Next, medium: Option<&mut M>) -> Next {
        let (Some(cut), Some(medium)) = (self.cut, medium) else {
            self.note(&next);
            return next;
        };
        if self.taken_bytes == cut {
            self.open(next, medium);
            return Next::Pause;
        }
        if let Next::Discard {
            bytes,
            then_at_least_bytes,
        } = next
            && self.taken_bytes < cut
            && bytes >= cut - self.taken_bytes
        {
            let base_bytes = cut - self.taken_bytes;
            self.taken_bytes = cut;
            let beyond = Next::Discard {
                bytes: bytes - base_bytes,
                then_at_least_bytes,
            };
            self.open(beyond, medium);
            return Next::Discard {
                bytes: base_bytes,
                then_at_least_bytes,
            };
        }
        self.note(&next);
        self.check_cut(medium);
        next
    }

    /// Takes the peer's cut. The medium reads at once if all bytes before it are dealt with.
    pub(super) fn cut(&mut self, cut: u64, medium: &mut M) {
        self.cut = Some(cut);
        if self.reads_medium {
            return;
        }
        if self.taken_bytes == cut {
            match self.order {
                Order::Head { at_least_bytes } => self.open(Next::Head { at_least_bytes }, medium),
                Order::Paused => self.open(Next::Pause, medium),
                Order::Land { .. } => {}
            }
        }
        self.check_cut(medium);
    }

    /// Ends the link if the peer's cut cannot be: it lies between frames, and so never in a
    /// landing.
    fn check_cut(&mut self, medium: &mut M) {
        let needed_bytes = match self.order {
            Order::Land { bytes } => self.taken_bytes + bytes,
            Order::Head { .. } | Order::Paused => self.taken_bytes,
        };
        if !self.reads_medium && self.cut.is_some_and(|cut| cut < needed_bytes) {
            self.end(broken::<M>("the peer migrates within a frame"), medium);
        }
    }

    fn open(&mut self, next: Next, medium: &mut M) {
        if let Stage::Migrated(link) = &mut self.stage {
            medium.open(link, next);
            self.reads_medium = true;
        }
    }

    /// Ends the medium's part of a link, which ends the link.
    pub(super) fn end(&mut self, reason: CloseReason, medium: &mut M) {
        if let Stage::Migrated(link) = &mut self.stage {
            medium.end(link, reason);
        }
    }
}

/// Why a link ends whose ends do not agree.
pub(super) fn broken<M: Medium>(what: &str) -> CloseReason {
    CloseReason::Failed(TransportError {
        operation: format!("migrate a link to {}", M::KIND),
        errno: 0,
        message: what.to_owned(),
    })
}
