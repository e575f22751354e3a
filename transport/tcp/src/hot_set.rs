//! Links that a loop that spins asks for bytes without being told that they have some.
//!
//! To be told costs both ends: the system notes each arrival for epoll or the ring, and lists them
//! when it is asked. To ask costs a system call for each link, most of them in vain where many
//! links are asked blindly. But whoever was answered first asks first again: where bytes go round
//! between two ends, the link that has waited longest is the next that has some. So they are asked
//! in this order, until one has none, or [`FOUND_MAX`] had some.

use std::collections::VecDeque;

/// Which links are hot, and in which order they are asked.
#[derive(Debug)]
pub(crate) struct HotSet {
    /// The one that has waited longest is in front.
    order: VecDeque<u32>,
    /// The link that this walk has taken from the front and asked in vain.
    waiting: Option<u32>,
    /// Links from the front that this walk has not asked.
    left: usize,
    /// Links that this walk has found bytes of.
    found: usize,
    /// Links that this walk has asked out of turn, which it does while one waits.
    out_of_turn: usize,
    /// Where the last one out of turn stood.
    cursor: usize,
}

impl HotSet {
    pub(crate) fn new() -> Self {
        Self {
            order: VecDeque::with_capacity(HOT_LINKS_MAX),
            waiting: None,
            left: 0,
            found: 0,
            out_of_turn: 0,
            cursor: 0,
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
        self.found = 0;
        self.out_of_turn = 0;
    }

    /// The next link to be asked, if any. It is hot no more unless [`HotSet::found`] or
    /// [`HotSet::missed`] follows.
    pub(crate) fn next(&mut self) -> Option<u32> {
        if self.left == 0 || self.found == FOUND_MAX {
            return None;
        }
        if self.waiting.is_none() {
            self.left -= 1;
            return self.order.pop_front();
        }
        // Whoever has found bytes has something to do. Otherwise some more are asked, of whom the
        // order may be wrong.
        if self.found > 0 || self.out_of_turn == OUT_OF_TURN_MAX.min(self.left) {
            return None;
        }
        self.out_of_turn += 1;
        self.cursor = (self.cursor + 1) % self.left;
        self.left -= 1;
        self.order.remove(self.cursor)
    }

    /// The link had bytes. One that was asked before it and had none is not the next one then.
    pub(crate) fn found(&mut self, slot: u32) {
        self.order.extend(self.waiting.take());
        self.order.push_back(slot);
        self.found += 1;
    }

    /// The link had none.
    pub(crate) fn missed(&mut self, slot: u32) {
        if self.waiting.is_some() {
            self.order.insert(self.cursor, slot);
            self.left += 1;
        } else {
            self.waiting = Some(slot);
        }
    }

    /// Ends a walk.
    pub(crate) fn end_walk(&mut self) {
        if let Some(slot) = self.waiting.take() {
            self.order.push_front(slot);
        }
    }
}

/// Most links that are hot. One that is asked out of turn waits some microseconds where there are
/// so many.
pub(crate) const HOT_LINKS_MAX: usize = 16;

/// Links that a walk finds bytes of before it ends, so that these bytes, and what is made of them,
/// are in the first cache of the CPU until they are answered.
const FOUND_MAX: usize = 4;

/// Links that a walk asks out of turn if the one in front has nothing.
const OUT_OF_TURN_MAX: usize = 2;

/// Links that are asked in each walk, however much else there is to do: as many as one that finds
/// nothing asks.
pub(crate) const ASKED_MIN: usize = OUT_OF_TURN_MAX + 1;

/// How often in a row a link may be asked in vain and stay hot: some tens of microseconds where
/// links are few, some hundreds where they are many.
pub(crate) const MISSES_MAX: u32 = 200;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn hot(slots: impl IntoIterator<Item = u32>) -> HotSet {
        let mut hot = HotSet::new();
        assert!(slots.into_iter().all(|slot| hot.admit(slot)));
        hot
    }

    /// Walks once; returns the links that were asked.
    fn walk(hot: &mut HotSet, has_bytes: impl Fn(u32) -> bool) -> Vec<u32> {
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
            let mut asked = walk(&mut links, |_| false);
            asked.sort_unstable();
            assert_eq!(asked, [7, 8, 9]);
        }
        assert_eq!(walk(&mut links, |_| true), [7, 8, 9]);
        assert_eq!(walk(&mut hot([]), |_| true), []);
    }

    #[test]
    fn who_was_answered_first_is_asked_first() {
        let mut links = hot(0..8);
        assert_eq!(walk(&mut links, |slot| slot < 3), [0, 1, 2, 3]);
        // Who has nothing stays where it was, in turn or not.
        assert_eq!(walk(&mut links, |_| false), [3, 5, 6]);
        assert_eq!(walk(&mut links, |slot| slot == 3), [3, 4]);
        // Unless one out of turn has something: then the order was wrong.
        assert_eq!(walk(&mut links, |slot| slot == 1), [4, 0, 1, 5]);
        assert_eq!(walk(&mut links, |_| true), [5, 6, 7, 0]);
        assert_eq!(walk(&mut links, |_| true), [2, 3, 4, 1]);
        assert_eq!(walk(&mut links, |_| true), [5, 6, 7, 0]);
    }

    #[test]
    fn silent_links_in_front_do_not_keep_others_waiting() {
        let mut links = hot(0..HOT_LINKS_MAX as u32);
        for wanted in (0..HOT_LINKS_MAX as u32).rev() {
            let is_heard = |_: usize| walk(&mut links, |slot| slot == wanted).contains(&wanted);
            assert!((0..HOT_LINKS_MAX / 2).any(is_heard), "{wanted}");
        }
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut links = hot(0..HOT_LINKS_MAX as u32);
        assert!(!links.admit(99));
        links.dismiss(3);
        assert!(links.admit(99));
        for _ in 0..HOT_LINKS_MAX {
            assert!(!walk(&mut links, |_| true).contains(&3));
        }
    }

    proptest! {
        /// Each hot link has one place, whatever its links have and wherever a walk ends.
        #[test]
        fn no_link_is_lost_or_has_two_places(
            walks in vec((vec(0..4_u8, 0..24), vec(0..32_u32, 0..4)), 1..40),
        ) {
            let mut links = HotSet::new();
            let mut expected = BTreeSet::new();
            for (answers, changes) in walks {
                links.begin_walk();
                for answer in answers {
                    let Some(slot) = links.next() else { break };
                    prop_assert!(expected.contains(&slot));
                    match answer {
                        0 => prop_assert!(expected.remove(&slot)),
                        1 => links.found(slot),
                        _ => links.missed(slot),
                    }
                }
                links.end_walk();
                for slot in changes {
                    if expected.remove(&slot) {
                        links.dismiss(slot);
                    } else if links.admit(slot) {
                        expected.insert(slot);
                    } else {
                        prop_assert_eq!(expected.len(), HOT_LINKS_MAX);
                    }
                }
                let order: BTreeSet<u32> = links.order.iter().copied().collect();
                prop_assert_eq!(&order, &expected);
                prop_assert_eq!(links.order.len(), order.len());
                prop_assert_eq!(links.waiting, None);
            }
        }
    }
}
