//! Deadlines by slot, the soonest first.

use grpcxx_transport::Time;

/// The deadlines of slots, soonest first: a binary heap that knows where each slot is.
///
/// Invariant: `position[heap[i].slot] == i`, and all other positions are [`NOWHERE`].
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    heap: Vec<Entry>,
    position: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Time,
    slot: u32,
}

impl Deadlines {
    /// The soonest deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.first().map(|entry| entry.at)
    }

    /// Notes the deadline of a slot that has none.
    pub(crate) fn insert(&mut self, slot: u32, at: Time) {
        let needed = slot as usize + 1;
        if self.position.len() < needed {
            self.position.resize(needed, NOWHERE);
        }
        debug_assert_eq!(self.position[slot as usize], NOWHERE);
        self.heap.push(Entry { at, slot });
        self.rise(self.heap.len() - 1);
    }

    /// Forgets the deadline of a slot, if it has one.
    pub(crate) fn remove(&mut self, slot: u32) {
        match self.position.get(slot as usize) {
            None | Some(&NOWHERE) => {}
            Some(&index) => self.remove_at(index as usize),
        }
    }

    /// Takes a slot whose deadline is `now` or earlier.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<u32> {
        let first = *self.heap.first()?;
        if first.at > now {
            return None;
        }
        self.remove_at(0);
        Some(first.slot)
    }

    pub(crate) fn clear(&mut self) {
        self.heap.clear();
        self.position.clear();
    }

    fn remove_at(&mut self, index: usize) {
        let removed = self.heap.swap_remove(index);
        self.position[removed.slot as usize] = NOWHERE;
        if index < self.heap.len() {
            let index = self.rise(index);
            self.sink(index);
        }
    }

    /// Moves an entry up to its place, and returns that.
    fn rise(&mut self, mut index: usize) -> usize {
        let entry = self.heap[index];
        while index > 0 {
            let parent = (index - 1) / 2;
            if self.heap[parent].at <= entry.at {
                break;
            }
            self.put(index, self.heap[parent]);
            index = parent;
        }
        self.put(index, entry);
        index
    }

    fn sink(&mut self, mut index: usize) {
        let entry = self.heap[index];
        loop {
            let left = 2 * index + 1;
            let child = match (self.heap.get(left), self.heap.get(left + 1)) {
                (None, _) => break,
                (Some(a), Some(b)) if b.at < a.at => left + 1,
                (Some(_), _) => left,
            };
            if entry.at <= self.heap[child].at {
                break;
            }
            self.put(index, self.heap[child]);
            index = child;
        }
        self.put(index, entry);
    }

    fn put(&mut self, index: usize, entry: Entry) {
        self.heap[index] = entry;
        self.position[entry.slot as usize] =
            u32::try_from(index).expect("there are at most as many deadlines as slots");
    }
}

const NOWHERE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_behaves_like_a_sorted_list(
            steps in proptest::collection::vec((0u8..3, 0u32..20, 0u64..50), 0..200),
        ) {
            let mut deadlines = Deadlines::default();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (step, slot, at) in steps {
                match step {
                    0 => {
                        if let Entry::Vacant(entry) = model.entry(slot) {
                            entry.insert(at);
                            deadlines.insert(slot, Time::from_nanos(at));
                        }
                    }
                    1 => {
                        model.remove(&slot);
                        deadlines.remove(slot);
                    }
                    _ => while let Some(due) = deadlines.pop_due(Time::from_nanos(at)) {
                        let soonest = *model.values().min().unwrap();
                        prop_assert_eq!(model.remove(&due), Some(soonest));
                        prop_assert!(soonest <= at);
                    },
                }
                let soonest = model.values().min().map(|&at| Time::from_nanos(at));
                prop_assert_eq!(deadlines.next(), soonest);
            }
        }
    }
}
