/// Spans freed last, kept whole for the next request of the same length: their pages are in the
/// caches, and the work of merging and splitting them is saved.
#[derive(Default)]
pub(crate) struct Recent {
    spans: [Span; RECENT_SPANS],
    len: usize,
}

/// Pages next to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) page: u32,
    pub(crate) pages: u32,
}

impl Recent {
    /// Keeps a span. If there were too many, the oldest has to go.
    #[inline]
    pub(crate) fn keep(&mut self, span: Span) -> Option<Span> {
        let oldest = (self.len == RECENT_SPANS).then(|| self.remove(0));
        self.spans[self.len] = span;
        self.len += 1;
        oldest
    }

    /// The first page of the newest span of exactly `pages` pages.
    #[inline]
    pub(crate) fn take(&mut self, pages: u32) -> Option<u32> {
        let kept = &self.spans[..self.len];
        let index = kept.iter().rposition(|span| span.pages == pages)?;
        Some(self.remove(index).page)
    }

    /// Any span.
    pub(crate) fn take_any(&mut self) -> Option<Span> {
        self.len.checked_sub(1).map(|last| self.remove(last))
    }

    #[inline]
    fn remove(&mut self, index: usize) -> Span {
        let span = self.spans[index];
        self.spans.copy_within(index + 1..self.len, index);
        self.len -= 1;
        span
    }
}

/// As many as are found faster than a span is split.
const RECENT_SPANS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_a_length_is_found_and_the_oldest_goes() {
        let span = |page, pages| Span { page, pages };
        let mut recent = Recent::default();
        assert_eq!(recent.take(1), None);
        for page in 0..16 {
            assert_eq!(recent.keep(span(page, page % 2 + 1)), None);
        }
        assert_eq!(recent.keep(span(16, 1)), Some(span(0, 1)));
        assert_eq!(recent.take(2), Some(15));
        assert_eq!(recent.take(1), Some(16));
        assert_eq!(recent.take(1), Some(14));
        assert_eq!(recent.take(3), None);
        assert_eq!(std::iter::from_fn(|| recent.take_any()).count(), 13);
        assert_eq!(recent.take_any(), None);
    }
}
