use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use grpcxx_memory::forks::{self, Inherited, Kept};
use grpcxx_memory::{Buffer, Lender, OwnFd};

use crate::memory::PeerArena;
use crate::ring::{LOANS_MAX, RingReader, RingWriter};
use crate::segment::Segment;
use crate::socket;

/// Memory that the peer may read until it gives it back.
///
/// What is still lent when this is dropped is never used again by anybody: its owner cannot know
/// when the peer is done with it.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    slots: Vec<Option<Loan>>,
    free: Vec<u16>,
    bytes: usize,
    /// How many loans that end with this process there were, and how many of them are over.
    shown: u64,
    read: u64,
}

#[derive(Debug)]
struct Loan {
    memory: Buffer,
    access: Access,
}

/// How the peer gets at what it was lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It maps the memory too, and has it as long as it likes.
    Mapped,
    /// It reads out of this process, as long as that lives.
    RemoteReadable,
}

/// Loans of a link that is gone. They last until the peer has given all of them back, or is gone
/// too.
#[derive(Debug)]
pub(crate) struct Orphan {
    loans: Loans,
    writer: RingWriter,
    reader: RingReader,
    socket: Arc<OwnFd>,
    /// Whether the peer may have said more than one look at the socket takes.
    has_unheard: bool,
}

/// Memory of the peer, of which it lends parts. It keeps the socket open, whose end tells the peer
/// that nothing is borrowed any more.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    // Before what it keeps.
    _kept: Kept,
    borrowed: Arc<BorrowedParts>,
    returns: Returns,
}

/// An arena of the peer, and which parts of it are borrowed.
#[derive(Debug)]
pub(crate) struct BorrowedParts {
    arena: PeerArena,
    len_bytes: usize,
    /// A bit for each slot with a loan of this arena. Any thread clears them.
    out: [AtomicU64; LOANS_MAX / 64],
    /// Where the last loan of each slot lies. Atomics, for a forked child looks at them whatever
    /// the thread that writes them was at.
    places: [Place; LOANS_MAX],
}

#[derive(Debug)]
struct Place {
    start: AtomicUsize,
    end: AtomicUsize,
}

/// Held by what the peer has shown: its drop gives the loan back.
#[derive(Debug)]
pub(crate) struct Borrowed {
    pub(crate) returns: Returns,
    pub(crate) slot: usize,
}

/// The way back for loans.
#[derive(Clone, Debug)]
pub(crate) struct Returns {
    pub(crate) segment: Arc<Segment>,
    pub(crate) lane: usize,
    pub(crate) _socket: Arc<OwnFd>,
}

impl Loans {
    /// Bytes that are lent.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Whether the peer is yet to read something out of this process.
    pub(crate) fn is_showing(&self) -> bool {
        self.read < self.shown
    }

    /// Loans so far that end with this process.
    pub(crate) fn shown(&self) -> u64 {
        self.shown
    }

    /// How many of them are over. The peer reads them in order.
    pub(crate) fn read(&self) -> u64 {
        self.read
    }

    /// Lets go of what can only be read by a link that has ended at the peer's side.
    pub(crate) fn release_shown(&mut self) {
        for (slot, loan) in self.slots.iter_mut().enumerate() {
            if let Some(loan) = loan.take_if(|loan| loan.access == Access::RemoteReadable) {
                self.bytes -= loan.memory.len();
                self.free.push(slot as u16);
            }
        }
        self.read = self.shown;
    }

