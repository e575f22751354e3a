//! What a medium must be able to do for links to migrate to it.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::LinkRegistry;
use crate::{CloseReason, Frame, LinkHandler, LinkId, Next, Reading, Refusal, Time};

/// What carries a link that has migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumKind {
    /// Rings and arenas that two processes of a host map.
    SharedMemory,
    /// A reliable queue pair of an RDMA device.
    Rdma,
}

impl MediumKind {
    /// Its name in logs, metrics and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shm",
            Self::Rdma => "rdma",
        }
    }
}

impl fmt::Display for MediumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Links of one kind, and the handshake by which two ends agree to migrate to one.
///
/// [`Migrating`](super::Migrating) owns the order of events: which frames still leave on the base
/// transport, when the medium reads, and when a link is gone. A medium talks to its peer, and calls
/// the [`LinkRegistry`] with what the two have agreed.
pub trait Medium: Sized {
    /// What the medium keeps of a link that has not migrated.
    type Handshake: Default;

    /// The medium's end of a link that has migrated.
    type Link;

    /// Which medium this is.
    const KIND: MediumKind;

    /// Whether frames wait while the peer is asked, because its answer decides where they go.
    const HOLDS_FRAMES: bool;

    /// How long a peer may take to answer before [`Medium::give_up`].
    const ANSWER_TIME_MAX: Duration;

    /// How long the medium counts as busy after an event. Meanwhile the base transport has few
    /// turns, since each costs a system call.
    const BUSY_TIME: Duration;

    /// Divides an offer: what the base transport can use, and what this medium can use. Either may
    /// be empty.
    fn split_offer(offer: &[u8]) -> (&[u8], &[u8]);

    /// Where the peer's record begins in bytes that came on the base transport.
    ///
    /// A record is [`HEAD_BYTES_MAX`](crate::HEAD_BYTES_MAX) long and lies between two frames. A
    /// medium whose handshake has a channel of its own has none, and calls [`LinkRegistry::cut`]
    /// instead.
    fn find_record(handshake: &Self::Handshake, bytes: &[u8]) -> Option<usize>;

    /// Descriptors that become readable when the medium has work.
    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2];

    /// Appends what the peer of an accepted link needs to ask for it.
    fn offer(&mut self, id: LinkId, handshake: &mut Self::Handshake, offer: &mut Vec<u8>);

    /// Asks the peer of a dialled link to migrate. `lower` is the part of the peer's offer that the
    /// base transport was given.
    fn ask(&mut self, links: &mut LinkRegistry<Self>, id: LinkId, lower: &[u8], offer: &[u8]);

    /// Takes the peer's record; the medium shall read on with `next` if the link migrates. Returns
    /// whether the peer may send more on the base transport.
    fn take_record(
        &mut self,
        links: &mut LinkRegistry<Self>,
        id: LinkId,
        record: &[u8],
        next: Next,
    ) -> bool;

    /// The peer did not answer in time.
    fn give_up(&mut self, links: &mut LinkRegistry<Self>, id: LinkId);

    /// Lets go of a handshake whose link is gone.
    fn abandon(&mut self, handshake: Self::Handshake);

    /// Whether a link takes one more frame.
    ///
    /// # Errors
    /// It does not: the queue is full, or the link is not open.
    fn check_room(&mut self, link: &Self::Link) -> Result<(), Refusal>;

    /// Queues a frame, also beyond the limit of [`Medium::check_room`].
    fn push(&mut self, link: &mut Self::Link, frame: Box<Frame>);

    /// Lets no frame leave until the base transport has given back those before it.
    fn hold(&mut self, link: &mut Self::Link, is_held: bool);

    /// Begins to read.
    fn open(&mut self, link: &mut Self::Link, next: Next);

    /// Ends a pause.
    ///
    /// # Errors
    /// The order comes back: the link is not open, or not paused.
    fn resume(&mut self, link: &mut Self::Link, next: Next) -> Result<(), crate::Refused<Next>>;

    /// How far a link has come with reading. `None` if it reads nothing.
    fn reading(&mut self, link: &mut Self::Link) -> Option<Reading>;

    /// Closes a link; with `flush`, frames already accepted leave first.
    fn close(&mut self, link: &mut Self::Link, flush: bool);

    /// Ends a link at once, for this reason.
    fn end(&mut self, link: &mut Self::Link, reason: CloseReason);

    /// The base transport has lost the link. Returns the peer's cut if it became known only now.
    fn base_lost(&mut self, link: &mut Self::Link, reason: &CloseReason) -> Option<u64>;

    /// Hears what peers have to say, before the links have their turn.
    fn listen(&mut self, links: &mut LinkRegistry<Self>, now: Time);

    /// Does a bounded amount of work on links that have migrated, and calls [`LinkRegistry::leave`]
    /// for each that is gone. Returns the number of events.
    fn turn<A>(
        &mut self,
        links: &mut LinkRegistry<Self>,
        now: Time,
        handler: &mut dyn LinkHandler<A>,
    ) -> usize;

    /// Lets frames leave that were queued since the last turn.
    fn submit(&mut self);

    /// Frames accepted and not yet reported as sent, over all links.
    fn frames_in_flight(&self) -> usize;

    /// Prepares for sleep; false if there is work already.
    fn arm(&mut self, links: &mut LinkRegistry<Self>) -> bool;

    /// Ends the preparation for sleep.
    fn disarm(&mut self, links: &mut LinkRegistry<Self>);

    /// How long a sleep may last because of links that only a clock moves on.
    fn patience(&mut self, links: &mut LinkRegistry<Self>) -> Option<Duration>;

    /// Whether a handshake waits for a time.
    fn is_waiting(&self) -> bool;
}
