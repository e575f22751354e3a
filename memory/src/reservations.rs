//! The reservations of an arena: what is set aside for announced bytes and can be taken back.

use crate::recent::Span;

/// Spans that are reserved as a whole and handed out from their start on, bit by bit. What is not
/// handed out yet can be taken back from them, first from the one that was last given some the
/// longest time ago.
pub(crate) struct Reservations {
    entries: Vec<Entry>,
    /// First of the numbers that no reservation has now, linked through `newer`.
    vacant: u32,
    oldest: u32,
    newest: u32,
    ungranted_pages: u64,
    /// Pages of the spans that have not grown yet.
    ungrown_pages: u64,
}

/// A span that is handed out in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) span: Span,
    /// Pages that are handed out; fewer than those of the span.
    pub(crate) granted_pages: u32,
    /// Whether its first pages were filled, so that more of them were asked for.
    pub(crate) has_grown: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    reservation: Reservation,
    older: u32,
    newer: u32,
}

impl Reservations {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            vacant: NONE,
            oldest: NONE,
            newest: NONE,
            ungranted_pages: 0,
            ungrown_pages: 0,
        }
    }

    /// Notes a reservation. Returns its number.
    pub(crate) fn insert(&mut self, reservation: Reservation) -> u32 {
        debug_assert!(reservation.granted_pages < reservation.span.pages);
        self.ungranted_pages += reservation.ungranted_pages();
        self.ungrown_pages += reservation.ungrown_pages();
        let entry = Entry {
            reservation,
            older: NONE,
            newer: NONE,
        };
        let number = self.vacant;
        if number == NONE {
            self.entries.push(entry);
            let number = self.entries.len() as u32 - 1;
            self.link(number);
            return number;
        }
        self.vacant = self.entries[number as usize].newer;
        self.entries[number as usize] = entry;
        self.link(number);
        number
    }

    pub(crate) fn get(&self, number: u32) -> Reservation {
        self.entries[number as usize].reservation
    }

    /// Notes that more of a span is handed out, though not all. It is the newest then.
    pub(crate) fn grant(&mut self, number: u32, granted_pages: u32) {
        let reservation = &mut self.entries[number as usize].reservation;
        debug_assert!(granted_pages < reservation.span.pages);
        self.ungranted_pages -= u64::from(granted_pages - reservation.granted_pages);
        reservation.granted_pages = granted_pages;
        self.ungrown_pages -= reservation.ungrown_pages();
        reservation.has_grown = true;
        self.unlink(number);
        self.link(number);
    }

    /// Forgets a reservation.
    pub(crate) fn remove(&mut self, number: u32) -> Reservation {
        self.unlink(number);
        let entry = &mut self.entries[number as usize];
        entry.newer = self.vacant;
        self.vacant = number;
        self.ungranted_pages -= entry.reservation.ungranted_pages();
        self.ungrown_pages -= entry.reservation.ungrown_pages();
        entry.reservation
    }

    /// Forgets the reservation that was last given some the longest time ago.
    pub(crate) fn take_oldest(&mut self) -> Option<Reservation> {
        (self.oldest != NONE).then(|| self.remove(self.oldest))
    }

    /// Pages of all reservations that are not handed out.
    pub(crate) fn ungranted_pages(&self) -> u64 {
        self.ungranted_pages
    }

    /// Pages of all reservations that have not grown yet, handed out or not.
    pub(crate) fn ungrown_pages(&self) -> u64 {
        self.ungrown_pages
    }

    fn link(&mut self, number: u32) {
        let older = self.newest;
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = number,
            None => self.oldest = number,
        }
        let entry = &mut self.entries[number as usize];
        (entry.older, entry.newer) = (older, NONE);
        self.newest = number;
    }

    fn unlink(&mut self, number: u32) {
        let Entry { older, newer, .. } = self.entries[number as usize];
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }
}

impl Reservation {
    fn ungranted_pages(&self) -> u64 {
        u64::from(self.span.pages - self.granted_pages)
    }

    fn ungrown_pages(&self) -> u64 {
        match self.has_grown {
            true => 0,
            false => u64::from(self.span.pages),
        }
    }
}

/// No entry has this number: an arena has fewer pages.
const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(page: u32) -> Reservation {
        Reservation {
            span: Span { page, pages: 8 },
            granted_pages: 1,
            has_grown: false,
        }
    }

    #[test]
    fn whoever_was_given_some_last_is_taken_from_last() {
        let mut reservations = Reservations::new();
        let numbers = [0, 8, 16, 24].map(|page| reservations.insert(of(page)));
        assert_eq!(reservations.ungranted_pages(), 4 * 7);
        reservations.grant(numbers[0], 4);
        assert_eq!(reservations.ungrown_pages(), 3 * 8);
        assert_eq!(reservations.remove(numbers[2]), of(16));
        assert_eq!(reservations.insert(of(32)), numbers[2], "numbers come back");
        let pages = std::iter::from_fn(|| reservations.take_oldest());
        let pages: Vec<u32> = pages.map(|reservation| reservation.span.page).collect();
        assert_eq!(pages, [8, 24, 0, 32]);
        let left = (reservations.ungranted_pages(), reservations.ungrown_pages());
        assert_eq!(left, (0, 0));
    }
}
