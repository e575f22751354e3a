#![expect(
    unsafe_code,
    reason = "memory that another process maps, writes and may fill with anything"
)]

use std::fmt;

use crate::memory::Memory;
use crate::ring::Lane;
use crate::sync::{AtomicU32, Ordering, fence};

/// The memory of one link: two rings, and what both ends tell each other beside them.
///
/// The other end may write any of it at any time, so nothing here is ever the target of a reference
/// but atomics: bytes are copied out before anybody looks at them.
pub struct Segment {
    memory: Memory,
    ring_bytes: usize,
}

/// Start of the segment; `docs/wire.md` holds the offsets.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Header {
    lanes: [Lane; 2],
    asleep: [Line<AtomicU32>; 2],
    hints: [Line<Hints>; 2],
}

/// What a side lets the other know, which nobody relies on.
#[repr(C)]
#[derive(Debug, Default)]
struct Hints {
    /// [`TAKES`], [`COPIES`], or 0 as long as nothing has come.
    lent: AtomicU32,
    /// Counts up when a record follows soon.
    soon: AtomicU32,
}

/// Keeps what one end writes off the cache lines, and their prefetched neighbours, of what the
/// other does.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(crate) struct Line<T>(pub(crate) T);

impl Segment {
    pub(crate) fn new(memory: Memory, ring_bytes: usize) -> Self {
        assert_eq!(memory.len_bytes(), len_bytes(ring_bytes));
        Self { memory, ring_bytes }
    }

    pub(crate) fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    pub(crate) fn lane(&self, lane: usize) -> &Lane {
        &self.header().lanes[lane]
    }

    /// Announces that a side is about to sleep and what it wants to be woken for. It must look for
    /// that once more before it sleeps.
    pub(crate) fn fall_asleep(&self, side: usize, wants: u32) {
        // A swap and no store: loom puts a swap into its order among the swaps of the peer, and a
        // store not. A sleep takes longer.
        self.header().asleep[side].0.swap(wants, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends [`Segment::fall_asleep`].
    pub(crate) fn wake_up(&self, side: usize) {
        self.header().asleep[side].0.store(0, Ordering::Relaxed);
    }

    /// Says whether a side goes on with memory that it is lent, or copies it.
    pub(crate) fn say_takes(&self, side: usize, takes: bool) {
        let word = if takes { TAKES } else { COPIES };
        self.hints(side).lent.store(word, Ordering::Relaxed);
    }

    /// Whether a side went on with memory that it was lent last, or would have.
    pub(crate) fn takes(&self, side: usize) -> bool {
        self.hints(side).lent.load(Ordering::Relaxed) == TAKES
    }

    /// Says that a side is about to write a record.
    pub(crate) fn say_soon(&self, side: usize) {
        self.hints(side).soon.fetch_add(1, Ordering::Relaxed);
    }

    /// How often a side has said that it is about to write a record.
    pub(crate) fn soon(&self, side: usize) -> u32 {
        self.hints(side).soon.load(Ordering::Relaxed)
    }

    /// Whether a side has to be woken, after something was published that it may want. Says so
    /// once. Between the two looks it may have gone to sleep again for something else; it is woken
    /// all the same, since nobody would find any more that it sleeps.
    pub(crate) fn must_wake(&self, side: usize, published: u32) -> bool {
        fence(Ordering::SeqCst);
        let asleep = &self.header().asleep[side].0;
        asleep.load(Ordering::Relaxed) & published != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }

    /// Copies bytes to a place of a ring.
    pub(crate) fn copy_in(&self, lane: usize, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: the place is inside of the ring as checked, and no reference points there. What
        // the other end reads meanwhile is its own affair.
        unsafe { self.memory.copy_in(self.offset(lane) + at, bytes) };
    }

    /// Copies bytes out of a place of a ring.
    pub(crate) fn copy_out(&self, lane: usize, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        // SAFETY: the place is inside of the ring as checked, and `into` is memory of our own. What
        // the other end writes meanwhile changes nothing but the bytes that arrive.
        unsafe { self.memory.copy_out(self.offset(lane) + at, into) };
    }

    fn check(&self, at: usize, len: usize) {
        assert!(
            at < self.ring_bytes && len <= self.ring_bytes - at,
            "{len} bytes at {at} of a ring of {} bytes",
            self.ring_bytes
        );
    }

    fn offset(&self, lane: usize) -> usize {
        HEADER_BYTES + lane * self.ring_bytes
    }

    fn hints(&self, side: usize) -> &Hints {
        &self.header().hints[side].0
    }

    fn header(&self) -> &Header {
        // SAFETY: the memory is at least this long, page aligned, stays as long as `self`, and
        // consists of atomics only, for which any bits are a value and which the other end may
        // change at any time.
        unsafe { self.memory.base().cast::<Header>().as_ref() }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment(2 x {} bytes)", self.ring_bytes)
    }
}

/// Length of a segment with rings of this length.
pub(crate) const fn len_bytes(ring_bytes: usize) -> usize {
    HEADER_BYTES + 2 * ring_bytes
}

/// Asleep until there are bytes to read, or the stream has ended.
pub(crate) const WANTS_BYTES: u32 = 1;

/// Asleep until there is room to write.
pub(crate) const WANTS_ROOM: u32 = 2;

/// Asleep until the peer has read what it was shown.
pub(crate) const WANTS_LOANS: u32 = 4;

/// A side goes on with the memory that it is lent.
const TAKES: u32 = 1;

/// A side copies what it is lent, to where its user wants it.
const COPIES: u32 = 2;

/// Where the rings begin.
pub(crate) const HEADER_BYTES: usize = if cfg!(all(loom, test)) { 65_536 } else { 4096 };

#[cfg(not(all(loom, test)))]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Header>() <= HEADER_BYTES);
    assert!(size_of::<Lane>() == 512);
    assert!(offset_of!(Header, asleep) == 1024);
    assert!(offset_of!(Header, hints) == 1280);
    assert!(size_of::<Line<AtomicU32>>() == 128 && size_of::<Line<Hints>>() == 128);
};
