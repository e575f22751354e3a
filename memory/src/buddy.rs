/// Hands out spans of pages; free neighbours grow together again.
///
/// A free span is 2^order pages long and starts at a multiple of its length. Spans handed out may
/// have any length: they are cut from the start of such a span, and the tail stays free. All it
/// knows lies in tables beside the pages. Allocating and freeing take steps in proportion to the
/// number of orders.
pub(crate) struct Buddy {
    page_count: u32,
    /// Previous and next span of the same order; valid where a free span starts.
    links: Vec<[u32; 2]>,
    /// Order plus one where a free span starts, else 0.
    free_orders: Vec<u8>,
    /// First free span of each order.
    heads: [u32; ORDERS],
    /// Bit n: there is a free span of order n.
    orders_free: u32,
}

impl Buddy {
    pub(crate) fn new(page_count: u32) -> Self {
        assert!(page_count < 1 << (ORDERS - 1));
        let mut buddy = Self {
            page_count,
            links: vec![[0; 2]; page_count as usize],
            free_orders: vec![0; page_count as usize],
            heads: [NONE; ORDERS],
            orders_free: 0,
        };
        buddy.free(0, page_count);
        buddy
    }

    /// First page of `pages` pages that nobody else has; `pages` is not zero.
    pub(crate) fn allocate(&mut self, pages: u32) -> Option<u32> {
        let order = pages.checked_next_power_of_two()?.trailing_zeros() as usize;
        if order >= ORDERS {
            return None;
        }
        let found = order + (self.orders_free >> order).trailing_zeros() as usize;
        if found >= ORDERS {
            return None;
        }
        let page = self.heads[found];
        self.unlink(page, found);
        for half in (order..found).rev() {
            self.link(page + (1 << half), half);
        }
        let tail = (1 << order) - pages;
        self.each_aligned(page + pages, tail, Self::link);
        Some(page)
    }

    /// As [`Buddy::allocate`], but also across the borders of free spans that lie side by side:
    /// what serves a request of more than half of the arena. Looks at a bounded number of spans,
    /// the longest first.
    pub(crate) fn allocate_across(&mut self, pages: u32) -> Option<u32> {
        // So many pages in a row hold an aligned span of a quarter of the next power of two.
        let order_min = pages.checked_ilog2()?.saturating_sub(1) as usize;
        let mut looked_at = 0;
        for order in (order_min..ORDERS).rev() {
            let mut page = self.heads[order];
            while page != NONE {
                let (start, end) = self.free_run_around(page, order);
                if end - start >= pages {
                    self.unlink_run(start, end);
                    self.free(start + pages, end - start - pages);
                    return Some(start);
                }
                looked_at += 1;
                if looked_at == SPANS_LOOKED_AT_MAX {
                    return None;
                }
                page = self.links[page as usize][NEXT];
            }
        }
        None
    }

    /// Takes back `pages` pages from `page` on, which were handed out together.
    pub(crate) fn free(&mut self, page: u32, pages: u32) {
        self.each_aligned(page, pages, Self::merge);
    }

    /// Calls `visit` with the first page and the length in pages of each free span of at least
    /// `pages_min`.
    pub(crate) fn each_free(&self, pages_min: u32, mut visit: impl FnMut(u32, u32)) {
        for order in 0..ORDERS {
            if 1u64 << order < u64::from(pages_min) {
                continue;
            }
            let mut page = self.heads[order];
            while page != NONE {
                visit(page, 1 << order);
                page = self.links[page as usize][NEXT];
            }
        }
    }

    /// Cuts a range into the longest pieces that are powers of two and aligned to their length.
    fn each_aligned(
        &mut self,
        page: u32,
        pages: u32,
        mut visit: impl FnMut(&mut Self, u32, usize),
    ) {
        let (mut page, end) = (page, page + pages);
        while page < end {
            let order = page.trailing_zeros().min((end - page).ilog2());
            visit(self, page, order as usize);
            page += 1 << order;
        }
    }

    /// First page of, and first page behind, all free pages in a row around a free span.
    fn free_run_around(&self, page: u32, order: usize) -> (u32, u32) {
        let (mut start, mut end) = (page, page + (1 << order));
        while let Some(before) = self.free_span_before(start) {
            start = before;
        }
        while let Some(order) = self.free_order(end) {
            end += 1 << order;
        }
        (start, end)
    }

    fn free_span_before(&self, end: u32) -> Option<u32> {
        (0..ORDERS.min(end.trailing_zeros() as usize + 1))
            .filter_map(|order| Some((order, end.checked_sub(1 << order)?)))
            .find(|&(order, page)| self.free_order(page) == Some(order))
            .map(|(_, page)| page)
    }

    fn free_order(&self, page: u32) -> Option<usize> {
        usize::from(*self.free_orders.get(page as usize)?).checked_sub(1)
    }

    fn unlink_run(&mut self, start: u32, end: u32) {
        let mut page = start;
        while page < end {
            let order = self.free_order(page).expect("a run of free spans");
            self.unlink(page, order);
            page += 1 << order;
        }
    }

    fn merge(&mut self, page: u32, order: usize) {
        let (mut page, mut order) = (page, order);
        while let Some(buddy) = self.free_buddy(page, order) {
            self.unlink(buddy, order);
            page = page.min(buddy);
            order += 1;
        }
        self.link(page, order);
    }

