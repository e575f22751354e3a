//! A link once both ends have its segment: frames into one ring, bytes out of the other.

mod hear;
mod read;
mod sleep;
mod write;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use grpcxx_memory::{Buffer, BufferMut, Leases, OwnFd};
use grpcxx_transport::{
    CloseReason, Frame, Inbound, LinkHandler, LinkId, Next, Outbound, Outcome, Reading, Time,
    TransportError,
};
use rustix::io::Errno;

use crate::bounce::Bounce;
use crate::garbage::Garbage;
use crate::loans::{Borrowed, BorrowedParts, Loans, Orphan, Returns};
use crate::message::WAKE;
use crate::options::ShmOptions;
use crate::ring::{RingReader, RingWriter};
use crate::segment::Segment;
use crate::sight::{BlindSpots, PeerProcess, Sight};
use crate::{ShmCounters, socket};

/// The data path of a link in shared memory.
#[derive(Debug)]
pub struct Channel {
    socket: Arc<OwnFd>,
    segment: Arc<Segment>,
    side: Side,
    writer: RingWriter,
    reader: RingReader,
    outbound: Outbound,
    /// Frames wait for those before them, which are elsewhere.
    is_held: bool,
    inbound: Option<Inbound>,
    /// `inbound` is new or its pause has ended: it must be offered bytes, or the news that there
    /// are none.
    resumed: bool,
    /// What is left of the record that is being read.
    arriving: Option<Arriving>,
    loans: Loans,
    /// The payload that is next, on its way to where it can be lent.
    bouncing: Option<Bouncing>,
    /// What this end has said of what it does with memory that it is lent.
    takes: Option<bool>,
    /// How often the peer had said that a record follows soon.
    soon: u32,
    /// Until when it is believed.
    expected_until: Option<Time>,
    /// Serials of the arenas that the peer knows, in the order in which it was told of them.
    arenas: Vec<u64>,
    /// Its arenas, in the order in which it has told of them.
    peer_arenas: Vec<KnownArena>,
    sight: Sight,
    blind_spots: BlindSpots,
    /// Whether the peer has asked this end to look at its memory.
    has_looked: bool,
    /// Whom this end has told that it reads what is shown.
    peer_process: Option<PeerProcess>,
    /// What the peer has said about where its stream goes on here.
    cut: Option<u64>,
    peer_gone: bool,
    /// Whether the peer may have said more than one look at the socket takes.
    has_unheard: bool,
    mapped_bytes_max: u64,
    lend_bytes_min: usize,
    lent_bytes_max: usize,
    show_bytes_min: usize,
    /// Bytes read since the peer was last asked whether it waits for room.
    freed_bytes: usize,
    /// Frames that are in the ring and not reported.
    complete: VecDeque<Complete>,
}

/// A frame of which all is in the ring, or shown to the peer.
#[derive(Debug)]
struct Complete {
    frame: Box<Frame>,
    /// It has left once so many loans that end with this process are over.
    shown: u64,
}

/// A payload of which a part lies in memory that the peer can map.
#[derive(Debug)]
struct Bouncing {
    memory: BufferMut,
    filled_bytes: usize,
}

/// Which end of a link this is. It writes the lane of its own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Side {
    /// It has dialled and made the segment.
    Dialler = 0,
    /// It was dialled.
    Acceptor = 1,
}

/// A record on its way in.
#[derive(Debug)]
enum Arriving {
    /// Bytes of the ring, and how much padding follows.
    Bytes { left: usize, padding: usize },
    /// Loaned memory, and how much of it was used.
    Loaned { memory: Buffer, used: usize },
    /// Memory that this end has to copy, from where on it has not.
    Elsewhere {
        source: Source,
        at: u64,
        left: u64,
        loan: Borrowed,
    },
}

/// Where bytes lie that are not mapped here.
#[derive(Debug)]
enum Source {
    /// In the peer's process.
    Process,
    /// In the file of an arena.
    File(Arc<OwnedFd>),
}

/// An arena of the peer.
#[derive(Debug)]
struct KnownArena {
    len_bytes: usize,
    access: ArenaAccess,
}

