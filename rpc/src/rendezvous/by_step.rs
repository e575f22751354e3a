//! The first entry of each step.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::entries::NONE;

/// The first entry of each step.
///
/// Steps mostly have numbers in a row. So the lower bits of its number name the place of a step:
/// whoever works off many steps finds the next one beside the last, without a hash. A step whose
/// place is taken is in a table of hashes, which peers cannot foresee.
#[derive(Debug)]
pub(super) struct ByStep {
    places: Vec<u32>,
    others: HashMap<i64, u32, RandomState>,
    count: usize,
}

impl ByStep {
    pub(super) fn new() -> Self {
        Self {
            places: vec![NONE; PLACES_MIN],
            others: HashMap::default(),
            count: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The first entry of a step. `step_of` says of which step an entry is.
    #[inline]
    pub(super) fn find(&self, step_id: i64, step_of: impl Fn(u32) -> i64) -> Option<u32> {
        let first = self.places[self.place(step_id)];
        if first != NONE && step_of(first) == step_id {
            return Some(first);
        }
        self.find_other(step_id)
    }

    #[inline(never)]
    fn find_other(&self, step_id: i64) -> Option<u32> {
        self.others.get(&step_id).copied()
    }

    /// Adds a step that is not there.
    #[inline]
    pub(super) fn insert(&mut self, step_id: i64, first: u32, step_of: impl Fn(u32) -> i64) {
        if self.count >= self.places.len() / 2 && self.places.len() < PLACES_MAX {
            self.grow(step_of);
        }
        self.count += 1;
        self.put(step_id, first);
    }

    #[inline]
    fn put(&mut self, step_id: i64, first: u32) {
        let place = self.place(step_id);
        match &mut self.places[place] {
            free @ &mut NONE => *free = first,
            _ => drop(self.others.insert(step_id, first)),
        }
    }

    /// Notes the first entry that a step has from now on, or forgets the step if that is none.
    /// `first` was it so far.
    #[inline]
    pub(super) fn replace(&mut self, step_id: i64, first: u32, now: Option<u32>) {
        self.count -= usize::from(now.is_none());
        let place = self.place(step_id);
        if self.places[place] == first {
            self.places[place] = now.unwrap_or(NONE);
        } else {
            self.replace_other(step_id, now);
        }
    }

    #[inline(never)]
    fn replace_other(&mut self, step_id: i64, now: Option<u32>) {
        match now {
            Some(first) => self.others.insert(step_id, first),
            None => self.others.remove(&step_id),
        };
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let placed = self.places.iter().filter(|&&first| first != NONE);
        placed.chain(self.others.values()).copied()
    }

    #[cold]
    fn grow(&mut self, step_of: impl Fn(u32) -> i64) {
        let places = vec![NONE; 2 * self.places.len()];
        let placed = std::mem::replace(&mut self.places, places);
        for first in placed {
            if first != NONE {
                self.put(step_of(first), first);
            }
        }
        for (step_id, first) in std::mem::take(&mut self.others) {
            self.put(step_id, first);
        }
    }

    #[inline]
    fn place(&self, step_id: i64) -> usize {
        step_id as usize & (self.places.len() - 1)
    }
}

/// How many places there are at least, and at most: powers of two. Half of them at least are free,
/// as long as there are more to be had.
const PLACES_MIN: usize = 64;
const PLACES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Steps in a row, far apart, of the same place, and at the ends.
    fn step_id() -> impl Strategy<Value = i64> {
        let ends = prop_oneof![Just(i64::MIN), Just(-1), Just(i64::MAX)];
        prop_oneof![4 => 0..300_i64, 2 => (0..40_i64).prop_map(|n| n << 20), 1 => ends]
    }

    proptest! {
        #[test]
        fn each_step_is_found_until_it_is_forgotten(
            operations in vec((step_id(), 0..3_u8), 0..600),
        ) {
            let mut steps = ByStep::new();
            // Entries are numbers into the list of their steps.
            let mut step_of: Vec<i64> = Vec::new();
            let mut expected: HashMap<i64, u32> = HashMap::new();
            for (step_id, operation) in operations {
                let entry = step_of.len() as u32;
                step_of.push(step_id);
                let known = expected.get(&step_id).copied();
                prop_assert_eq!(steps.find(step_id, |entry| step_of[entry as usize]), known);
                match (known, operation) {
                    (None, _) => steps.insert(step_id, entry, |entry| step_of[entry as usize]),
                    (Some(first), 0) => steps.replace(step_id, first, None),
                    (Some(first), _) => steps.replace(step_id, first, Some(entry)),
                }
                match (known, operation) {
                    (Some(_), 0) => drop(expected.remove(&step_id)),
                    _ => drop(expected.insert(step_id, entry)),
                }
                prop_assert_eq!(steps.len(), expected.len());
            }
            let mut left: Vec<u32> = steps.iter().collect();
            let mut expected: Vec<u32> = expected.into_values().collect();
            left.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(left, expected);
        }
    }

    #[test]
    fn places_are_bounded_whatever_steps_there_are() {
        let count = if cfg!(miri) {
            200
        } else {
            3 * PLACES_MAX as i64
        };
        let mut steps = ByStep::new();
        for step_id in 0..count {
            steps.insert(step_id, step_id as u32, i64::from);
        }
        assert!(steps.places.len() <= PLACES_MAX);
        for step_id in 0..count {
            assert_eq!(steps.find(step_id, i64::from), Some(step_id as u32));
            steps.replace(step_id, step_id as u32, None);
        }
        assert_eq!((steps.len(), steps.iter().count()), (0, 0));
    }
}