    fn free_buddy(&self, page: u32, order: usize) -> Option<u32> {
        let buddy = page ^ (1 << order);
        (self.free_order(buddy) == Some(order)).then_some(buddy)
    }

    fn link(&mut self, page: u32, order: usize) {
        debug_assert!(page + (1 << order) <= self.page_count);
        let next = self.heads[order];
        if next != NONE {
            self.links[next as usize][PREVIOUS] = page;
        }
        self.links[page as usize] = [NONE, next];
        self.free_orders[page as usize] = order as u8 + 1;
        self.heads[order] = page;
        self.orders_free |= 1 << order;
    }

    fn unlink(&mut self, page: u32, order: usize) {
        let [previous, next] = self.links[page as usize];
        if previous == NONE {
            self.heads[order] = next;
            if next == NONE {
                self.orders_free &= !(1 << order);
            }
        } else {
            self.links[previous as usize][NEXT] = next;
        }
        if next != NONE {
            self.links[next as usize][PREVIOUS] = previous;
        }
        self.free_orders[page as usize] = 0;
    }
}

/// Orders 0 to 28: up to 2^28 pages, 1 TiB.
const ORDERS: usize = 30;

/// Most spans that a search across borders starts from.
const SPANS_LOOKED_AT_MAX: usize = 64;

const PREVIOUS: usize = 0;
const NEXT: usize = 1;
const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn free_spans(buddy: &Buddy) -> Vec<(u32, u32)> {
        let mut spans = Vec::new();
        buddy.each_free(1, |page, pages| spans.push((page, pages)));
        spans.sort_unstable();
        spans
    }

    #[test]
    fn any_page_count_starts_as_few_spans() {
        assert_eq!(free_spans(&Buddy::new(1)), [(0, 1)]);
        assert_eq!(free_spans(&Buddy::new(13)), [(0, 8), (8, 4), (12, 1)]);
        assert_eq!(free_spans(&Buddy::new(0)), []);
    }

    #[test]
    fn the_tail_of_a_span_stays_free() {
        let mut buddy = Buddy::new(16);
        assert_eq!(buddy.allocate(5), Some(0));
        assert_eq!(free_spans(&buddy), [(5, 1), (6, 2), (8, 8)]);
        assert_eq!(buddy.allocate(3), Some(8));
        buddy.free(0, 5);
        buddy.free(8, 3);
        assert_eq!(free_spans(&buddy), [(0, 16)]);
    }

    #[test]
    fn most_of_the_pages_can_go_together() {
        let mut buddy = Buddy::new(16);
        assert_eq!(buddy.allocate(1), Some(0));
        assert_eq!(buddy.allocate(12), None);
        assert_eq!(buddy.allocate_across(16), None);
        assert_eq!(buddy.allocate_across(12), Some(1));
        assert_eq!(free_spans(&buddy), [(13, 1), (14, 2)]);
        buddy.free(1, 12);
        assert_eq!(buddy.allocate_across(15), Some(1));
        buddy.free(1, 15);
        buddy.free(0, 1);
        assert_eq!(free_spans(&buddy), [(0, 16)]);
    }

    #[test]
    fn too_much_is_refused_and_changes_nothing() {
        let mut buddy = Buddy::new(13);
        assert_eq!(buddy.allocate(9), None);
        assert_eq!(buddy.allocate(u32::MAX), None);
        assert_eq!(buddy.allocate(1 << 31), None);
        assert_eq!(buddy.allocate(8), Some(0));
        assert_eq!(buddy.allocate(8), None);
        assert_eq!(free_spans(&buddy), [(8, 4), (12, 1)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }) })]

        /// Against a map of pages: spans never overlap, none is refused that would fit, and
        /// everything grows together at the end.
        #[test]
        fn spans_fit_and_never_overlap(page_count in 1u32..=128, steps in prop::collection::vec((any::<bool>(), 1u32..40), 1..200)) {
            let mut buddy = Buddy::new(page_count);
            let start = free_spans(&buddy);
            let mut owned = vec![false; page_count as usize];
            let mut spans: Vec<(u32, u32)> = Vec::new();
            for (free, number) in steps {
                if free && !spans.is_empty() {
                    let (page, pages) = spans.swap_remove(number as usize % spans.len());
                    owned[page as usize..(page + pages) as usize].fill(false);
                    buddy.free(page, pages);
                } else if let Some(page) = buddy.allocate(number).or_else(|| buddy.allocate_across(number)) {
                    let part = &mut owned[page as usize..(page + number) as usize];
                    prop_assert!(part.iter().all(|owned| !owned));
                    part.fill(true);
                    spans.push((page, number));
                } else {
                    let longest = owned.split(|owned| *owned).map(<[bool]>::len).max();
                    prop_assert!(longest < Some(number as usize), "refused although {longest:?} pages are free");
                }
                let free_pages = free_spans(&buddy).iter().map(|&(_, pages)| pages).sum::<u32>();
                prop_assert_eq!(free_pages as usize, owned.iter().filter(|owned| !**owned).count());
                buddy.each_free(1, |page, pages| {
                    assert!(owned[page as usize..(page + pages) as usize].iter().all(|owned| !owned));
                });
            }
            for (page, pages) in spans {
                buddy.free(page, pages);
            }
            prop_assert_eq!(free_spans(&buddy), start);
        }
    }
}