/// How this end gets at an arena of the peer.
#[derive(Debug)]
enum ArenaAccess {
    Mapped {
        leases: Leases,
        borrowed: Arc<BorrowedParts>,
    },
    /// There was no room for it beside the memory of other peers.
    Unmapped(Arc<OwnedFd>),
}

/// How the other end of a stream is.
#[derive(Debug)]
pub(crate) enum Ending {
    /// More may come.
    None,
    /// All was read that will ever come.
    Over(CloseReason),
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Dialler => Self::Acceptor,
            Self::Acceptor => Self::Dialler,
        }
    }
}

impl Channel {
    pub(crate) fn new(
        socket: OwnFd,
        segment: Segment,
        side: Side,
        inbound: Option<Inbound>,
        (options, blind_spots): (&ShmOptions, &BlindSpots),
    ) -> Self {
        let segment = Arc::new(segment);
        Self {
            socket: Arc::new(socket),
            side,
            writer: RingWriter::new(Arc::clone(&segment), side as usize),
            reader: RingReader::new(Arc::clone(&segment), side.other() as usize),
            segment,
            outbound: Outbound::default(),
            is_held: false,
            inbound,
            resumed: true,
            arriving: None,
            loans: Loans::default(),
            bouncing: None,
            takes: None,
            soon: 0,
            expected_until: None,
            arenas: Vec::new(),
            peer_arenas: Vec::new(),
            sight: Sight::default(),
            blind_spots: blind_spots.clone(),
            has_looked: false,
            peer_process: None,
            cut: None,
            peer_gone: false,
            has_unheard: false,
            mapped_bytes_max: options.mapped_bytes_max,
            lend_bytes_min: options.lend_bytes_min,
            lent_bytes_max: options.lent_bytes_max,
            show_bytes_min: options.show_bytes_min,
            freed_bytes: 0,
            complete: VecDeque::new(),
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Starts to take bytes in.
    pub(crate) fn open(&mut self, next: Next) {
        self.inbound = Some(Inbound::new(next));
        self.resumed = true;
    }

    /// Whether [`Channel::open`] was called.
    pub(crate) fn is_open(&self) -> bool {
        self.inbound.is_some()
    }

    /// Lets no frame leave as long as it holds.
    pub(crate) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Frames that were accepted and not reported as sent.
    pub(crate) fn queued_frames(&self) -> usize {
        self.outbound.len() + self.complete.len()
    }

    /// Whether nobody reads any more what this end has written.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.peer_gone || self.reader.end().is_some()
    }

    /// Queues a frame. The first of a turn is written at once, since the peer may wait for it.
    pub(crate) fn push(
        &mut self,
        frame: Box<Frame>,
        bounce: &mut Bounce,
        counters: &mut ShmCounters,
    ) {
        let is_first = self.outbound.is_empty() && self.complete.is_empty();
        self.outbound.push(frame);
        if is_first && !self.is_held {
            let mut budget_bytes = WRITE_BYTES_EARLY;
            while budget_bytes > 0
                && !self.outbound.is_empty()
                // What is wrong with the ring is found out by the next turn too.
                && let Ok(Some(written)) = self.write_record(budget_bytes, bounce, counters)
            {
                budget_bytes -= written.min(budget_bytes);
            }
        }
    }

    /// Ends a pause; the order comes back if there is none.
    pub(crate) fn resume(&mut self, next: Next) -> Result<(), Next> {
        let Some(inbound) = &mut self.inbound else {
            return Err(next);
        };
        inbound.resume(next)?;
        self.resumed = true;
        Ok(())
    }

    /// How far reading has come, once bytes are taken in.
    pub(crate) fn reading(&self) -> Option<Reading> {
        self.inbound.as_ref().map(Inbound::reading)
    }

    /// Whether the peer's stream is over and read to its end.
    pub(crate) fn ending(&mut self) -> Result<Ending, Garbage> {
        let is_paused = self.inbound.as_ref().is_none_or(Inbound::is_paused);
        if is_paused || self.resumed || self.arriving.is_some() {
            return Ok(Ending::None);
        }
        // In this order: what was written before the end counts.
        let (end, is_gone) = (self.reader.end(), self.peer_gone);
        if end.is_none() && !is_gone || self.reader.available()? > 0 {
            return Ok(Ending::None);
        }
        let message = match end {
            Some(true) => return Ok(Ending::Over(CloseReason::EndOfStream)),
            Some(false) => "the link has failed at the peer's end",
            None => "the peer is gone without a farewell; its process has ended",
        };
        Ok(Ending::Over(CloseReason::Failed(TransportError {
            operation: "read shared memory".to_owned(),
            errno: 0,
            message: message.to_owned(),
        })))
    }

    /// Ends this side's stream and gives back what it holds. Returns the number of events, and the
    /// loans that last.
    pub(crate) fn finish<A>(
        mut self,
        link: LinkId,
        reason: &CloseReason,
        handler: &mut dyn LinkHandler<A>,
    ) -> (usize, Option<Orphan>) {
        let mut events = 0;
        if let Some(inbound) = &mut self.inbound {
            events += inbound.lose(link, handler);
        }
        self.loans.take_back(&self.writer);
        // A peer that still reads takes what is in the ring, and what was shown to it.
        let read = match self.is_abandoned() {
            true => self.loans.read(),
            false => self.loans.shown(),
        };
        for Complete { frame, shown } in self.complete.drain(..) {
            let outcome = if shown <= read {
                Outcome::Done
            } else {
                Outcome::Lost
            };
            handler.sent(link, frame, outcome);
            events += 1;
        }
        while let Some(frame) = self.outbound.pop() {
            handler.sent(link, frame, Outcome::Lost);
            events += 1;
        }
        // Given back before the peer looks.
        self.arriving = None;
        for arena in &self.peer_arenas {
            if let ArenaAccess::Mapped { borrowed, .. } = &arena.access {
                borrowed.let_go(&self.returns());
            }
        }
        self.writer.end(!matches!(reason, CloseReason::Failed(_)));
        // Who sleeps learns of it even if the socket stays open for the sake of loans.
        let _ = socket::send(&*self.socket, &WAKE, None);
        if self.peer_gone {
            self.loans.release();
        }
        let orphan = (!self.loans.is_empty()).then(|| {
            let loans = std::mem::take(&mut self.loans);
            Orphan::new(loans, self.writer, self.reader, self.socket)
        });
        (events, orphan)
    }

    /// Wakes the peer if it sleeps for want of what was just published.
    fn knock(&self, published: u32, counters: &mut ShmCounters) {
        let peer = self.side.other() as usize;
        if self.segment.must_wake(peer, published) {
            counters.wakes += 1;
            // A full socket wakes as well, and a closed one is found out otherwise.
            let _ = socket::send(&*self.socket, &WAKE, None);
        }
    }

    /// Whether the first complete frame can be reported.
    fn has_left(&self) -> bool {
        let first = self.complete.front();
        first.is_some_and(|first| first.shown <= self.loans.read())
    }

    /// The way back for what the peer lends.
    fn returns(&self) -> Returns {
        Returns {
            segment: Arc::clone(&self.segment),
            lane: self.side.other() as usize,
            _socket: Arc::clone(&self.socket),
        }
    }
}

/// An error of the system.
pub(crate) fn failure(operation: &str, errno: Errno) -> TransportError {
    TransportError::from_io(operation, &errno.into())
}

/// The error of a link whose peer broke the rules of the segment.
pub(crate) fn broken(message: &str) -> TransportError {
    TransportError {
        operation: "read shared memory".to_owned(),
        errno: 0,
        message: format!("the peer broke the protocol: {message}"),
    }
}

impl From<Garbage> for TransportError {
    fn from(garbage: Garbage) -> Self {
        broken(&garbage.to_string())
    }
}

/// Bytes of a frame that leave before the next turn.
const WRITE_BYTES_EARLY: usize = 64 << 10;

/// Arenas of a peer that one link maps.
const ARENAS_MAX: usize = 64;

/// Arenas of a peer that one link knows and has not mapped: each keeps a descriptor open.
const ARENAS_UNMAPPED_MAX: usize = 16;
