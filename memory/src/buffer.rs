#![expect(unsafe_code, reason = "a pointer and a length become a slice")]

mod parts;

use std::fmt;
use std::ops::{Bound, Deref, Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use bytes::Bytes;

pub use self::parts::Parts;
use crate::BufferMut;
use crate::block::SharedBlock;
use crate::buffer_mut::DropOnly;
use crate::heap::HeapBlock;
use crate::lease::Lease;
use crate::region::{Region, SharedMemory};

/// Read-only memory with any number of owners.
///
/// Buffers are equal if their bytes are.
#[derive(Clone)]
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    owner: SharedOwner,
}

/// What keeps the bytes of a [`Buffer`] alive.
#[derive(Clone)]
pub(crate) enum SharedOwner {
    /// They live as long as the program.
    Static,
    Arena(SharedBlock),
    Heap(Arc<HeapBlock>),
    Foreign(#[expect(dead_code, reason = "held to be dropped")] Arc<dyn Send + Sync>),
    Lease(Lease),
}

// SAFETY: this process only reads the bytes while buffers over them exist, and each kind of owner
// is `Send` and `Sync`.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// An empty buffer, which owns nothing.
    pub const fn new() -> Self {
        Self {
            start: NonNull::dangling(),
            len: 0,
            owner: SharedOwner::Static,
        }
    }

    /// The bytes that `owner` refers to, without a copy; it is dropped, on any thread, with the
    /// last buffer.
    pub fn from_owner(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let owner = Arc::new(owner);
        let bytes = (*owner).as_ref();
        let (start, len) = (NonNull::from(bytes).cast(), bytes.len());
        // SAFETY: the bytes are borrowed from a value that never moves and that nobody but its drop
        // can touch again, so the borrow could last as long as the value does.
        unsafe { Self::from_parts(start, len, SharedOwner::Foreign(owner)) }
    }

    /// Memory that somebody else made and may read too; `owner` is dropped, on any thread, with the
    /// last buffer.
    ///
    /// # Safety
    /// `start` points to `len` initialised bytes outside of the box itself that stay there, and
    /// that nothing writes, until `owner` is dropped. `len` is at most `isize::MAX`.
    pub unsafe fn from_foreign(start: NonNull<u8>, len: usize, owner: Box<dyn Send>) -> Self {
        let owner = SharedOwner::Foreign(Arc::new(DropOnly::new(owner)));
        // SAFETY: stated by the caller.
        unsafe { Self::from_parts(start, len, owner) }
    }

    /// A part of the memory of the lender that `lease` keeps.
    pub(crate) fn from_lease(lease: Lease, place: Range<usize>) -> Self {
        let part = lease.part(place);
        let (start, len) = (NonNull::from(part).cast(), part.len());
        // SAFETY: the bytes are borrowed from the lender, a value that never moves and that nobody
        // but its drop can touch again, so the borrow could last as long as the lease does. It is
        // assumed that a lender in another process keeps its promise not to write. Should it not,
        // only bytes differ that were looked at twice: no code of this workspace rests a length, an
        // address, a text or a bool on borrowed bytes, for it asks `is_borrowed` and copies.
        unsafe { Self::from_parts(start, len, SharedOwner::Lease(lease)) }
    }

    /// # Safety
    /// `owner` keeps `len` initialised bytes at `start`, which nothing writes while a buffer over
    /// them exists.
    #[inline]
    pub(crate) unsafe fn from_parts(start: NonNull<u8>, len: usize, owner: SharedOwner) -> Self {
        Self { start, len, owner }
    }

