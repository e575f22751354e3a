//! What an arena does for requests that find no place at once.

use crate::arena::{Arena, ArenaStatistics, OutOfMemory, SMALL_BYTES_MAX};
use crate::beyond::Beyond;
use crate::places::Place;
use crate::{BufferMut, Shortage};

impl Arena {
    /// Finds a place for what found none at once, or one that is kept for small requests: after all
    /// blocks that came back, and then in place of what is reserved and not handed out.
    #[cold]
    pub(super) fn find_by_force(&mut self, len: usize, unfit: Option<Place>) -> Option<Place> {
        if let Some(place) = unfit {
            self.places.free(place.id);
        }
        self.reclaim();
        loop {
            match self.places.allocate(len) {
                Some(place) if self.may_take(len, place.len_bytes) => return Some(place),
                Some(place) => {
                    self.places.free(place.id);
                    return None;
                }
                None if self.places.take_back() => {}
                None => return None,
            }
        }
    }

    /// A place for what grows, for which one other reservation may have to go.
    fn reserve_elsewhere(&mut self, whole_len: usize, len: usize) -> Option<Place> {
        if let Some(place) = self.places.reserve(whole_len, len, true) {
            return Some(place);
        }
        self.reclaim();
        if let Some(place) = self.places.reserve(whole_len, len, true) {
            return Some(place);
        }
        (self.places.take_back())
            .then(|| self.places.reserve(whole_len, len, true))
            .flatten()
    }

    /// Whether a request that is part of a large one leaves enough for small ones.
    pub(super) fn has_room_for(&mut self, len: usize) -> bool {
        let large = len.max(SMALL_BYTES_MAX + 1);
        if self.may_take(large, len) {
            return true;
        }
        self.reclaim();
        self.may_take(large, len)
    }

    #[cold]
    pub(crate) fn grow_elsewhere(
        &mut self,
        memory: &[u8],
        len: usize,
        whole_len: usize,
    ) -> Result<BufferMut, OutOfMemory> {
        // Without a reservation it doubles, so that what grows again and again is copied few times.
        let twice_len = len.max(2 * memory.len()).min(whole_len);
        let mut larger = if let Some(place) = self.reserve_elsewhere(whole_len, len) {
            self.issue(place, len)
        } else if let Some(beyond) = &mut self.beyond
            && let Ok(larger) = beyond.grow_from(memory, len, whole_len)
        {
            self.note_peak();
            return Ok(larger);
        } else if let Some(place) = self.find_by_force(twice_len, None) {
            self.issue(place, twice_len)
        } else {
            self.allocate(len)?
        };
        larger[..memory.len()].copy_from_slice(memory);
        Ok(larger)
    }

    /// Takes memory beyond the capacity, for `len` bytes that found no place within.
    #[cold]
    pub(super) fn take_beyond(
        &mut self,
        take: impl FnOnce(&mut Beyond) -> Result<BufferMut, Shortage>,
        len: usize,
    ) -> Result<BufferMut, OutOfMemory> {
        let Some(beyond) = &mut self.beyond else {
            return Err(self.refuse(len, None));
        };
        match take(beyond) {
            Ok(memory) => {
                self.note_peak();
                Ok(memory)
            }
            Err(shortage) => Err(self.refuse(len, Some(shortage))),
        }
    }

    fn note_peak(&mut self) {
        let ArenaStatistics {
            in_use_bytes,
            beyond_bytes,
            ..
        } = self.statistics();
        self.peak_with_beyond_bytes = self.peak_with_beyond_bytes.max(in_use_bytes + beyond_bytes);
    }
}
