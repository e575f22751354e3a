use crate::sync::{AtomicI32, AtomicU32, Ordering, Probe, fence};

/// Names a block of an arena: a span of pages by its first page, or a slot of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockId(u32);

/// What an id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockPlace {
    Span { page: u32 },
    Slot { slab: u32, slot: u32 },
}

/// What threads share about one block. Lies outside of the block.
#[derive(Debug, Default)]
pub(crate) struct BlockEntry {
    references: AtomicU32,
    next: AtomicU32,
    /// Accesses to the block's bytes, for loom.
    pub(crate) bytes: Probe,
}

/// The road on which blocks come home: pushed by any thread, taken whole by the owner.
///
/// Made of atomics and nothing else, because a thread may still hold a reference to it, which it no
/// longer uses, while the owner frees it.
#[derive(Debug)]
pub(crate) struct ReclaimList {
    head: AtomicU32,
    outstanding_after_close: AtomicI32,
}

/// What became of a block that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenBack {
    /// The owner will find it. The list may be gone by now.
    Listed,
    /// The arena is gone, other blocks are still out.
    Forgotten,
    /// The arena is gone and this was its last block: the caller frees everything.
    Last,
}

impl BlockId {
    #[inline]
    pub(crate) fn span(page: u32) -> Self {
        debug_assert!(page < SLOT_BIT);
        Self(page)
    }

    #[inline]
    pub(crate) fn slot(slab: u32, slot: u32) -> Self {
        debug_assert!(slab < SLABS_MAX && slot < SLOTS_PER_SLAB);
        Self(SLOT_BIT | (slab * SLOTS_PER_SLAB + slot))
    }

    #[inline]
    pub(crate) fn raw(self) -> u32 {
        self.0
    }

    /// The id with this number, which is that of an id.
    #[inline]
    pub(crate) fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    #[inline]
    pub(crate) fn place(self) -> BlockPlace {
        if self.0 & SLOT_BIT == 0 {
            return BlockPlace::Span { page: self.0 };
        }
        let index = self.0 & !SLOT_BIT;
        BlockPlace::Slot {
            slab: index / SLOTS_PER_SLAB,
            slot: index % SLOTS_PER_SLAB,
        }
    }
}

impl BlockEntry {
    /// The unique owner becomes the first of any number.
    #[inline]
    pub(crate) fn share(&self) {
        self.references.store(1, Ordering::Relaxed);
    }

    /// So many more owners. Called by one of them, so the count cannot reach zero meanwhile.
    #[inline]
    pub(crate) fn retain(&self, count: u32) {
        if self.references.fetch_add(count, Ordering::Relaxed) > REFERENCES_MAX {
            // As in `Arc`: only clones that were forgotten can get here, and the next step would be
            // a block that is freed while it is in use.
            std::process::abort();
        }
    }

    /// So many owners fewer; `true` if they were the last, who then see everything the others did.
    #[inline]
    pub(crate) fn release(&self, count: u32) -> bool {
        if self.references.fetch_sub(count, Ordering::Release) != count {
            return false;
        }
        fence(Ordering::Acquire);
        true
    }

    /// Whether the calling owner is the only one, who then sees everything former owners did.
    #[inline]
    pub(crate) fn is_unique(&self) -> bool {
        self.references.load(Ordering::Acquire) == 1
    }
}

impl ReclaimList {
    pub(crate) fn new() -> Self {
        Self {
            head: AtomicU32::new(EMPTY),
            outstanding_after_close: AtomicI32::new(0),
        }
    }

    /// Gives a block back, of which the caller is the last owner.
    #[inline]
    pub(crate) fn push(&self, id: BlockId, entry: &BlockEntry) -> GivenBack {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head == CLOSED {
                // AcqRel: whoever brings the count to zero frees memory that all others have done
                // with.
                let before = self.outstanding_after_close.fetch_sub(1, Ordering::AcqRel);
                return if before == 1 {
                    GivenBack::Last
                } else {
                    GivenBack::Forgotten
                };
            }
            entry.next.store(head, Ordering::Relaxed);
            // Release: the owner sees the link, and what was done to the block's bytes.
            match self
                .head
                .compare_exchange_weak(head, id.0, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return GivenBack::Listed,
                Err(found) => head = found,
            }
        }
    }

    /// Takes all blocks that came back. Only the owner calls this.
    #[inline]
    pub(crate) fn take_all(&self) -> Chain {
        // A look saves the swap. loom has to see the swap: it forgets a load that another thread's
        // load follows.
        if cfg!(not(loom)) && self.head.load(Ordering::Relaxed) == EMPTY {
            return Chain::empty();
        }
        Chain(self.head.swap(EMPTY, Ordering::Acquire))
    }

    /// Takes all blocks that came back, and lets none come after. Only the owner calls this, once.
    pub(crate) fn close(&self) -> Chain {
        Chain(self.head.swap(CLOSED, Ordering::AcqRel))
    }

    /// After [`ReclaimList::close`]: says how many blocks are still out. `true` if all of them came
    /// back since, so the caller frees everything; otherwise the last block's owner does.
    pub(crate) fn settle(&self, outstanding: u32) -> bool {
        // The count of ids is below 2^31, and blocks that came back since have made it negative.
        let added = outstanding.cast_signed();
        self.outstanding_after_close
            .fetch_add(added, Ordering::AcqRel)
            + added
            == 0
    }
}