    /// Whether another loan has a slot.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < LOANS_MAX
    }

    /// Keeps `memory` for the peer, and says in which slot.
    ///
    /// # Panics
    /// If there is no room.
    pub(crate) fn lend(&mut self, memory: Buffer, access: Access) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            assert!(self.slots.len() < LOANS_MAX, "lent beyond the limit");
            self.slots.push(None);
            self.free.reserve(self.slots.len());
            (self.slots.len() - 1) as u16
        });
        self.bytes += memory.len();
        self.shown += u64::from(access == Access::RemoteReadable);
        self.slots[usize::from(slot)] = Some(Loan { memory, access });
        usize::from(slot)
    }

    /// Lets go of what the peer has given back. Marks of what was not lent mean nothing.
    pub(crate) fn take_back(&mut self, writer: &RingWriter) {
        if self.is_empty() {
            return;
        }
        writer.take_returned(|index, mut word| {
            while word != 0 {
                let slot = index * 64 + word.trailing_zeros() as usize;
                word &= word - 1;
                if let Some(loan) = self.slots.get_mut(slot).and_then(Option::take) {
                    self.bytes -= loan.memory.len();
                    self.read += u64::from(loan.access == Access::RemoteReadable);
                    self.free.push(slot as u16);
                }
            }
        });
    }

    /// Lets go of everything, because nobody is left who could read it.
    pub(crate) fn release(&mut self) {
        self.slots.clear();
        self.free.clear();
        self.bytes = 0;
        self.read = self.shown;
    }
}

impl Drop for Loans {
    fn drop(&mut self) {
        for loan in self.slots.drain(..).flatten() {
            std::mem::forget(loan.memory);
        }
    }
}

impl Orphan {
    pub(crate) fn new(
        loans: Loans,
        writer: RingWriter,
        reader: RingReader,
        socket: Arc<OwnFd>,
    ) -> Self {
        Self {
            loans,
            writer,
            reader,
            socket,
            has_unheard: false,
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Bytes that the peer still has.
    pub(crate) fn lent_bytes(&self) -> usize {
        self.loans.bytes()
    }

    /// Lets go of what was given back, and says whether that is all.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.loans.take_back(&self.writer);
        if self.reader.end().is_some() {
            self.loans.release_shown();
        }
        // What comes is of no interest, but for the end.
        self.has_unheard = (0..socket::MESSAGES_MAX).all(|_| match socket::receive(&self.socket) {
            Ok(Some(_)) => true,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => false,
            Ok(None) | Err(_) => {
                self.loans.release();
                false
            }
        });
        self.loans.is_empty()
    }

    /// Whether the last look at the socket has left messages there, of which nobody tells again.
    pub(crate) fn has_unheard(&self) -> bool {
        self.has_unheard
    }
}

impl PeerMemory {
    /// # Errors
    /// The system has no memory left.
    pub(crate) fn new(borrowed: &Arc<BorrowedParts>, returns: Returns) -> io::Result<Self> {
        Ok(Self {
            _kept: forks::keep(borrowed.clone())?,
            borrowed: Arc::clone(borrowed),
            returns,
        })
    }
}

impl Lender for PeerMemory {
    fn part(&self, place: Range<usize>) -> &[u8] {
        self.borrowed.arena.part(place)
    }

    fn give_back(&self, slot: usize) {
        self.borrowed.give_back(slot, &self.returns);
    }
}

impl BorrowedParts {
    pub(crate) fn new(arena: PeerArena, len_bytes: usize) -> Self {
        Self {
            arena,
            len_bytes,
            out: Default::default(),
            places: [const { Place::nowhere() }; LOANS_MAX],
        }
    }

    /// Notes that a slot has a loan from here, and where it lies. False if it has one already: a
    /// peer that lends a slot again before it is given back would have this end forget that the
    /// new loan is out.
    pub(crate) fn note(&self, slot: usize, place: Range<usize>) -> bool {
        let (word, bit) = self.out_bit(slot);
        if word.load(Ordering::Relaxed) & bit != 0 {
            return false;
        }
        self.places[slot]
            .start
            .store(place.start, Ordering::Relaxed);
        self.places[slot].end.store(place.end, Ordering::Relaxed);
        word.fetch_or(bit, Ordering::Release);
        true
    }

