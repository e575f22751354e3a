use std::sync::Arc;

use crate::garbage::Garbage;
use crate::record::RECORD_BYTES;
use crate::segment::{Line, Segment};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// One direction of a link, in shared memory.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Bytes ever written; by the writer.
    tail: Line<AtomicU64>,
    /// Bytes ever read; by the reader.
    head: Line<AtomicU64>,
    /// Not 0: nothing follows behind the tail, [`ENDED`] or [`BROKEN`]; by the writer.
    ended: Line<AtomicU32>,
    /// One bit for each loan that is over; set by the reader, cleared by the writer.
    returned: Line<[AtomicU64; RETURNED_WORDS]>,
}

/// The end of a lane that writes. Invariant: `head <= tail <= head + capacity`, both counted in
/// bytes since the start, of which `head` is the reader's word and checked.
#[derive(Debug)]
pub(crate) struct RingWriter {
    segment: Arc<Segment>,
    lane: usize,
    tail: u64,
    head: u64,
}

/// The end of a lane that reads. Invariant: `head <= tail <= head + capacity`, of which `tail` is
/// the writer's word and checked.
#[derive(Debug)]
pub(crate) struct RingReader {
    segment: Arc<Segment>,
    lane: usize,
    head: u64,
    tail: u64,
}

impl RingWriter {
    pub(crate) fn new(segment: Arc<Segment>, lane: usize) -> Self {
        Self {
            segment,
            lane,
            tail: 0,
            head: 0,
        }
    }

    /// Bytes that can be written, a multiple of 8 as records are, although the reader may be in the
    /// middle of one; looks at the reader's progress only if fewer than `wanted` are known of.
    pub(crate) fn room(&mut self, wanted: usize) -> Result<usize, Garbage> {
        let capacity = self.segment.ring_bytes() as u64;
        if capacity - (self.tail - self.head) < wanted as u64 {
            let head = self.lane().head.0.load(Ordering::Acquire);
            let read = head.wrapping_sub(self.head);
            Garbage::check("bytes read", read, self.tail - self.head)?;
            self.head = head;
        }
        let room = (capacity - (self.tail - self.head)) as usize;
        Ok(room / RECORD_BYTES * RECORD_BYTES)
    }

    /// Puts bytes `ahead` bytes behind the tail. Not visible before [`RingWriter::publish`].
    pub(crate) fn put(&self, ahead: usize, bytes: &[u8]) {
        let capacity = self.segment.ring_bytes();
        debug_assert!(self.tail - self.head + (ahead + bytes.len()) as u64 <= capacity as u64);
        let at = (self.tail as usize + ahead) & (capacity - 1);
        let (first, rest) = bytes.split_at(bytes.len().min(capacity - at));
        self.segment.copy_in(self.lane, at, first);
        if !rest.is_empty() {
            self.segment.copy_in(self.lane, 0, rest);
        }
    }

    /// Shows the reader `len` more bytes.
    pub(crate) fn publish(&mut self, len: usize) {
        self.tail += len as u64;
        assert!(
            self.tail - self.head <= self.segment.ring_bytes() as u64,
            "more was written than there was room for"
        );
        self.lane().tail.0.store(self.tail, Ordering::Release);
    }

    /// Tells the reader that nothing follows, and whether that is as it should be.
    pub(crate) fn end(&self, is_whole: bool) {
        let how = if is_whole { ENDED } else { BROKEN };
        self.lane().ended.0.store(how, Ordering::Release);
    }

    /// Takes the marks of loans that are over, 64 to a word.
    pub(crate) fn take_returned(&self, mut each: impl FnMut(usize, u64)) {
        for (index, word) in self.lane().returned.0.iter().enumerate() {
            if word.load(Ordering::Relaxed) != 0 {
                each(index, word.swap(0, Ordering::Acquire));
            }
        }
    }

