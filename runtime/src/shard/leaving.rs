//! How connections leave: the rules.
//!
//! An original that is reset while it writes, or whose peer closes with bytes unread, may never
//! send again, to anybody. So this side ends its stream towards a peer that has announced nothing,
//! and takes what that one still sends, within a time and a number of bytes. A client is done when
//! the peer owes no answer; originals never close their side. A server is done when its client has
//! closed, or was quiet for a while. A peer that announced itself is left at once.

use std::time::Duration;

use grpcxx_rpc::{ClientConnection, Code, PeerViolation, Reason, Status};
use grpcxx_transport::{CloseReason, LinkId, SlotId, SlotTable, Time};

/// How long, and how much, a connection that is left still takes from a peer that has announced
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainLimits {
    /// The whole time.
    pub time: Duration,
    /// Time without a byte after which a peer that owes nothing counts as done.
    pub quiet: Duration,
    /// Most bytes that nobody can read as answers.
    pub bytes: u64,
}

impl DrainLimits {
    /// These limits with what `change` sets; fields that it leaves alone keep their values.
    ///
    /// ```
    /// use grpcxx_runtime::DrainLimits;
    ///
    /// let limits = DrainLimits::default().with(|limits| limits.bytes = 1 << 20);
    /// assert_eq!(limits.bytes, 1 << 20);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for DrainLimits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(5),
            quiet: Duration::from_millis(500),
            bytes: 1 << 30,
        }
    }
}

/// Why a connection is left.
#[derive(Debug)]
pub(super) enum Why {
    /// The program wants it.
    Asked,
    /// The peer broke the protocol.
    Violation(PeerViolation),
    /// The engine stops.
    Stopping,
}

/// A connection that ends its stream and takes what the peer still sends.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) link: LinkId,
    /// The address of the other end, for the log.
    pub(super) peer: Option<String>,
    pub(super) user: User,
    /// When patience ends.
    pub(super) until: Time,
    /// When the peer was last heard; `None` if it owes answers, so that its silence means nothing.
    pub(super) heard: Option<Time>,
    /// Bytes that may come beyond answers.
    pub(super) bytes_left: u64,
    /// Whether the link was told to close once what is to be dropped has come.
    pub(super) is_closing: bool,
    pub(super) armed: Option<Time>,
}

/// The connections that a shard leaves.
#[derive(Debug)]
pub(super) struct Departures {
    /// Connections to be left before the turn is over.
    pub(super) due: Vec<(LinkId, Why)>,
    /// Connections that take what their peers still send.
    pub(super) leaving: SlotTable<Leaving>,
    /// Those of which something was heard.
    pub(super) heard: Vec<SlotId>,
    pub(super) limits: DrainLimits,
}

/// Who had the connection.
#[derive(Debug)]
pub(super) enum User {
    /// A client. It reads answers as long as it can tell where they are.
    Client(Option<Box<ClientConnection>>),
    /// A server, which waits for what became of its answers.
    Server(SlotId),
}

/// A connection without its user.
pub(super) struct Left {
    pub(super) user: User,
    /// Whether the peer may be silent and yet about to send.
    pub(super) owes: bool,
}

/// How far a connection has come with leaving.
pub(super) enum Progressed {
    Going { next: Time },
    Done,
    Over(&'static str),
}

impl Why {
    /// Whether what is queued leaves first, towards a peer that is left at once.
    pub(super) fn flushes(&self) -> bool {
        matches!(self, Self::Stopping)
    }

    /// What callers hear whose calls end by it.
    pub(super) fn status(&self, address: &str) -> Status {
        let (reason, text) = match self {
            Self::Violation(PeerViolation::Unproven(why)) => {
                let text = format!("{address} was not called: {why}");
                return Status::new(Code::Unauthenticated, text).because(Reason::Unproven);
            }
            Self::Violation(violation) => (
                Reason::PeerViolation,
                format!("{address} broke the protocol, and was cut off: {violation}"),
            ),
            Self::Asked | Self::Stopping => (
                Reason::ConnectionLost,
                format!(
                    "the connection to {address} was lost: {}",
                    CloseReason::Local
                ),
            ),
        };
        Status::new(Code::Unavailable, text).because(reason)
    }
}

impl Departures {
    /// None yet, of at most so many links.
    pub(super) fn new(limits: DrainLimits, links: usize) -> Self {
        Self {
            due: Vec::new(),
            leaving: SlotTable::new(links),
            heard: Vec::new(),
            limits,
        }
    }
}

impl Leaving {
    pub(super) fn progressed(&self, now: Time, limits: &DrainLimits) -> Progressed {
        if now >= self.until {
            return Progressed::Over("its time is over");
        }
        if self.bytes_left == 0 {
            return Progressed::Over("it sent too much");
        }
        if self.is_closing {
            return Progressed::Going { next: self.until };
        }
        if let User::Client(Some(connection)) = &self.user
            && connection.is_drained()
        {
            return Progressed::Done;
        }
        match self.heard.map(|heard| heard + limits.quiet) {
            Some(at) if now >= at => Progressed::Done,
            Some(at) => Progressed::Going {
                next: at.min(self.until),
            },
            None => Progressed::Going { next: self.until },
        }
    }
}
