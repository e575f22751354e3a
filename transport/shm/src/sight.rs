//! What two processes can read of each other without the help of the other.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use crate::message::Mark;
use crate::sys;

/// Whether the peer of a link can read the memory of this process.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    /// What the peer was asked to look at; it stays where it is as long as the link.
    mark: Option<Box<Mark>>,
    is_seen: bool,
}

/// The process of a peer, which this one can read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerProcess {
    process: i32,
}

impl Sight {
    /// Whether the peer has found what it was asked to look at.
    pub(crate) fn is_seen(&self) -> bool {
        self.is_seen
    }

    /// Whether it is worth to ask the peer, or to show it something.
    pub(crate) fn may_be_seen(&self) -> bool {
        self.is_seen || !self.is_asked()
    }

    /// Whether the peer was asked.
    pub(crate) fn is_asked(&self) -> bool {
        self.mark.is_some()
    }

    /// Makes something for the peer to look at, and says where it lies.
    pub(crate) fn show(&mut self, mark: Mark) -> u64 {
        let mark = self.mark.insert(Box::new(mark));
        mark.as_ptr().addr() as u64
    }

    /// The peer has found it.
    pub(crate) fn note_seen(&mut self) {
        self.is_seen = self.is_asked();
    }
}

/// Whether memory lies in huge pages, so that another process reads it as fast as its own. From small ones the kernel
/// copies a third as fast, less than two copies through a ring take.
pub(crate) fn is_on_huge_pages(memory: &[u8]) -> bool {
    static PAGEMAP: LazyLock<Option<File>> =
        LazyLock::new(|| File::open("/proc/self/pagemap").ok());
    let Some(pagemap) = &*PAGEMAP else {
        return false;
    };
    let (start, end) = (memory.as_ptr().addr(), memory.as_ptr_range().end.addr());
    let (first, last) = (
        start.next_multiple_of(HUGE_PAGE_BYTES),
        end / HUGE_PAGE_BYTES,
    );
    let Some(pages) = last.checked_sub(first / HUGE_PAGE_BYTES + 1) else {
        return false;
    };
    [0, pages / 2, pages].into_iter().all(|page| {
        let address = first + page * HUGE_PAGE_BYTES;
        let huge = sys::has_huge_page(pagemap, address as u64, HUGE_PAGE_BYTES as u64);
        huge.unwrap_or(false)
    })
}

impl PeerProcess {
    /// The process with this number, if it may be read and has this mark at this address.
    pub(crate) fn find(process: i32, address: u64, mark: &Mark) -> Option<Self> {
        if process <= 0 || IS_BLIND.load(Ordering::Relaxed) {
            return None;
        }
        let found = Self { process };
        let mut bytes = Mark::default();
        let read = found.read(address, &mut bytes);
        (read == Ok(bytes.len()) && bytes == *mark).then_some(found)
    }

    /// Copies some bytes at the address, at least one. Returns how many.
    ///
    /// # Errors
    /// The process is gone, or the address cannot be read.
    pub(crate) fn read(self, address: u64, into: &mut [u8]) -> rustix::io::Result<usize> {
        let read = sys::read_process(self.process, address, into);
        if matches!(read, Err(Errno::FAULT | Errno::PERM)) {
            IS_BLIND.store(true, Ordering::Relaxed);
        }
        read
    }
}

/// A mark that nobody can guess: the hasher's keys come from the system's source of randomness.
pub(crate) fn draw_mark() -> Mark {
    let mut mark = Mark::default();
    for half in mark.chunks_exact_mut(8) {
        half.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
    }
    mark
}

/// Where pages are larger, none is taken for huge.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Set once a peer had something that this process could not read. What was to be read is lost with its link, so
/// that the next link shall not try the same.
static IS_BLIND: AtomicBool = AtomicBool::new(false);
