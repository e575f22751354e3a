//! Boards for loom, within one process: words that it sees, and no bytes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;

/// A board of this process.
#[derive(Debug)]
pub struct Board {
    words: Arc<Vec<AtomicU64>>,
}

/// A board as others see it.
#[derive(Debug)]
pub struct BoardView {
    words: Arc<Vec<AtomicU64>>,
}

impl Board {
    /// A board with all words 0.
    ///
    /// # Errors
    /// None.
    pub fn new(_data_bytes: usize) -> io::Result<Self> {
        let words = (0..BOARD_WORDS).map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            words: Arc::new(words),
        })
    }

    /// Others see it by [`Board::view`] alone.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The board as others see it.
    pub fn view(&self) -> BoardView {
        BoardView {
            words: Arc::clone(&self.words),
        }
    }

    /// Sets a word.
    pub fn set_word(&self, index: usize, value: u64) {
        self.words[index].store(value, Ordering::Release);
    }

    /// There are no bytes.
    pub fn write(&mut self, _at: usize, _bytes: &[u8]) {}
}

impl BoardView {
    /// # Errors
    /// `EINVAL`: others see a board by [`Board::view`] alone.
    pub fn open(_descriptor: impl AsFd, _data_bytes: usize) -> rustix::io::Result<Self> {
        Err(Errno::INVAL)
    }

    /// # Errors
    /// As of [`BoardView::open`].
    pub fn of_process(_process: u32, _descriptor: u32, _bytes: usize) -> rustix::io::Result<Self> {
        Err(Errno::INVAL)
    }

    /// The value of a word.
    pub fn word_value(&self, index: usize) -> u64 {
        self.words[index].load(Ordering::Acquire)
    }

    /// There are no bytes.
    pub fn read(&self, _at: usize, _into: &mut [u8]) {}
}

/// Words at the beginning of each board.
pub const BOARD_WORDS: usize = 96;
