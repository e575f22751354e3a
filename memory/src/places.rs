use crate::buddy::Buddy;
use crate::mapping::PAGE_BYTES;
use crate::options::ARENA_BYTES_MAX;
use crate::recent::{Recent, Span};
use crate::reclaim::{BlockId, BlockPlace};
use crate::reservations::{Reservation, Reservations};
use crate::slabs::{Class, Slabs};

/// Decides which part of an arena a request gets. Knows offsets, and no memory.
pub(crate) struct Places {
    buddy: Buddy,
    recent: Recent,
    slabs: Slabs,
    reservations: Reservations,
    /// What the span in use is that starts at a page: its length in pages, or [`RESERVED`] and the
    /// number of its reservation, if only a part of it is handed out.
    spans: Vec<u32>,
}

/// What a span in use is.
enum SpanUse {
    Whole { pages: u32 },
    Reserved { number: u32 },
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
            reservations: Reservations::new(),
            spans: vec![0; page_count as usize],
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

    /// A place for `len` bytes, of which so many are handed out; the rest is free for
    /// [`Places::take_back`] until [`Places::grant`] hands it out. As long as what was handed out.
    ///
    /// Places that have not grown yet take a part of the arena at most: whoever announces much and
    /// sends nothing is not to leave holes everywhere.
    pub(crate) fn reserve(
        &mut self,
        len: usize,
        granted_len: usize,
        has_grown: bool,
    ) -> Option<Place> {
        let pages = span_pages_for(len)?;
        let ungrown_max = self.spans.len() as u64 / UNGROWN_SHARE;
        if !has_grown && self.reservations.ungrown_pages() + u64::from(pages) > ungrown_max {
            return None;
        }
        let granted_pages = pages_of(granted_len)?.max(1);
        let place = self.allocate_span(pages)?;
        if granted_pages >= pages {
            return Some(place);
        }
        let page = (place.offset_bytes / PAGE_BYTES) as u32;
        let number = self.reservations.insert(Reservation {
            span: Span { page, pages },
            granted_pages,
            has_grown,
        });
        self.spans[page as usize] = RESERVED | number;
        Some(Place {
            len_bytes: granted_pages as usize * PAGE_BYTES,
            ..place
        })
    }

    /// Hands out the first `len` bytes of a place that is handed out in part; all of it, if
    /// `is_last`. Says how many bytes more that are, or nothing if the place is not that long, or
    /// no longer.
    pub(crate) fn grant(&mut self, id: BlockId, len: usize, is_last: bool) -> Option<usize> {
        let page = match id.place() {
            BlockPlace::Slot { slab, .. } => {
                return (len <= self.slabs.class(slab).slot_bytes()).then_some(0);
            }
            BlockPlace::Span { page } => page,
        };
        let wanted_pages = pages_of(len)?;
        let number = match self.use_of(page) {
            SpanUse::Whole { pages } => return (wanted_pages <= pages).then_some(0),
            SpanUse::Reserved { number } => number,
        };
        let Reservation {
            span: Span { pages, .. },
            granted_pages,
            ..
        } = self.reservations.get(number);
        if wanted_pages > pages {
            return None;
        }
        let wanted_pages = if is_last { pages } else { wanted_pages };
        if wanted_pages == pages {
            self.reservations.remove(number);
            self.spans[page as usize] = pages;
        } else if wanted_pages > granted_pages {
            self.reservations.grant(number, wanted_pages);
        }
        Some(wanted_pages.saturating_sub(granted_pages) as usize * PAGE_BYTES)
    }

    /// Frees what is reserved and not handed out of one place. False if there is no such place.
    pub(crate) fn take_back(&mut self) -> bool {
        let Some(reservation) = self.reservations.take_oldest() else {
            return false;
        };
        let Reservation {
            span: Span { page, pages },
            granted_pages,
            ..
        } = reservation;
        self.spans[page as usize] = granted_pages;
        self.buddy.free(page + granted_pages, pages - granted_pages);
        true
    }

    /// Bytes that are reserved and not handed out.
    pub(crate) fn ungranted_bytes(&self) -> usize {
        self.reservations.ungranted_pages() as usize * PAGE_BYTES
    }

