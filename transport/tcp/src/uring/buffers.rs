use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::ring::Ring;

/// Staging memory that the kernel takes a buffer from when bytes arrive for a link that wants them
/// staged.
///
/// A buffer belongs to the kernel until a completion names it, then to us until
/// [`Buffers::give_back`].
#[derive(Debug)]
pub(crate) struct Buffers {
    map: NonNull<u8>,
    map_bytes: usize,
    buffer_bytes: usize,
    count: u16,
    /// Entries ever given to the kernel.
    tail: u16,
    /// Buffers that are ours.
    taken: u16,
}

impl Buffers {
    /// Maps `count` buffers and gives all of them to the kernel.
    pub(crate) fn new(ring: &mut Ring, count: u16, buffer_bytes: usize) -> std::io::Result<Self> {
        let count = count.clamp(COUNT_MIN, COUNT_MAX).next_power_of_two();
        let buffer_bytes = buffer_bytes.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
        let map_bytes = entries_bytes(count) + usize::from(count) * buffer_bytes;
        // SAFETY: a new mapping, at an address that the kernel chooses, aliases nothing.
        let map = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                map_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                // The first use of a page costs as much as half a round trip.
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )?
        };
        let map = NonNull::new(map.cast()).expect("a mapping is not at null");
        let mut buffers = Self {
            map,
            map_bytes,
            buffer_bytes,
            count,
            tail: 0,
            taken: count,
        };
        // SAFETY: the entries lie at the start of the mapping, which is page aligned and long
        // enough, and stays until `unmap`, whose caller knows that the ring is done.
        let registered = unsafe { ring.register_buffers(map.as_ptr() as u64, count, GROUP) };
        if let Err(error) = registered {
            buffers.unmap(ring);
            return Err(error);
        }
        for buffer in 0..count {
            buffers.give_back(buffer);
        }
        Ok(buffers)
    }

    /// Notes that a completion named a buffer, and gives its first `bytes` bytes to read.
    pub(crate) fn take(&mut self, buffer: u16, bytes: usize) -> &[u8] {
        assert!(
            buffer < self.count && bytes <= self.buffer_bytes && self.taken < self.count,
            "the kernel names buffers that it was given"
        );
        self.taken += 1;
        // SAFETY: the assertion keeps the range inside the mapping, and the kernel writes no more
        // to the buffer until `give_back`, which the borrow of `self` excludes meanwhile.
        unsafe { std::slice::from_raw_parts(self.start_of(buffer), bytes) }
    }

    /// Gives a buffer to the kernel.
    pub(crate) fn give_back(&mut self, buffer: u16) {
        self.taken -= 1;
        let start = self.start_of(buffer) as u64;
        let entries = self.map.as_ptr().cast::<BufRingEntry>();
        let index = usize::from(self.tail & (self.count - 1));
        // SAFETY: the index is below the number of entries, and the kernel does not read the entry
        // until the tail covers it. The last field, which in the first entry is the tail, is not
        // written here.
        let entry = unsafe { &mut *entries.add(index) };
        entry.set_addr(start);
        entry.set_len(self.buffer_bytes as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the first entry is initialised, and its tail is aligned and shared with the
        // kernel, which reads it atomically.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(entries).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// Gives the memory back to the system, which `ring` must have been done with.
    pub(crate) fn unmap(self, ring: &mut Ring) {
        assert_eq!(ring.operations(), 0, "the kernel may still use a buffer");
        ring.unregister_buffers(GROUP);
        // SAFETY: the mapping is ours, and the kernel neither uses a buffer nor will it take one.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }

    fn start_of(&self, buffer: u16) -> *mut u8 {
        let offset = entries_bytes(self.count) + usize::from(buffer) * self.buffer_bytes;
        // SAFETY: the offset is inside the mapping for every buffer below `count`.
        unsafe { self.map.as_ptr().add(offset) }
    }
}

/// Room for the entries, in whole pages.
fn entries_bytes(count: u16) -> usize {
    (usize::from(count) * size_of::<BufRingEntry>()).next_multiple_of(PAGE_BYTES)
}

/// The group that receives name when they want a buffer.
pub(crate) const GROUP: u16 = 0;

const COUNT_MIN: u16 = 2;
const COUNT_MAX: u16 = 16_384;
const BUFFER_BYTES_MIN: usize = 4096;
const BUFFER_BYTES_MAX: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