    /// Tells the peer that a loan is over, once.
    fn give_back(&self, slot: usize, returns: &Returns) {
        let (word, bit) = self.out_bit(slot);
        if word.fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
            returns.give_back(slot);
        }
    }

    /// Where it stands that a slot has a loan from here.
    fn out_bit(&self, slot: usize) -> (&AtomicU64, u64) {
        (&self.out[slot / 64], 1 << (slot % 64))
    }

    /// What is borrowed, in the order of its addresses.
    fn parts(&self) -> Vec<Range<usize>> {
        let is_out = |slot: usize| {
            let (word, bit) = self.out_bit(slot);
            word.load(Ordering::Acquire) & bit != 0
        };
        let place =
            |place: &Place| place.start.load(Ordering::Relaxed)..place.end.load(Ordering::Relaxed);
        let mut parts: Vec<Range<usize>> = (self.places.iter().enumerate())
            .filter(|(slot, _)| is_out(*slot))
            .map(|(_, at)| place(at))
            // A child may see a place of which the half is written.
            .filter(|place| place.start <= place.end && place.end <= self.len_bytes)
            .collect();
        parts.sort_unstable_by_key(|part| part.start);
        parts
    }

    /// Lets go of the peer's memory at the end of a link, after which nothing more is borrowed: a
    /// small tensor would else keep all of it. What is still borrowed is copied and given back,
    /// unless that is a good part of the memory, or much.
    pub(crate) fn let_go(&self, returns: &Returns) {
        let parts = self.parts();
        let bytes = parts.iter().map(Range::len).fold(0, usize::saturating_add);
        if bytes <= COPIED_BYTES_MAX && bytes <= self.len_bytes / USED_SHARE_MIN {
            // Without memory for copies all stays as it is.
            if self.arena.keep_copies(&parts).is_ok() {
                (0..LOANS_MAX).for_each(|slot| self.give_back(slot, returns));
            }
        }
    }
}

impl Place {
    const fn nowhere() -> Self {
        Self {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
        }
    }
}

/// What a child had borrowed is a copy of its own, whatever its parent gives back.
impl Inherited for BorrowedParts {
    fn in_child(&self) {
        if let Err(errno) = self.arena.keep_copies(&self.parts()) {
            forks::give_up(errno);
        }
    }

    fn must_wait(&self) -> bool {
        let mut words = self.out.iter();
        words.any(|word| word.load(Ordering::Relaxed) != 0)
    }
}

impl Returns {
    fn give_back(&self, slot: usize) {
        self.segment.lane(self.lane).give_back(slot);
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.returns.give_back(self.slot);
    }
}

/// Most bytes that are copied at the end of a link.
const COPIED_BYTES_MAX: usize = 256 << 20;

/// Memory of a peer of which less than this part is borrowed is not kept behind the end of a link.
const USED_SHARE_MIN: usize = 4;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::segment::len_bytes;

    /// Between the drop of a loan's last buffer and the mark of its return a peer may have lent the
    /// slot again. Were that noted, the end of the link would take the new loan's memory away.
    #[test]
    fn a_slot_whose_loan_is_not_over_has_no_other_one() {
        let (_, descriptor) = Memory::create(1 << 20).unwrap();
        let arena = PeerArena::open(descriptor.as_fd(), 1 << 20, u64::MAX).unwrap();
        let borrowed = BorrowedParts::new(arena, 1 << 20);
        let (memory, socket) = Memory::create(len_bytes(4096)).unwrap();
        let returns = Returns {
            segment: Arc::new(Segment::new(memory, 4096)),
            lane: 0,
            _socket: Arc::new(socket.into()),
        };
        assert!(borrowed.note(70, 0..10));
        assert!(!borrowed.note(70, 20..30));
        let parts = borrowed.parts();
        assert!(parts.len() == 1 && parts[0] == (0..10), "it stays there");
        borrowed.give_back(70, &returns);
        assert!(borrowed.parts().is_empty());
        assert!(borrowed.note(70, 20..30));
    }
}