    /// Takes a place back; says how much of it was handed out.
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
                let (pages, granted_pages) = match self.use_of(page) {
                    SpanUse::Whole { pages } => (pages, pages),
                    SpanUse::Reserved { number } => self.end_reservation(page, number),
                };
                if let Some(oldest) = self.recent.keep(Span { page, pages }) {
                    self.buddy.free(oldest.page, oldest.pages);
                }
                granted_pages as usize * PAGE_BYTES
            }
        }
    }

    #[inline]
    fn use_of(&self, page: u32) -> SpanUse {
        let entry = self.spans[page as usize];
        match entry & RESERVED {
            0 => SpanUse::Whole { pages: entry },
            _ => SpanUse::Reserved {
                number: entry & !RESERVED,
            },
        }
    }

    /// Makes one span of a reservation. Returns its pages, and how many of them were handed out.
    #[cold]
    fn end_reservation(&mut self, page: u32, number: u32) -> (u32, u32) {
        let reservation = self.reservations.remove(number);
        let pages = reservation.span.pages;
        self.spans[page as usize] = pages;
        (pages, reservation.granted_pages)
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

    /// Calls `visit` with offset and length in bytes of each free part of at least `len_bytes_min`,
    /// unless it is kept for quick reuse.
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
                self.spans[page as usize] = pages;
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

/// Pages that a request of `len` bytes gets: up to 1/8 more than it needs, so that lengths which
/// differ a little can follow each other in the same place, and few pieces are left over.
fn span_pages_for(len: usize) -> Option<u32> {
    let pages = pages_of(len)?;
    let step = 1 << pages.ilog2().saturating_sub(SPAN_STEPS_LOG2);
    pages.checked_next_multiple_of(step)
}

/// Pages that hold `len` bytes.
fn pages_of(len: usize) -> Option<u32> {
    u32::try_from(len.div_ceil(PAGE_BYTES)).ok()
}

/// In [`Places::spans`]: the rest is the number of a reservation. Lengths are shorter.
const RESERVED: u32 = 1 << 31;

const _: () = assert!(ARENA_BYTES_MAX / PAGE_BYTES < RESERVED as usize);

/// Part of the arena that reservations may take which have not grown yet.
const UNGROWN_SHARE: u64 = 8;

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

    #[test]
    fn what_is_reserved_is_handed_out_in_place() {
        let mut places = Places::new(16);
        let place = places.reserve(8 * 4096, 1, true).unwrap();
        assert_eq!((place.offset_bytes, place.len_bytes), (0, 4096));
        assert_eq!(places.ungranted_bytes(), 7 * 4096);
        assert_eq!(places.grant(place.id, 4097, false), Some(4096));
        assert_eq!(places.grant(place.id, 100, false), Some(0));
        assert_eq!(places.grant(place.id, 9 * 4096, false), None);
        assert_eq!(places.grant(place.id, 7 * 4096 + 1, false), Some(6 * 4096));
        assert_eq!(places.ungranted_bytes(), 0);
        assert!(!places.take_back());
        assert_eq!(places.free(place.id), 8 * 4096);
    }

    #[test]
    fn what_is_not_handed_out_is_taken_back() {
        let mut places = Places::new(16);
        let old = places.reserve(8 * 4096, 4096, true).unwrap();
        let new = places.reserve(8 * 4096, 2 * 4096, true).unwrap();
        assert_eq!(places.allocate(4096), None);
        assert!(places.take_back());
        let between = places.allocate(6 * 4096).unwrap();
        assert_eq!(between.offset_bytes, 4096);
        assert_eq!(places.grant(old.id, 2 * 4096, false), None, "it is gone");
        assert_eq!(places.grant(new.id, 8 * 4096, true), Some(6 * 4096));
        assert!(!places.take_back());
        let lengths = [old, new, between].map(|place| places.free(place.id));
        assert_eq!(lengths, [4096, 8 * 4096, 6 * 4096]);
        assert_eq!(places.allocate(16 * 4096).unwrap().offset_bytes, 0);
    }

    #[test]
    fn a_reservation_that_is_given_up_comes_home_as_a_whole() {
        let mut places = Places::new(16);
        let place = places.reserve(16 * 4096, 4096, true).unwrap();
        assert_eq!(places.free(place.id), 4096);
        assert_eq!(places.ungranted_bytes(), 0);
        assert!(!places.take_back());
        assert_eq!(places.allocate(16 * 4096).unwrap().offset_bytes, 0);
    }

    #[test]
    fn what_has_not_grown_takes_a_part_of_the_arena() {
        let mut places = Places::new(128);
        let first = places.reserve(16 * 4096, 4096, false).unwrap();
        assert_eq!(places.reserve(2 * 4096, 4096, false), None);
        assert!(places.reserve(2 * 4096, 4096, true).is_some());
        assert_eq!(places.grant(first.id, 2 * 4096, false), Some(4096));
        assert!(places.reserve(16 * 4096, 4096, false).is_some());
    }
}
