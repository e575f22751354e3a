#![expect(
    unsafe_code,
    reason = "blocks are ranges of a mapping that lives as long as they do"
)]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use crate::mapping::{Mapping, PAGE_BYTES};
use crate::options::ArenaOptions;
use crate::reclaim::{
    BlockEntry, BlockId, BlockPlace, Chain, GivenBack, ReclaimList, SLOTS_PER_SLAB,
};
use crate::region::{Region, RegionKind, SharedMemory};
use crate::together;

/// The owner's side of the memory behind an arena.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: NonNull<PoolShared>,
    /// Blocks that came back and are not looked at yet.
    returned: Chain,
    outstanding: u32,
}

/// What the arena and all its blocks hold together; freed by whoever goes last.
struct PoolShared {
    memory: Mapping,
    spans: EntryTable,
    slots: EntryTable,
    reclaim: CacheLines<ReclaimList>,
    /// No other arena of this process has the same.
    serial: u64,
}

/// A block with one owner.
#[derive(Debug)]
pub(crate) struct UniqueBlock {
    pool: NonNull<PoolShared>,
    id: BlockId,
}

/// One of several references to a block.
#[derive(Debug)]
pub(crate) struct SharedBlock {
    pool: NonNull<PoolShared>,
    id: BlockId,
}

// SAFETY: the owner's side touches shared state only through atomics and immutable fields, and the
// rest is its own.
unsafe impl Send for Pool {}
// SAFETY: a block is the right to a range of memory and to one push onto a list made for any
// thread.
unsafe impl Send for UniqueBlock {}
// SAFETY: shared references to a block read immutable fields only.
unsafe impl Sync for UniqueBlock {}
// SAFETY: as for `UniqueBlock`; the count of references is atomic.
unsafe impl Send for SharedBlock {}
// SAFETY: as for `UniqueBlock`; cloning touches an atomic.
unsafe impl Sync for SharedBlock {}

impl Pool {
    /// Memory for `page_count` pages with up to `slab_count` slabs, neither of them zero.
    pub(crate) fn new(
        page_count: u32,
        slab_count: u32,
        options: &ArenaOptions,
    ) -> io::Result<Self> {
        let len_bytes = page_count as usize * PAGE_BYTES;
        let memory = if options.shared {
            Mapping::shared(len_bytes)?
        } else {
            Mapping::new(len_bytes)?
        };
        if options.huge_pages {
            memory.advise_huge_pages();
        }
        let shared = Box::new(PoolShared {
            memory,
            spans: EntryTable::new(page_count as usize)?,
            slots: EntryTable::new(slab_count as usize * SLOTS_PER_SLAB as usize)?,
            reclaim: CacheLines(ReclaimList::new()),
            serial: NEXT_SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
        });
        Ok(Self {
            shared: NonNull::from(Box::leak(shared)),
            returned: Chain::empty(),
            outstanding: 0,
        })
    }

    /// Makes the block with this id and its first byte.
    ///
    /// # Safety
    /// No block with this id is out, and no block that is out overlaps the memory from
    /// `offset_bytes` on that the caller is going to use.
    #[inline]
    pub(crate) unsafe fn issue(
        &mut self,
        id: BlockId,
        offset_bytes: usize,
    ) -> (UniqueBlock, NonNull<u8>) {
        let shared = self.shared();
        assert!(offset_bytes < shared.memory.len_bytes());
        // SAFETY: inside of the mapping, as just asserted.
        let start = unsafe { shared.memory.base().add(offset_bytes) };
        shared.entry(id).bytes.write();
        self.outstanding += 1;
        let block = UniqueBlock {
            pool: self.shared,
            id,
        };
        (block, start)
    }

    /// A block that came back, if any.
    #[inline]
    pub(crate) fn next_returned(&mut self) -> Option<BlockId> {
        if self.returned.first().is_none() {
            self.returned = self.shared().reclaim.0.take_all();
        }
        let id = self.returned.first()?;
        // SAFETY: this side keeps the shared state alive; borrowed from the field, not from all of
        // `self`.
        let shared = unsafe { self.shared.as_ref() };
        self.returned.advance(shared.entry(id));
        self.outstanding -= 1;
        Some(id)
    }

    /// Nobody looks at these whole pages any more.
    #[inline]
    pub(crate) fn forget_exposed(&self, place: Range<usize>) {
        self.shared().memory.forget_exposed(place);
    }