    /// The part of this buffer in `range`, sharing the same memory. An empty part owns nothing.
    ///
    /// # Panics
    /// If the range reaches beyond the buffer.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let first = match range.start_bound() {
            Bound::Included(&first) => first,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len,
        };
        assert!(
            first <= end && end <= self.len,
            "slice {first}..{end} of a buffer of {} bytes",
            self.len
        );
        if first == end {
            return Self::new();
        }
        Self {
            // SAFETY: `first` is inside of the buffer, as just asserted.
            start: unsafe { self.start.add(first) },
            len: end - first,
            owner: self.owner.clone(),
        }
    }

    /// The buffer of `part`, sharing the same memory, or `None` unless all of `part` lies in this
    /// buffer.
    pub fn slice_ref(&self, part: &[u8]) -> Option<Self> {
        if part.is_empty() {
            return Some(Self::new());
        }
        let first = part.as_ptr().addr().checked_sub(self.start.addr().get())?;
        let end = first.checked_add(part.len())?;
        (end <= self.len).then(|| self.slice(first..end))
    }

    /// Whether some of the `len` bytes from `start` on are bytes of this buffer.
    pub fn overlaps(&self, start: *const u8, len: usize) -> bool {
        let (own, other) = (self.start.addr().get(), start.addr());
        len > 0 && own < other.saturating_add(len) && other < own + self.len
    }

    /// The right to write, without a copy.
    ///
    /// # Errors
    /// The buffer itself, if other buffers share its memory, or if that is neither an arena's nor
    /// the heap's.
    pub fn try_into_mut(self) -> Result<BufferMut, Self> {
        let Self { start, len, owner } = self;
        let owner = match owner {
            SharedOwner::Arena(block) => match block.into_unique() {
                // SAFETY: the bytes belong to the block, which nobody else refers to now.
                Ok(block) => return Ok(unsafe { BufferMut::from_block(block, start, len) }),
                Err(block) => SharedOwner::Arena(block),
            },
            SharedOwner::Heap(block) => match Arc::try_unwrap(block) {
                // SAFETY: the bytes belong to the heap block, which nobody else refers to now.
                Ok(block) => return Ok(unsafe { BufferMut::from_heap(block, start, len) }),
                Err(block) => SharedOwner::Heap(block),
            },
            SharedOwner::Static if len == 0 => return Ok(BufferMut::new()),
            other => other,
        };
        Err(Self { start, len, owner })
    }

    /// Whether this buffer has its memory, an arena's or the heap's, for itself:
    /// [`Buffer::try_into_mut`] would give it.
    pub fn is_unique(&self) -> bool {
        match &self.owner {
            SharedOwner::Static => self.len == 0,
            SharedOwner::Arena(block) => block.is_unique(),
            SharedOwner::Heap(block) => {
                let is_unique = Arc::strong_count(block) == 1;
                // Whoever learns that nobody else is left may write, after all that former owners
                // have read.
                fence(Ordering::Acquire);
                is_unique
            }
            SharedOwner::Foreign(_) | SharedOwner::Lease(_) => false,
        }
    }

    /// Whether the memory is an arena's.
    pub fn is_arena(&self) -> bool {
        matches!(self.owner, SharedOwner::Arena(_))
    }

    /// Whether somebody lends the memory, as of [`Leases`](crate::Leases): another process may
    /// write it, so that two looks at the same byte can differ.
    pub fn is_borrowed(&self) -> bool {
        matches!(self.owner, SharedOwner::Lease(_))
    }

    /// The same bytes where nobody can change them: a copy of what is borrowed, else this buffer.
    #[must_use]
    pub fn into_private(self) -> Self {
        if self.is_borrowed() {
            return Self::from(self.to_vec());
        }
        self
    }

    /// How another process can see this memory; `None` unless its arena was made to be shared.
    pub fn shared_memory(&self) -> Option<SharedMemory<'_>> {
        match &self.owner {
            SharedOwner::Arena(block) => block.shared_memory(),
            _ => None,
        }
    }

    /// Notes that this memory is in the hands of a user, who may fork: the child then has these
    /// bytes as they are now, whatever becomes of them here. Memory that no other process can map
    /// is like that anyway.
    #[inline]
    pub fn expose(&self) {
        if let SharedOwner::Arena(block) = &self.owner
            && self.len > 0
        {
            block.expose(self.start, self.len);
        }
    }

    /// The region of the arena that the memory lies in, if it is an arena's.
    pub fn region(&self) -> Option<Region> {
        match &self.owner {
            SharedOwner::Arena(block) => Some(block.region()),
            _ => None,
        }
    }
}

impl SharedOwner {
    /// Counts so many references more, each of which is a copy of this one. False if those of this
    /// kind are made one by one.
    fn retain(&self, count: u32) -> bool {
        match self {
            Self::Arena(block) => block.retain(count),
            Self::Lease(lease) => lease.retain(count),
            Self::Static | Self::Heap(_) | Self::Foreign(_) => return false,
        }
        true
    }

    /// Takes back the count of references that were counted and not made.
    fn discount(&self, count: u32) {
        match self {
            Self::Arena(block) => block.discount(count),
            Self::Lease(lease) => lease.discount(count),
            Self::Static | Self::Heap(_) | Self::Foreign(_) => {}
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the owner keeps `len` initialised bytes there, which nobody of this process
        // writes; `from_lease` says what is assumed of other processes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = match self.owner {
            SharedOwner::Static => "static",
            SharedOwner::Arena(_) => "arena",
            SharedOwner::Heap(_) => "heap",
            SharedOwner::Foreign(_) => "foreign",
            SharedOwner::Lease(_) => "borrowed",
        };
        write!(f, "Buffer({} bytes, {memory})", self.len)
    }
}

impl From<BufferMut> for Buffer {
    fn from(buffer: BufferMut) -> Self {
        buffer.freeze()
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        BufferMut::from(bytes).freeze()
    }
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            return Self::new();
        }
        Self::from_owner(bytes)
    }
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Self {
        match buffer.owner {
            // SAFETY: bytes without an owner live as long as the program and are never written.
            SharedOwner::Static => Self::from_static(unsafe {
                std::slice::from_raw_parts(buffer.start.as_ptr(), buffer.len)
            }),
            _ => Self::from_owner(buffer),
        }
    }
}

impl From<&'static [u8]> for Buffer {
    fn from(bytes: &'static [u8]) -> Self {
        Self {
            start: NonNull::from(bytes).cast(),
            len: bytes.len(),
            owner: SharedOwner::Static,
        }
    }
}

const _: () = assert!(size_of::<Buffer>() <= 40);

#[cfg(all(test, not(loom)))]
mod tests;
