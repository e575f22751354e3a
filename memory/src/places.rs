use crate::buddy::Buddy;
use crate::mapping::PAGE_BYTES;
use crate::recent::{Recent, Span};
use crate::reclaim::{BlockId, BlockPlace};
use crate::slabs::{Class, Slabs};

/// Decides which part of an arena a request gets. Knows offsets, and no memory.
pub(crate) struct Places {
    buddy: Buddy,
    recent: Recent,
    slabs: Slabs,
    /// Length of the span in use that starts at a page.
    span_pages: Vec<u32>,
}

/// A part of the arena that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) id: BlockId,
    pub(crate) offset_bytes: usize,
    pub(crate) len_bytes: usize,
}

impl Places {
    pub(crate) fn new(page_count: u32) -> Self {
        Self {
            buddy: Buddy::new(page_count),
            recent: Recent::default(),
            slabs: Slabs::new(page_count),
            span_pages: vec![0; page_count as usize],
        }
    }

    /// A place for `len` bytes, not zero, that overlaps no other one in use.
    #[inline]
    pub(crate) fn allocate(&mut self, len: usize) -> Option<Place> {
        if let Some(class) = Class::for_len(len)
            && let Some(place) = self.allocate_slot(class)
        {
            return Some(place);
        }
        self.allocate_span(span_pages_for(len)?)
    }

    /// Takes a place back; says how long it was.
    #[inline]
    pub(crate) fn free(&mut self, id: BlockId) -> usize {
        match id.place() {
            BlockPlace::Slot { slab, slot } => {
                let len_bytes = self.slabs.class(slab).slot_bytes();
                if let Some(dissolved) = self.slabs.free(slab, slot) {
                    self.buddy.free(dissolved.page, dissolved.pages);
                }
                len_bytes
            }
            BlockPlace::Span { page } => {
                let pages = self.span_pages[page as usize];
                if let Some(oldest) = self.recent.keep(Span { page, pages }) {
                    self.buddy.free(oldest.page, oldest.pages);
                }
                pages as usize * PAGE_BYTES
            }
        }
    }

    /// Merges everything that is kept whole for quick reuse.
    pub(crate) fn merge(&mut self) {
        while let Some(span) = self.recent.take_any() {
            self.buddy.free(span.page, span.pages);
        }
        while let Some(empty) = self.slabs.take_empty() {
            self.buddy.free(empty.page, empty.pages);
        }
    }

    /// Calls `visit` with offset and length in bytes of each free part of at least `len_bytes_min`, unless it is
    /// kept for quick reuse.
    pub(crate) fn each_free(&self, len_bytes_min: usize, mut visit: impl FnMut(usize, usize)) {
        let pages_min = u32::try_from(len_bytes_min.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX);
        self.buddy.each_free(pages_min, |page, pages| {
            visit(page as usize * PAGE_BYTES, pages as usize * PAGE_BYTES);
        });
    }

    #[inline]
    fn allocate_slot(&mut self, class: Class) -> Option<Place> {
        let slot = match self.slabs.allocate(class) {
            Some(slot) => slot,
            None => {
                if !self.slabs.has_room() {
                    return None;
                }
                let page = self.allocate_pages(class.slab_pages())?;
                self.slabs.add(class, page);
                self.slabs.allocate(class)?
            }
        };
        Some(Place {
            id: BlockId::slot(slot.slab, slot.slot),
            offset_bytes: slot.offset_bytes,
            len_bytes: class.slot_bytes(),
        })
    }

    #[inline]
    fn allocate_span(&mut self, pages: u32) -> Option<Place> {
        let page = match self.recent.take(pages) {
            Some(page) => page,
            None => {
                let page = self.allocate_pages(pages)?;
                self.span_pages[page as usize] = pages;
                page
            }
        };
        Some(Place {
            id: BlockId::span(page),
            offset_bytes: page as usize * PAGE_BYTES,
            len_bytes: pages as usize * PAGE_BYTES,
        })
    }

    fn allocate_pages(&mut self, pages: u32) -> Option<u32> {
        if let Some(page) = self.buddy.allocate(pages) {
            return Some(page);
        }
        self.merge();
        self.buddy
            .allocate(pages)
            .or_else(|| self.buddy.allocate_across(pages))
    }
}

/// Pages that a request of `len` bytes gets: up to 1/8 more than it needs, so that lengths which differ a
/// little can follow each other in the same place, and few pieces are left over.
fn span_pages_for(len: usize) -> Option<u32> {
    let pages = u32::try_from(len.div_ceil(PAGE_BYTES)).ok()?;
    let step = 1 << pages.ilog2().saturating_sub(SPAN_STEPS_LOG2);
    pages.checked_next_multiple_of(step)
}

/// Lengths of spans between a power of two and the next one: 8.
const SPAN_STEPS_LOG2: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_waste_an_eighth_at_most() {
        assert_eq!(span_pages_for(1), Some(1));
        assert_eq!(span_pages_for(4097), Some(2));
        assert_eq!(span_pages_for(15 * 4096), Some(15));
        assert_eq!(span_pages_for(17 * 4096), Some(18));
        assert_eq!(span_pages_for((1 << 20) + 1), Some(288));
        assert_eq!(span_pages_for(usize::MAX), None);
        for pages in 1..10_000usize {
            let given = span_pages_for(pages * PAGE_BYTES).unwrap() as usize;
            assert!(given >= pages && given * 8 <= pages * 9);
        }
    }

    #[test]
    fn small_requests_get_a_page_when_no_slab_fits() {
        let mut places = Places::new(1);
        let place = places.allocate(2048).unwrap();
        assert_eq!(place.id, BlockId::span(0));
        assert_eq!(places.free(place.id), 4096);
        assert_eq!(places.allocate(64).unwrap().id, BlockId::slot(0, 0));
    }

    #[test]
    fn an_empty_slab_gives_way_to_a_span() {
        let mut places = Places::new(1);
        let slot = places.allocate(64).unwrap();
        assert_eq!(places.allocate(4096), None);
        assert_eq!(places.free(slot.id), 64);
        assert_eq!(places.allocate(4096).unwrap().len_bytes, 4096);
    }

    #[test]
    fn recent_spans_give_way_to_a_long_one() {
        let mut places = Places::new(16);
        let ids: Vec<BlockId> = (0..16).map(|_| places.allocate(4096).unwrap().id).collect();
        for id in ids {
            places.free(id);
        }
        assert_eq!(places.allocate(16 * 4096).unwrap().offset_bytes, 0);
    }
}