    /// Whether there are such marks.
    pub(crate) fn has_returned(&self) -> bool {
        let words = &self.lane().returned.0;
        words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    fn lane(&self) -> &Lane {
        self.segment.lane(self.lane)
    }
}

impl RingReader {
    pub(crate) fn new(segment: Arc<Segment>, lane: usize) -> Self {
        Self {
            segment,
            lane,
            head: 0,
            tail: 0,
        }
    }

    /// Bytes that can be read; looks at the writer's progress only if none are known of.
    pub(crate) fn available(&mut self) -> Result<usize, Garbage> {
        if self.tail == self.head {
            let tail = self.lane().tail.0.load(Ordering::Acquire);
            let written = tail.wrapping_sub(self.head);
            Garbage::check("bytes written", written, self.segment.ring_bytes() as u64)?;
            self.tail = tail;
        }
        Ok((self.tail - self.head) as usize)
    }

    /// Whether nothing follows what [`RingReader::available`] says from now on, and if so, whether
    /// that is as it should be.
    pub(crate) fn end(&self) -> Option<bool> {
        match self.lane().ended.0.load(Ordering::Acquire) {
            0 => None,
            how => Some(how == ENDED),
        }
    }

    /// Copies the next bytes, which must be available.
    pub(crate) fn peek(&self, into: &mut [u8]) {
        debug_assert!(into.len() as u64 <= self.tail - self.head);
        let capacity = self.segment.ring_bytes();
        let at = self.head as usize & (capacity - 1);
        let split = into.len().min(capacity - at);
        let (first, rest) = into.split_at_mut(split);
        self.segment.copy_out(self.lane, at, first);
        if !rest.is_empty() {
            self.segment.copy_out(self.lane, 0, rest);
        }
    }

    /// The next bytes, which must be available, and are read with that.
    pub(crate) fn take<const LEN: usize>(&mut self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.peek(&mut bytes);
        self.consume(LEN);
        bytes
    }

    /// Bytes read since the start.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.head
    }

    /// Notes that the next `len` bytes, which must be available, are read. The writer does not see
    /// it before [`RingReader::publish`].
    pub(crate) fn consume(&mut self, len: usize) {
        assert!(
            len as u64 <= self.tail - self.head,
            "more was used than read"
        );
        self.head += len as u64;
    }

    /// Gives the room of what was read back to the writer.
    pub(crate) fn publish(&self) {
        self.lane().head.0.store(self.head, Ordering::Release);
    }

    fn lane(&self) -> &Lane {
        self.segment.lane(self.lane)
    }
}

impl Lane {
    /// Marks a loan as over.
    pub(crate) fn give_back(&self, slot: usize) {
        let word = &self.returned.0[slot / 64];
        word.fetch_or(1 << (slot % 64), Ordering::Release);
    }
}

/// Loans that one direction may have at a time.
pub(crate) const LOANS_MAX: usize = 64 * RETURNED_WORDS;

/// The writer has closed the link.
const ENDED: u32 = 1;

/// The writer's end of the link has failed.
const BROKEN: u32 = 2;

const RETURNED_WORDS: usize = 8;