/// Blocks that came back, linked through their entries.
#[derive(Debug)]
pub(crate) struct Chain(u32);

impl Chain {
    #[inline]
    pub(crate) fn empty() -> Self {
        Self(EMPTY)
    }

    /// The first block, if any.
    #[inline]
    pub(crate) fn first(&self) -> Option<BlockId> {
        (self.0 != EMPTY).then_some(BlockId(self.0))
    }

    /// Goes on behind the first block, whose entry this is.
    #[inline]
    pub(crate) fn advance(&mut self, entry: &BlockEntry) {
        self.0 = entry.next.load(Ordering::Relaxed);
    }
}

/// Slots of a slab: one bit each in a word.
pub(crate) const SLOTS_PER_SLAB: u32 = 64;

/// Most slabs of one arena: keeps the address space of the table of slots below 128 MiB. Small
/// requests beyond them get a page each.
pub(crate) const SLABS_MAX: u32 = 1 << 18;

const SLOT_BIT: u32 = 1 << 31;
const EMPTY: u32 = u32::MAX;
const CLOSED: u32 = u32::MAX - 1;
const REFERENCES_MAX: u32 = u32::MAX / 2;

const _: () = assert!(SLABS_MAX as u64 * (SLOTS_PER_SLAB as u64) < SLOT_BIT as u64 - 2);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_its_place() {
        for page in [0, 1, 12_345, SLOT_BIT - 1] {
            assert_eq!(BlockId::span(page).place(), BlockPlace::Span { page });
        }
        for (slab, slot) in [(0, 0), (0, 63), (7, 1), (SLABS_MAX - 1, 63)] {
            assert_eq!(
                BlockId::slot(slab, slot).place(),
                BlockPlace::Slot { slab, slot }
            );
        }
    }

    #[test]
    fn what_is_pushed_is_taken_once_in_reverse() {
        let entries: Vec<BlockEntry> = (0..3).map(|_| BlockEntry::default()).collect();
        let list = ReclaimList::new();
        assert_eq!(list.take_all().first(), None);
        for page in 0..3 {
            let pushed = list.push(BlockId::span(page), &entries[page as usize]);
            assert_eq!(pushed, GivenBack::Listed);
        }
        let mut chain = list.take_all();
        for page in [2, 1, 0] {
            assert_eq!(chain.first(), Some(BlockId::span(page)));
            chain.advance(&entries[page as usize]);
        }
        assert_eq!(chain.first(), None);
        assert_eq!(list.take_all().first(), None);
    }

    #[test]
    fn exactly_one_frees_after_close() {
        let entry = BlockEntry::default();
        let list = ReclaimList::new();
        assert_eq!(list.close().first(), None);
        assert!(list.settle(0), "nothing out: the arena frees");

        let list = ReclaimList::new();
        list.close();
        assert!(!list.settle(2));
        assert_eq!(list.push(BlockId::span(0), &entry), GivenBack::Forgotten);
        assert_eq!(list.push(BlockId::span(1), &entry), GivenBack::Last);

        let list = ReclaimList::new();
        list.close();
        assert_eq!(list.push(BlockId::span(0), &entry), GivenBack::Forgotten);
        assert!(
            list.settle(1),
            "the last came back before the count was known"
        );
    }

    #[test]
    fn the_last_of_all_references_is_known() {
        let entry = BlockEntry::default();
        entry.share();
        assert!(entry.is_unique());
        entry.retain(3);
        assert!(!entry.is_unique());
        assert!(!entry.release(1));
        assert!(!entry.release(2));
        assert!(entry.is_unique());
        assert!(entry.release(1));
    }
}
