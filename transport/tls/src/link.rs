//! One link that is TLS, or may become it: its handshake, its records, its end.

use std::net::SocketAddr;

use grpcxx_memory::BufferMut;
use grpcxx_transport::{CloseReason, Frame, Inbound, LinkId, Next, TransportError};

use crate::handshake::Handshake;
use crate::outbound::Outbound;
use crate::session::Session;

/// One link that is TLS, or may become it.
pub(crate) struct TlsLink {
    pub(crate) id: LinkId,
    pub(crate) peer: SocketAddr,
    pub(crate) phase: Phase,
    /// Frames that the user has given, of which not all has left.
    pub(crate) outbound: Outbound,
    /// Frames at the front of `outbound` that have left, of which the user is not told yet.
    pub(crate) left_frames: u64,
    /// Frames with records, and with messages of the handshake, that the base transport has.
    pub(crate) base_frames: usize,
    /// Those of them that hold data.
    pub(crate) base_data_frames: usize,
    /// Records that the base transport had no room for.
    pub(crate) unsent: Option<Box<Frame>>,
    pub(crate) closing: Option<Closing>,
    /// Why the link ends, once that is decided.
    pub(crate) over: Option<CloseReason>,
    /// Whether the base transport closes it once it has sent what it has: an alert.
    pub(crate) is_leaving: bool,
    /// Whether the list of links with something to seal has it.
    pub(crate) is_dirty: bool,
    /// Whether the list of links that go on in the next turn has it.
    pub(crate) is_due: bool,
}

/// The life of a link.
pub(crate) enum Phase {
    /// The dial is on its way.
    Dialling,
    /// Accepted; the first byte tells whether it is TLS.
    Undecided {
        /// What the user wants first.
        next: Next,
        /// Whether it may do without TLS.
        may_be_plain: bool,
    },
    /// It is not TLS; frames that waited for that are still to be passed on.
    Plain,
    /// The ends agree on keys.
    Handshaking {
        /// What has come so far.
        handshake: Pending,
        /// What the user of an accepted link wants first.
        next: Option<Next>,
    },
    /// Records go both ways.
    Open(Box<OpenLink>),
    /// Nothing is left but the end.
    Over,
}

/// A handshake that has begun, or waits until it may.
pub(crate) enum Pending {
    /// Too many are under way.
    Waiting(Vec<u8>),
    /// Under way.
    Begun(Box<Handshake>),
}

/// What an open link has.
pub(crate) struct OpenLink {
    pub(crate) session: Session,
    pub(crate) inbound: Inbound,
    /// Records that came and could not be opened yet: the user has paused the link.
    pub(crate) staged: Option<Staged>,
}

/// Records in memory of the link.
pub(crate) struct Staged {
    pub(crate) buffer: BufferMut,
    /// Opened up to here.
    pub(crate) from: usize,
    /// Filled up to here.
    pub(crate) to: usize,
}

/// How a link is closed by its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// At once.
    Now,
    /// Once its frames have left.
    Flush,
}

impl TlsLink {
    pub(crate) fn new(id: LinkId, peer: SocketAddr, phase: Phase) -> Box<Self> {
        Box::new(Self {
            id,
            peer,
            phase,
            outbound: Outbound::default(),
            left_frames: 0,
            base_frames: 0,
            base_data_frames: 0,
            unsent: None,
            closing: None,
            over: None,
            is_leaving: false,
            is_dirty: false,
            is_due: false,
        })
    }

    /// Whether nobody has closed it, and nothing has ended it.
    pub(crate) fn is_open(&self) -> bool {
        self.closing.is_none() && self.over.is_none()
    }

    /// Whether its user may send frames: those of an accepted link wait for the handshake.
    pub(crate) fn takes_frames(&self) -> bool {
        let may_send = match &self.phase {
            Phase::Undecided { .. } | Phase::Plain | Phase::Open(_) => true,
            Phase::Handshaking { next, .. } => next.is_some(),
            Phase::Dialling | Phase::Over => false,
        };
        may_send && self.is_open()
    }

    /// Whether the peer counts on this end, because it may be done with its handshake.
    pub(crate) fn owes_handshake(&self) -> bool {
        matches!(self.phase, Phase::Handshaking { next: Some(_), .. })
    }

    /// Ends the link, unless that is decided already.
    pub(crate) fn fail(&mut self, what: &str, message: String) {
        self.end_by(CloseReason::Failed, what, message);
    }

    /// Ends the link because one end does not accept the certificate of the other, unless its end
    /// is decided already.
    pub(crate) fn distrust(&mut self, what: &str, message: String) {
        self.end_by(CloseReason::Untrusted, what, message);
    }

    fn end_by(&mut self, reason: fn(TransportError) -> CloseReason, what: &str, message: String) {
        let peer = self.peer;
        self.over.get_or_insert_with(|| {
            reason(TransportError {
                operation: format!("{what} {peer}"),
                errno: 0,
                message,
            })
        });
    }
}