    /// Blocks that are out, or came back and were not taken by [`Pool::next_returned`] yet.
    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    pub(crate) fn region(&self) -> Region {
        self.shared().region()
    }

    /// Gives pages back to the kernel.
    ///
    /// # Safety
    /// Whole pages of the mapping, which belong to no block that is out.
    pub(crate) unsafe fn discard(&self, offset_bytes: usize, len_bytes: usize) {
        // SAFETY: stated by the caller.
        unsafe { self.shared().memory.discard(offset_bytes, len_bytes) };
    }

    #[inline]
    fn shared(&self) -> &PoolShared {
        // SAFETY: freed only after `Drop` of this side has settled the account.
        unsafe { self.shared.as_ref() }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        while self.returned.first().is_some() && self.next_returned().is_some() {}
        self.returned = self.shared().reclaim.0.close();
        while let Some(id) = self.returned.first() {
            // SAFETY: this side still keeps the shared state alive.
            let shared = unsafe { self.shared.as_ref() };
            self.returned.advance(shared.entry(id));
            self.outstanding -= 1;
        }
        if self.shared().reclaim.0.settle(self.outstanding) {
            // SAFETY: every block came back, so nobody else refers to the shared state.
            unsafe { free(self.shared) };
        }
    }
}

impl UniqueBlock {
    /// Gives up the right to write.
    #[inline]
    pub(crate) fn share(self) -> SharedBlock {
        let block = std::mem::ManuallyDrop::new(self);
        // SAFETY: this block is out, so the shared state is alive.
        let entry = unsafe { block.pool.as_ref() }.entry(block.id);
        entry.bytes.write();
        entry.share();
        SharedBlock {
            pool: block.pool,
            id: block.id,
        }
    }

    pub(crate) fn region(&self) -> Region {
        // SAFETY: this block is out, so the shared state is alive.
        unsafe { self.pool.as_ref() }.region()
    }

    /// The id of the block, if it is one of this pool.
    pub(crate) fn id_in(&self, pool: &Pool) -> Option<BlockId> {
        (self.pool == pool.shared).then_some(self.id)
    }
}

impl Drop for UniqueBlock {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this was the only owner of the block, and is going.
        unsafe { give_back(self.pool, self.id) };
    }
}

impl SharedBlock {
    /// Counts so many references more, which are few beside those that would make the count
    /// overflow.
    #[inline]
    pub(crate) fn retain(&self, count: u32) {
        // SAFETY: this block is out, so the shared state is alive.
        unsafe { self.pool.as_ref() }.entry(self.id).retain(count);
    }

    /// Takes back the count of references that nobody has, so that the last one cannot be among
    /// them.
    #[inline]
    pub(crate) fn discount(&self, count: u32) {
        // SAFETY: this block is out, so the shared state is alive.
        let was_last = unsafe { self.pool.as_ref() }.entry(self.id).release(count);
        debug_assert!(!was_last, "this is a reference too");
    }

    /// Whether this is the only reference.
    pub(crate) fn is_unique(&self) -> bool {
        together::settle();
        // SAFETY: this block is out, so the shared state is alive.
        unsafe { self.pool.as_ref() }.entry(self.id).is_unique()
    }

    /// The right to write, if this is the only reference.
    pub(crate) fn into_unique(self) -> Result<UniqueBlock, Self> {
        if !self.is_unique() {
            return Err(self);
        }
        // SAFETY: this block is out, so the shared state is alive.
        unsafe { self.pool.as_ref() }.entry(self.id).bytes.write();
        let block = std::mem::ManuallyDrop::new(self);
        Ok(UniqueBlock {
            pool: block.pool,
            id: block.id,
        })
    }

    pub(crate) fn region(&self) -> Region {
        // SAFETY: this block is out, so the shared state is alive.
        unsafe { self.pool.as_ref() }.region()
    }
}

impl SharedBlock {
    /// Users look at `len` bytes at `start` from now on, which are of this block.
    #[inline]
    pub(crate) fn expose(&self, start: NonNull<u8>, len: usize) {
        // SAFETY: this block is out, so the shared state is alive.
        let memory = unsafe { &self.pool.as_ref().memory };
        let offset = start.addr().get() - memory.base().addr().get();
        memory.expose(offset..offset + len);
    }

    /// How other processes see the region, if it is shared.
    pub(crate) fn shared_memory(&self) -> Option<SharedMemory<'_>> {
        // SAFETY: this block is out, so the shared state is alive.
        let shared = unsafe { self.pool.as_ref() };
        Some(SharedMemory {
            descriptor: shared.memory.descriptor()?,
            region: shared.region(),
            serial: shared.serial,
        })
    }
}

