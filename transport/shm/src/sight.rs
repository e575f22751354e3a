//! What two processes can read of each other without the help of the other.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use crate::message::Mark;
use crate::migrating::secret;
use crate::sys;

/// Whether the peer of a link can read the memory of this process.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    /// What the peer was asked to look at; it stays where it is as long as the link.
    mark: Option<Box<Mark>>,
    is_seen: bool,
}

/// The process of a peer, which this one can read. Memory is read by the number of a process, and
/// another process gets the number once this one has ended; so each read is checked afterwards.
#[derive(Debug)]
pub(crate) struct PeerProcess {
    number: i32,
    process: OwnedFd,
    blind_spots: BlindSpots,
}

/// Processes that had shown a transport something it could not read. What was to be read is lost
/// with its link, so that the next link shall not try the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlindSpots(Arc<Mutex<BTreeSet<i32>>>);

impl Sight {
    /// Whether the peer has found what it was asked to look at.
    pub(crate) fn is_seen(&self) -> bool {
        self.is_seen
    }

    /// Whether it is worth to ask the peer, or to show it something.
    pub(crate) fn may_be_seen(&self) -> bool {
        self.is_seen || !self.is_asked()
    }

    fn is_asked(&self) -> bool {
        self.mark.is_some()
    }

    /// Makes something for the peer to look at, and says where it lies.
    pub(crate) fn show(&mut self, mark: Mark) -> u64 {
        let mark = self.mark.insert(Box::new(mark));
        mark.as_ptr().addr() as u64
    }

    /// The peer has found it. False if it was not asked, or has said so before.
    pub(crate) fn note_seen(&mut self) -> bool {
        self.is_asked() && !std::mem::replace(&mut self.is_seen, true)
    }
}

impl PeerProcess {
    /// The process at the other end of the socket, if it may be read and has this mark at this
    /// address.
    pub(crate) fn find(
        socket: impl AsFd,
        address: u64,
        mark: &Mark,
        blind_spots: &BlindSpots,
    ) -> Option<Self> {
        let number = sys::peer_of(&socket).ok()?.process;
        if number <= 0 || blind_spots.has(number) {
            return None;
        }
        let peer = Self {
            number,
            process: sys::peer_process(&socket).ok()?,
            blind_spots: blind_spots.clone(),
        };
        let mut bytes = Mark::default();
        let read = peer.copy(address, &mut bytes);
        (read == Ok(bytes.len()) && bytes == *mark).then_some(peer)
    }

    /// Copies some bytes at the address, at least one. Returns how many.
    ///
    /// # Errors
    /// The process is gone, or the address cannot be read. What lies in `into` means nothing.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> rustix::io::Result<usize> {
        let read = self.copy(address, into);
        if matches!(read, Err(Errno::FAULT | Errno::PERM)) {
            self.blind_spots.note(self.number);
        }
        read
    }

    fn copy(&self, address: u64, into: &mut [u8]) -> rustix::io::Result<usize> {
        let bytes = sys::read_process(self.number, address, into)?;
        match sys::has_ended(&self.process) {
            false => Ok(bytes),
            // The bytes may be those of another process, which has its number now.
            true => Err(Errno::SRCH),
        }
    }
}

impl BlindSpots {
    fn has(&self, process: i32) -> bool {
        let spots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spots.contains(&process)
    }

    fn note(&self, process: i32) {
        let mut spots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spots.len() < BLIND_SPOTS_MAX {
            spots.insert(process);
        }
    }
}

/// Whether memory lies in huge pages, so that another process reads it as fast as its own. From
/// small ones the kernel copies a third as fast, less than two copies through a ring take.
pub(crate) fn is_on_huge_pages(memory: &[u8]) -> bool {
    let (start, end) = (memory.as_ptr().addr(), memory.as_ptr_range().end.addr());
    let (first, last) = (
        start.next_multiple_of(HUGE_PAGE_BYTES),
        end / HUGE_PAGE_BYTES,
    );
    let Some(pages) = last.checked_sub(first / HUGE_PAGE_BYTES + 1) else {
        return false;
    };
    with_pagemap(|pagemap| {
        [0, pages / 2, pages].into_iter().all(|page| {
            let address = first + page * HUGE_PAGE_BYTES;
            let huge = sys::has_huge_page(pagemap, address as u64, HUGE_PAGE_BYTES as u64);
            huge.unwrap_or(false)
        })
    })
    .unwrap_or(false)
}

/// Asks the pages of this process something. A file that was opened before a fork tells of the
/// parent's.
fn with_pagemap<R>(ask: impl FnOnce(&File) -> R) -> Option<R> {
    thread_local! {
        static PAGEMAP: RefCell<Option<(u32, File)>> = const { RefCell::new(None) };
    }
    PAGEMAP.with_borrow_mut(|known| {
        let process = std::process::id();
        if known.as_ref().is_none_or(|(owner, _)| *owner != process) {
            *known = Some((process, File::open("/proc/self/pagemap").ok()?));
        }
        known.as_ref().map(|(_, pagemap)| ask(pagemap))
    })
}

/// A mark that nobody can guess.
pub(crate) fn draw_mark() -> Mark {
    let mut mark = Mark::default();
    for half in mark.chunks_exact_mut(8) {
        half.copy_from_slice(&secret().to_le_bytes());
    }
    mark
}

/// What is asked about at once. A stretch of a larger page is huge too.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Processes that one transport knows it cannot read; what comes after that fails its links again.
const BLIND_SPOTS_MAX: usize = 1024;
