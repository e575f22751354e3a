#![expect(unsafe_code, reason = "a pointer and a length become a slice")]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::block::{Pool, UniqueBlock};
use crate::buffer::{Buffer, SharedOwner};
use crate::heap::HeapBlock;
use crate::reclaim::BlockId;
use crate::region::Region;

/// Memory with one owner, which may write it.
#[derive(Default)]
pub struct BufferMut {
    start: Start,
    len: usize,
    owner: UniqueOwner,
}

/// What keeps the bytes of a [`BufferMut`] alive.
#[derive(Default)]
enum UniqueOwner {
    /// There are no bytes.
    #[default]
    Nobody,
    Arena(UniqueBlock),
    Heap(HeapBlock),
    Foreign(Arc<dyn Send + Sync>),
}

/// An owner that is never used again but for its drop.
pub(crate) struct DropOnly(#[expect(dead_code, reason = "held to be dropped")] Box<dyn Send>);

// SAFETY: nothing can be done with a shared reference to it: the field is private and no method
// reads it.
unsafe impl Sync for DropOnly {}

impl DropOnly {
    pub(crate) fn new(owner: Box<dyn Send>) -> Self {
        Self(owner)
    }
}

// SAFETY: the buffer owns the bytes alone, and each kind of owner is `Send`.
unsafe impl Send for BufferMut {}
// SAFETY: a shared reference to the buffer only reads the bytes, and each kind of owner is `Sync`.
unsafe impl Sync for BufferMut {}

impl BufferMut {
    /// An empty buffer, which owns nothing.
    pub const fn new() -> Self {
        Self {
            start: Start(NonNull::dangling()),
            len: 0,
            owner: UniqueOwner::Nobody,
        }
    }

    /// `len` zero bytes from the heap.
    pub fn zeroed(len: usize) -> Self {
        Self::from(vec![0; len])
    }

    /// Memory that somebody else made, for instance a library's tensor; `owner` is dropped, on any
    /// thread, when the last buffer over it is.
    ///
    /// # Safety
    /// `start` points to `len` initialised bytes outside of the box itself that stay there until
    /// `owner` is dropped, and that nothing else reads or writes until then. `len` is at most
    /// `isize::MAX`.
    pub unsafe fn from_foreign(start: NonNull<u8>, len: usize, owner: Box<dyn Send>) -> Self {
        let owner = Arc::new(DropOnly::new(owner));
        // SAFETY: stated by the caller.
        unsafe { Self::from_shared(start, len, owner) }
    }

    /// # Safety
    /// `start` points to `len` initialised bytes that stay there, and that nothing else reads or
    /// writes, until `owner` is dropped.
    pub(crate) unsafe fn from_shared(
        start: NonNull<u8>,
        len: usize,
        owner: Arc<dyn Send + Sync>,
    ) -> Self {
        Self {
            start: Start(start),
            len,
            owner: UniqueOwner::Foreign(owner),
        }
    }

    /// # Safety
    /// `start` points to `len` initialised bytes of the block.
    #[inline]
    pub(crate) unsafe fn from_block(block: UniqueBlock, start: NonNull<u8>, len: usize) -> Self {
        Self {
            start: Start(start),
            len,
            owner: UniqueOwner::Arena(block),
        }
    }

    /// # Safety
    /// `start` points to `len` bytes of the heap block.
    pub(crate) unsafe fn from_heap(block: HeapBlock, start: NonNull<u8>, len: usize) -> Self {
        Self {
            start: Start(start),
            len,
            owner: UniqueOwner::Heap(block),
        }
    }

    /// Gives up the right to write. Copies nothing, and allocates nothing unless the memory is the
    /// heap's.
    #[inline]
    pub fn freeze(self) -> Buffer {
        if self.len == 0 {
            return Buffer::new();
        }
        let owner = match self.owner {
            UniqueOwner::Nobody => return Buffer::new(),
            UniqueOwner::Arena(block) => SharedOwner::Arena(block.share()),
            UniqueOwner::Heap(block) => SharedOwner::Heap(Arc::new(block)),
            UniqueOwner::Foreign(owner) => SharedOwner::Foreign(owner),
        };
        // SAFETY: the bytes were this buffer's alone, nobody can write them any more, and the owner
        // keeps them.
        unsafe { Buffer::from_parts(self.start.0, self.len, owner) }
    }

    /// Shortens the buffer to its first `len` bytes; longer values change nothing.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Where the bytes lie, for code that parts them.
    pub(crate) fn start_mut(&mut self) -> NonNull<u8> {
        self.start.0
    }

    /// The block of the memory, if it is one of this pool.
    pub(crate) fn block_in(&self, pool: &Pool) -> Option<BlockId> {
        match &self.owner {
            UniqueOwner::Arena(block) => block.id_in(pool),
            UniqueOwner::Nobody | UniqueOwner::Heap(_) | UniqueOwner::Foreign(_) => None,
        }
    }

    /// Lengthens the buffer to `len` bytes.
    ///
    /// # Safety
    /// So many bytes from its start on are initialised and belong to its owner.
    pub(crate) unsafe fn extend_to(&mut self, len: usize) {
        self.len = len;
    }

    /// Whether the memory is an arena's.
    pub fn is_arena(&self) -> bool {
        matches!(self.owner, UniqueOwner::Arena(_))
    }

    /// The region of the arena that the memory lies in, if it is an arena's.
    pub fn region(&self) -> Option<Region> {
        match &self.owner {
            UniqueOwner::Arena(block) => Some(block.region()),
            _ => None,
        }
    }
}

impl Deref for BufferMut {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the owner keeps `len` initialised bytes there, which only this buffer can write.
        unsafe { std::slice::from_raw_parts(self.start.0.as_ptr(), self.len) }
    }
}

impl DerefMut for BufferMut {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and this is the only reference to the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.start.0.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for BufferMut {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for BufferMut {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl From<Vec<u8>> for BufferMut {
    fn from(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        let (block, start) = HeapBlock::from_vec(bytes);
        // SAFETY: the vector held `len` initialised bytes at its start.
        unsafe { Self::from_heap(block, start, len) }
    }
}

impl fmt::Debug for BufferMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = match self.owner {
            UniqueOwner::Nobody => "none",
            UniqueOwner::Arena(_) => "arena",
            UniqueOwner::Heap(_) => "heap",
            UniqueOwner::Foreign(_) => "foreign",
        };
        write!(f, "BufferMut({} bytes, {memory})", self.len)
    }
}

/// First byte of a buffer; of an empty one by default.
#[derive(Clone, Copy)]
struct Start(NonNull<u8>);

impl Default for Start {
    fn default() -> Self {
        Self(NonNull::dangling())
    }
}

const _: () = assert!(size_of::<BufferMut>() <= 40);