#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use crate::memory::Memory;
    use crate::segment::{WANTS_BYTES, WANTS_ROOM, len_bytes};

    const RING_BYTES: usize = 16;

    fn segment() -> Arc<Segment> {
        let memory = Memory::heap(len_bytes(RING_BYTES));
        Arc::new(Segment::new(memory, RING_BYTES))
    }

    /// What was written is read, once and in order, by whoever looks; nobody reads what is not
    /// written yet, and nobody writes what is not read yet.
    #[test]
    fn bytes_arrive_in_order() {
        loom::model(|| {
            let segment = segment();
            let mut writer = RingWriter::new(Arc::clone(&segment), 0);
            let mut reader = RingReader::new(segment, 0);
            let thread = loom::thread::spawn(move || {
                for word in 1..=3u64 {
                    while writer.room(8).expect("the reader is honest") < 8 {
                        loom::thread::yield_now();
                    }
                    writer.put(0, &word.to_le_bytes());
                    writer.publish(8);
                }
                writer.end(true);
            });
            for word in 1..=3u64 {
                while reader.available().expect("the writer is honest") == 0 {
                    loom::thread::yield_now();
                }
                let mut seen = [0; 8];
                reader.peek(&mut seen);
                reader.consume(8);
                reader.publish();
                assert_eq!(u64::from_le_bytes(seen), word);
            }
            thread.join().expect("the writer does not fail");
            assert_eq!(reader.end(), Some(true));
            assert_eq!(reader.available(), Ok(0));
        });
    }

    /// One end publishes and says whether it has woken the other, which goes to sleep meanwhile.
    /// That one has seen what was published, or is woken.
    fn check_sleeper(tell: fn(&mut RingWriter, &Segment) -> bool, sleep: fn(&Segment)) {
        loom::model(move || {
            let segment = segment();
            let mut writer = RingWriter::new(Arc::clone(&segment), 0);
            let mut reader = RingReader::new(Arc::clone(&segment), 0);
            let there = Arc::clone(&segment);
            let thread = loom::thread::spawn(move || tell(&mut writer, &there));
            sleep(&segment);
            let has_seen = reader.available().expect("the writer is honest") > 0;
            let is_woken = thread.join().expect("the writer does not fail");
            assert!(has_seen || is_woken);
        });
    }

    #[test]
    fn no_sleeper_is_forgotten() {
        let tell = |writer: &mut RingWriter, segment: &Segment| {
            writer.publish(8);
            segment.must_wake(1, WANTS_BYTES)
        };
        check_sleeper(tell, |segment| {
            segment.fall_asleep(1, WANTS_BYTES | WANTS_ROOM);
        });
    }

    /// The peer may have looked at what an end wanted that has gone to sleep again for less.
    #[test]
    fn no_sleeper_that_wants_less_is_forgotten() {
        let tell = |writer: &mut RingWriter, segment: &Segment| {
            let is_woken = segment.must_wake(1, WANTS_ROOM);
            writer.publish(8);
            segment.must_wake(1, WANTS_BYTES) || is_woken
        };
        check_sleeper(tell, |segment| {
            segment.fall_asleep(1, WANTS_BYTES | WANTS_ROOM);
            segment.wake_up(1);
            segment.fall_asleep(1, WANTS_BYTES);
        });
    }

    /// A loan that is given back is taken back once.
    #[test]
    fn loans_come_home_once() {
        loom::model(|| {
            let segment = segment();
            let writer = RingWriter::new(Arc::clone(&segment), 0);
            let threads: Vec<_> = (0..2)
                .map(|slot| {
                    let segment = Arc::clone(&segment);
                    loom::thread::spawn(move || segment.lane(0).give_back(slot))
                })
                .collect();
            let mut seen = 0;
            let mut look = || {
                writer.take_returned(|_, word| {
                    assert_eq!(seen & word, 0);
                    seen |= word;
                })
            };
            look();
            for thread in threads {
                thread.join().expect("giving back does not fail");
            }
            look();
            assert_eq!(seen, 0b11);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::segment::len_bytes;

    #[test]
    fn room_is_whole_records_while_the_reader_is_in_one() {
        let (memory, _) = Memory::create(len_bytes(4096)).unwrap();
        let segment = Arc::new(Segment::new(memory, 4096));
        let mut writer = RingWriter::new(Arc::clone(&segment), 0);
        let mut reader = RingReader::new(segment, 0);
        assert_eq!(writer.room(1), Ok(4096));
        writer.publish(4096);
        assert_eq!(reader.available(), Ok(4096));
        reader.consume(1027);
        assert_eq!(writer.room(1), Ok(0), "not published");
        reader.publish();
        assert_eq!(writer.room(1), Ok(1024));
    }
}
