//! Links that a loop that spins asks for bytes in each turn, without being told that they have some.
//!
//! To be told costs both ends: the system notes each arrival for epoll or the ring, and lists them when it is asked. To
//! ask costs a system call for each link, most of them in vain where many links are asked blindly. But whoever was
//! answered first asks first again: where bytes go round between two ends, the link that has waited longest is the
//! next that has some. So they are asked in this order, until some have none.

use std::collections::VecDeque;

/// Which links are hot, and in which order they are asked.
#[derive(Debug)]
pub(crate) struct Hot {
    /// The one that has waited longest is in front.
    order: VecDeque<u32>,
    /// Links from the front that this walk has asked in vain.
    waiting: Vec<u32>,
    /// Links from the front that this walk has not asked.
    left: usize,
    /// Where the last link out of turn stood.
    cursor: usize,
    /// The link out of turn is being asked.
    is_out_of_turn: bool,
    /// Links in a row that this walk asks in vain before it ends.
    vain_max: usize,
}

impl Hot {
    pub(crate) fn new() -> Self {
        Self {
            order: VecDeque::with_capacity(HOT_LINKS_MAX),
            waiting: Vec::with_capacity(VAIN_MAX),
            left: 0,
            cursor: 0,
            is_out_of_turn: false,
            vain_max: VAIN_MAX,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Adds a link that is not hot yet. False if there are as many as there may be.
    pub(crate) fn admit(&mut self, slot: u32) -> bool {
        let has_room = self.order.len() < HOT_LINKS_MAX;
        if has_room {
            self.order.push_back(slot);
        }
        has_room
    }

    /// Removes a link, outside of walks.
    pub(crate) fn dismiss(&mut self, slot: u32) {
        self.order.retain(|&hot| hot != slot);
    }

    /// Removes any link, outside of walks.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        self.order.pop_front()
    }

    /// Begins to ask them.
    pub(crate) fn begin_walk(&mut self) {
        self.left = self.order.len();
        self.is_out_of_turn = false;
        self.vain_max = VAIN_MAX;
    }

    /// The next link to be asked, if any. It is hot no more unless [`Hot::found`] or [`Hot::missed`] follows.
    pub(crate) fn next(&mut self) -> Option<u32> {
        if self.left == 0 {
            return None;
        }
        if self.waiting.len() < self.vain_max {
            self.left -= 1;
            return self.order.pop_front();
        }
        if self.vain_max < VAIN_MAX {
            return None;
        }
        // For those of whom the order is wrong.
        self.cursor = (self.cursor + 1) % std::mem::take(&mut self.left);
        self.is_out_of_turn = true;
        self.order.remove(self.cursor)
    }

    /// The link had bytes. Those that were asked before it and had none are not the next ones then.
    pub(crate) fn found(&mut self, slot: u32) {
        self.order.extend(self.waiting.drain(..));
        self.order.push_back(slot);
        self.vain_max = 1;
    }

    /// The link had none.
    pub(crate) fn missed(&mut self, slot: u32) {
        if self.is_out_of_turn {
            self.order.insert(self.cursor, slot);
        } else {
            self.waiting.push(slot);
        }
    }

    /// Ends a walk.
    pub(crate) fn end_walk(&mut self) {
        while let Some(slot) = self.waiting.pop() {
            self.order.push_front(slot);
        }
    }
}

/// Most links that are hot. One that is asked out of turn waits some microseconds where there are so many.
pub(crate) const HOT_LINKS_MAX: usize = 16;

/// Links in a row that a walk asks in vain before it ends, and one out of turn. Once it has found bytes there is something
/// to do, and one in vain is enough.
const VAIN_MAX: usize = 2;

/// Turns in a row in which a link may be asked in vain and stay hot: some tens of microseconds.
pub(crate) const MISSES_MAX: u32 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn hot(slots: impl IntoIterator<Item = u32>) -> Hot {
        let mut hot = Hot::new();
        assert!(slots.into_iter().all(|slot| hot.admit(slot)));
        hot
    }

    /// Walks once; returns the links that were asked.
    fn walk(hot: &mut Hot, has_bytes: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut asked = Vec::new();
        hot.begin_walk();
        while let Some(slot) = hot.next() {
            asked.push(slot);
            match has_bytes(slot) {
                true => hot.found(slot),
                false => hot.missed(slot),
            }
        }
        hot.end_walk();
        asked
    }

    #[test]
    fn few_links_are_all_asked() {
        let mut links = hot([7, 8, 9]);
        for _ in 0..5 {
            assert_eq!(walk(&mut links, |_| false), [7, 8, 9]);
        }
        assert_eq!(walk(&mut links, |_| true), [7, 8, 9]);
        assert_eq!(walk(&mut hot([]), |_| true), []);
    }

    #[test]
    fn who_was_answered_first_is_asked_first() {
        let mut links = hot(0..8);
        assert_eq!(walk(&mut links, |slot| slot < 3), [0, 1, 2, 3]);
        // Who has nothing stays where it was, in turn or not.
        assert_eq!(walk(&mut links, |_| false), [3, 4, 6]);
        assert_eq!(walk(&mut links, |slot| slot == 4), [3, 4, 5]);
        assert_eq!(walk(&mut links, |_| true), [5, 6, 7, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn silent_links_in_front_do_not_keep_others_waiting() {
        let mut links = hot(0..HOT_LINKS_MAX as u32);
        let is_heard = |links: &mut Hot, wanted| {
            (0..HOT_LINKS_MAX).any(|_| walk(links, |slot| slot == wanted).contains(&wanted))
        };
        for wanted in (0..HOT_LINKS_MAX as u32).rev() {
            assert!(is_heard(&mut links, wanted), "{wanted}");
        }
        assert_eq!(links.order.len(), HOT_LINKS_MAX);
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut links = hot(0..HOT_LINKS_MAX as u32);
        assert!(!links.admit(99));
        links.dismiss(3);
        assert!(links.admit(99));
        assert!(!walk(&mut links, |_| true).contains(&3));
    }
}
