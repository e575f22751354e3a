#![expect(
    unsafe_code,
    reason = "memory that one process writes while others read it"
)]
//! Boards: memory in which one process writes, for others of its user to read.
//!
//! A board begins with [`BOARD_WORDS`] words, by which its owner says what lies in the bytes behind
//! them. Readers look at words alone and copy bytes out, so that nothing of theirs rests on what
//! the owner may change meanwhile.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::mapping::{Mapping, PAGE_BYTES};
use crate::sealed::sealed_len_bytes;

/// A board of this process, which no other can write.
pub struct Board {
    mapping: Mapping,
}

/// A board of another process, for reading.
pub struct BoardView {
    base: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: an address range that any thread may read and release; its words are atomics, and its
// bytes are only copied.
unsafe impl Send for BoardView {}
// SAFETY: as above.
unsafe impl Sync for BoardView {}

impl Board {
    /// A board with all words 0 and at least as many bytes.
    ///
    /// # Errors
    /// The system has no memory for it, or knows no sealed memory.
    pub fn new(data_bytes: usize) -> io::Result<Self> {
        let mapping = Mapping::shared(board_bytes(data_bytes))?;
        Ok(Self { mapping })
    }

    /// What others map to read the board. None in a forked child, whose memory is its own.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.descriptor()
    }

    /// Sets a word. What was written before is there for whoever sees it.
    ///
    /// # Panics
    /// If the board has no such word.
    pub fn set_word(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }

    /// Copies bytes to the board.
    ///
    /// # Panics
    /// If they reach beyond its end.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let start = place(at, bytes.len(), self.mapping.len_bytes());
        // SAFETY: the place lies inside of the mapping, as checked, and behind its words. Nobody of
        // this process refers to it: only this method touches it, with the board for itself. What
        // other processes read meanwhile is their own affair.
        unsafe {
            let place = self.mapping.base().as_ptr().add(start);
            ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
        }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < BOARD_WORDS);
        // SAFETY: a word of the first page, which is aligned, lives as long as `self` and is only
        // ever used as such words.
        unsafe { self.mapping.base().cast::<AtomicU64>().add(index).as_ref() }
    }
}

impl BoardView {
    /// Maps a board of another process, made for as many bytes.
    ///
    /// # Errors
    /// `EPERM` or `EMEDIUMTYPE` if the descriptor is none of a board, `EINVAL` if it has another
    /// length; the system has no room for it.
    pub fn open(descriptor: impl AsFd, data_bytes: usize) -> rustix::io::Result<Self> {
        let (descriptor, len_bytes) = (descriptor.as_fd(), board_bytes(data_bytes));
        if sealed_len_bytes(descriptor)? != len_bytes as u64 {
            return Err(Errno::INVAL);
        }
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let base = unsafe {
            let (access, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::NORESERVE);
            rustix::mm::mmap(ptr::null_mut(), len_bytes, access, flags, descriptor, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len_bytes })
    }

    /// Maps a board of a process by the number of its descriptor there. The kernel allows that to
    /// processes of the same user.
    ///
    /// # Errors
    /// As of [`BoardView::open`]; there is no such process or descriptor, or it is not shown.
    pub fn of_process(
        process: u32,
        descriptor: u32,
        data_bytes: usize,
    ) -> rustix::io::Result<Self> {
        // What is there may be anything, such as a pipe, whose opening must not block.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let path = format!("/proc/{process}/fd/{descriptor}");
        let descriptor = rustix::fs::open(path, flags, Mode::empty())?;
        Self::open(descriptor, data_bytes)
    }

    /// The value of a word. What its owner wrote before it is there now.
    ///
    /// # Panics
    /// If a board has no such word.
    pub fn word_value(&self, index: usize) -> u64 {
        assert!(index < BOARD_WORDS);
        // SAFETY: a word of the first page, which is aligned and lives as long as `self`. Its owner
        // may write it at any time, and any bits are a value.
        let word = unsafe { self.base.cast::<AtomicU64>().add(index).as_ref() };
        // Of memory that can only be read, relaxed loads are sound, and no others.
        let value = word.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    /// Copies bytes out of the board. What its owner writes meanwhile shows in them, and nowhere
    /// else.
    ///
    /// # Panics
    /// If they reach beyond its end.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        let start = place(at, into.len(), self.len_bytes);
        // SAFETY: the place lies inside of the mapping, as checked, which cannot get shorter, and
        // `into` is memory of this process alone.
        unsafe {
            let place = self.base.as_ptr().add(start);
            ptr::copy_nonoverlapping(place, into.as_mut_ptr(), into.len());
        }
    }
}

impl Drop for BoardView {
    fn drop(&mut self) {
        // SAFETY: the range was mapped for this value, whose owner is going.
        let refused = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len_bytes) };
        debug_assert!(refused.is_ok(), "unmapping our own range");
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Board({} bytes)", self.mapping.len_bytes())
    }
}

impl fmt::Debug for BoardView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BoardView({} bytes)", self.len_bytes)
    }
}

/// Where bytes of a board begin in its memory.
fn place(at: usize, len: usize, board_bytes: usize) -> usize {
    let data_bytes = board_bytes - PAGE_BYTES;
    assert!(
        at <= data_bytes && len <= data_bytes - at,
        "{len} bytes at {at} of a board of {data_bytes} bytes"
    );
    PAGE_BYTES + at
}

fn board_bytes(data_bytes: usize) -> usize {
    PAGE_BYTES + data_bytes.next_multiple_of(PAGE_BYTES)
}

/// Words at the beginning of each board.
pub const BOARD_WORDS: usize = PAGE_BYTES / size_of::<u64>();

#[cfg(all(test, not(any(miri, loom))))]
mod tests;