impl Clone for SharedBlock {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: this block is out, so the shared state is alive.
        unsafe { self.pool.as_ref() }.entry(self.id).retain(1);
        Self {
            pool: self.pool,
            id: self.id,
        }
    }
}

impl Drop for SharedBlock {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is a reference, and going. All that wait together are to this block, which
        // is out until then.
        unsafe { together::release(self.pool.cast(), self.id.raw(), release) };
    }
}

/// # Safety
/// The caller has so many references to the block of this pool, which is out, and uses them no
/// more.
#[inline(always)]
unsafe fn release(pool: NonNull<()>, id: u32, count: u32) {
    let (pool, id) = (pool.cast::<PoolShared>(), BlockId::from_raw(id));
    // SAFETY: the block is out, so the shared state is alive.
    let entry = unsafe { pool.as_ref() }.entry(id);
    entry.bytes.read();
    if entry.release(count) {
        // SAFETY: the last owners of the block, and going.
        unsafe { give_back(pool, id) };
    }
}

impl PoolShared {
    #[inline]
    fn entry(&self, id: BlockId) -> &BlockEntry {
        match id.place() {
            BlockPlace::Span { page } => self.spans.entry(page as usize),
            BlockPlace::Slot { slab, slot } => {
                self.slots.entry((slab * SLOTS_PER_SLAB + slot) as usize)
            }
        }
    }

    fn region(&self) -> Region {
        Region {
            base: self.memory.base().addr().get(),
            len: self.memory.len_bytes(),
            kind: RegionKind::Host,
        }
    }
}

/// Not inlined, so that a reference that is not the last is dropped in a few instructions, without
/// a stack.
///
/// # Safety
/// The caller is the last owner of the block and does not use it, nor the pool, after the call.
#[inline(never)]
unsafe fn give_back(pool: NonNull<PoolShared>, id: BlockId) {
    // SAFETY: the block is out until `push` has listed it, and `push` uses neither reference after
    // that.
    let pushed = unsafe {
        let entry = pool.as_ref().entry(id);
        entry.bytes.write();
        pool.as_ref().reclaim.0.push(id, entry)
    };
    if pushed == GivenBack::Last {
        // SAFETY: the arena is gone and so are all other blocks.
        unsafe { free(pool) };
    }
}

/// # Safety
/// Nobody else refers to the pool, and it was made by `Pool::new`.
#[cold]
unsafe fn free(pool: NonNull<PoolShared>) {
    // SAFETY: leaked from a box by `Pool::new`, freed once as the caller states.
    drop(unsafe { Box::from_raw(pool.as_ptr()) });
}

/// Entries in a mapping of their own, of which only those in use are ever touched.
struct EntryTable {
    mapping: Mapping,
    len: usize,
}

impl EntryTable {
    fn new(len: usize) -> io::Result<Self> {
        let bytes = len * size_of::<BlockEntry>();
        let mapping = Mapping::new(bytes.next_multiple_of(PAGE_BYTES))?;
        #[cfg(loom)]
        for index in 0..len {
            // SAFETY: inside of the mapping, which is long and aligned enough; loom's atomics are
            // not valid as zeros, unlike real ones.
            unsafe {
                let entries = mapping.base().cast::<BlockEntry>();
                entries.add(index).write(BlockEntry::default());
            }
        }
        Ok(Self { mapping, len })
    }

    #[inline]
    fn entry(&self, index: usize) -> &BlockEntry {
        assert!(index < self.len);
        // SAFETY: `index` is inside of the mapping, which is zeroed and aligned, lives as long as
        // `self`, and is only ever used as entries; two atomics are valid as zeros.
        unsafe { self.mapping.base().cast::<BlockEntry>().add(index).as_ref() }
    }
}

#[cfg(loom)]
impl Drop for EntryTable {
    fn drop(&mut self) {
        for index in 0..self.len {
            // SAFETY: written by `new` and dropped once, here.
            unsafe {
                let entries = self.mapping.base().cast::<BlockEntry>();
                entries.add(index).as_ref().bytes.write();
                entries.add(index).drop_in_place();
            }
        }
    }
}

/// Tells arenas apart that lie at the same place one after the other.
static NEXT_SERIAL: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Keeps what other threads write off the cache lines, and their prefetched neighbours, of what
/// they read.
#[repr(align(128))]
struct CacheLines<T>(T);
