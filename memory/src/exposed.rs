#![expect(unsafe_code, reason = "memory that is shared becomes a child's own")]
//! Which parts of a shared mapping users of this process look at, and what a forked child makes of
//! the mapping.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::forks::{self, Inherited};
use crate::mapping::{Mapping, PAGE_BYTES};

/// The pages of a shared mapping that hold what users got. Any thread notes them.
#[derive(Debug)]
pub(crate) struct Exposed {
    base: NonNull<u8>,
    len_bytes: usize,
    /// What the mapping is of. Its owner closes it after this is forgotten.
    descriptor: RawFd,
    /// A bit for each page, untouched until one is set.
    bits: Mapping,
    /// How many of them are set.
    noted: AtomicUsize,
    /// In a child: nobody else can see the memory any more.
    is_own: AtomicBool,
}

// SAFETY: the mapping is looked at in a child only, which has one thread then; all else is atomic.
unsafe impl Send for Exposed {}
// SAFETY: as above.
unsafe impl Sync for Exposed {}

impl Exposed {
    /// Of a mapping that stays as long as this is kept.
    pub(crate) fn new(
        base: NonNull<u8>,
        len_bytes: usize,
        descriptor: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let words = (len_bytes / PAGE_BYTES).div_ceil(64);
        Ok(Self {
            base,
            len_bytes,
            descriptor: descriptor.as_raw_fd(),
            bits: Mapping::new((words * size_of::<u64>()).next_multiple_of(PAGE_BYTES))?,
            noted: AtomicUsize::new(0),
            is_own: AtomicBool::new(false),
        })
    }

    /// Users look at these bytes of the mapping from now on.
    pub(crate) fn note(&self, place: Range<usize>) {
        self.each_word(place, |word, bits| {
            if word.load(Ordering::Relaxed) & bits != bits {
                let before = word.fetch_or(bits, Ordering::Relaxed);
                let more = (bits & !before).count_ones() as usize;
                self.noted.fetch_add(more, Ordering::Relaxed);
            }
        });
    }

    /// Nobody looks at these whole pages any more.
    pub(crate) fn forget(&self, place: Range<usize>) {
        if self.noted.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.each_word(place, |word, bits| {
            if word.load(Ordering::Relaxed) & bits != 0 {
                let before = word.fetch_and(!bits, Ordering::Relaxed);
                let fewer = (bits & before).count_ones() as usize;
                self.noted.fetch_sub(fewer, Ordering::Relaxed);
            }
        });
    }

    /// Whether this process is a child of the one that made the mapping.
    pub(crate) fn is_own(&self) -> bool {
        self.is_own.load(Ordering::Relaxed)
    }

    /// The words that have bits for some bytes, each with those.
    fn each_word(&self, place: Range<usize>, mut see: impl FnMut(&AtomicU64, u64)) {
        debug_assert!(place.start < place.end && place.end <= self.len_bytes);
        let (first, last) = (place.start / PAGE_BYTES, (place.end - 1) / PAGE_BYTES);
        for word in first / 64..=last / 64 {
            let from = if word == first / 64 { first % 64 } else { 0 };
            let to = if word == last / 64 { last % 64 } else { 63 };
            see(self.word(word), (!0 << from) & (!0 >> (63 - to)));
        }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index * size_of::<u64>() < self.bits.len_bytes());
        // SAFETY: inside of the mapping, which is zeroed and aligned, lives as long as `self`, and
        // is only ever used as such words.
        unsafe { self.bits.base().cast::<AtomicU64>().add(index).as_ref() }
    }

    /// Puts private memory with the same bytes in place of the mapping. What the parent writes
    /// afterwards still shows in pages that this process has not written. Returns whether they can
    /// be written: a system that never promises more than it has may not allow that for all.
    fn make_private(&self) -> rustix::io::Result<bool> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let map = |access| {
            let place = self.base.as_ptr().cast();
            // SAFETY: the descriptor is open as long as this is kept, as in the parent. The range
            // is that of the mapping, and its bytes are the same before and after.
            unsafe {
                let descriptor = BorrowedFd::borrow_raw(self.descriptor);
                rustix::mm::mmap(place, self.len_bytes, access, flags, descriptor, 0)
            }
        };
        match map(ProtFlags::READ | ProtFlags::WRITE) {
            Ok(_) => Ok(true),
            Err(Errno::NOMEM) => map(ProtFlags::READ).map(|_| false),
            Err(errno) => Err(errno),
        }
    }

    /// Gives the process a copy of a page, by a write to it.
    fn copy_page(&self, page: usize, is_writable: bool) -> rustix::io::Result<()> {
        debug_assert!(page < self.len_bytes / PAGE_BYTES);
        // SAFETY: a page of the mapping, which only this thread uses.
        unsafe {
            let byte = self.base.as_ptr().add(page * PAGE_BYTES);
            if !is_writable {
                let access = MprotectFlags::READ | MprotectFlags::WRITE;
                rustix::mm::mprotect(byte.cast(), PAGE_BYTES, access)?;
            }
            byte.write_volatile(byte.read_volatile());
        }
        Ok(())
    }

    fn copy_noted(&self) -> rustix::io::Result<()> {
        let is_writable = self.make_private()?;
        if self.noted.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        for index in 0..(self.len_bytes / PAGE_BYTES).div_ceil(64) {
            let mut bits = self.word(index).load(Ordering::Relaxed);
            while bits != 0 {
                self.copy_page(index * 64 + bits.trailing_zeros() as usize, is_writable)?;
                bits &= bits - 1;
            }
        }
        Ok(())
    }
}

impl Inherited for Exposed {
    fn in_child(&self) {
        self.is_own.store(true, Ordering::Relaxed);
        if let Err(errno) = self.copy_noted() {
            forks::give_up(errno);
        }
    }

    fn must_wait(&self) -> bool {
        self.noted.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(any(miri, loom), ignore = "maps memory")]
    fn pages_are_noted_and_forgotten_one_by_one() {
        let len_bytes = 200 * PAGE_BYTES;
        let mapping = Mapping::shared(len_bytes).unwrap();
        let exposed = Exposed::new(mapping.base(), len_bytes, mapping.descriptor().unwrap());
        let exposed = exposed.unwrap();
        let set = || -> Vec<usize> {
            let has = |page: &usize| {
                exposed.word(page / 64).load(Ordering::Relaxed) >> (page % 64) & 1 == 1
            };
            (0..200).filter(has).collect()
        };
        assert!(!exposed.must_wait());
        exposed.note(5 * PAGE_BYTES + 7..5 * PAGE_BYTES + 8);
        exposed.note(63 * PAGE_BYTES..64 * PAGE_BYTES + 1);
        exposed.note(100 * PAGE_BYTES..200 * PAGE_BYTES);
        assert_eq!(set(), [vec![5, 63, 64], (100..200).collect()].concat());
        exposed.forget(64 * PAGE_BYTES..199 * PAGE_BYTES);
        assert_eq!(set(), [5, 63, 199]);
        assert!(exposed.must_wait());
        exposed.forget(0..200 * PAGE_BYTES);
        assert!(!exposed.must_wait());
    }
}
