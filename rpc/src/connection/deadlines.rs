//! Deadlines by slot, the soonest first.

use grpcxx_transport::Time;
use orx_priority_queue::{BinaryHeapOfIndices, PriorityQueue, PriorityQueueDecKey};

/// The deadlines of slots, soonest first.
#[derive(Debug)]
pub(crate) struct Deadlines {
    queue: BinaryHeapOfIndices<u32, Time>,
}

impl Deadlines {
    /// The soonest deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        self.queue.peek().map(|&(_, at)| at)
    }

    /// Notes the deadline of a slot that has none.
    pub(crate) fn insert(&mut self, slot: u32, at: Time) {
        let needed = slot as usize + 1;
        if needed > self.queue.index_bound() {
            self.grow(needed);
        }
        self.queue.push(slot, at);
    }

    /// Forgets the deadline of a slot, if it has one.
    pub(crate) fn remove(&mut self, slot: u32) {
        if (slot as usize) < self.queue.index_bound() && self.queue.contains(&slot) {
            self.queue.remove(&slot);
        }
    }

    /// Takes a slot whose deadline is `now` or earlier.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<u32> {
        let &(_, at) = self.queue.peek()?;
        if at > now {
            return None;
        }
        self.queue.pop_node()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Makes room for slots below a number. A queue has a fixed bound, and most connections need
    /// a small one.
    #[cold]
    fn grow(&mut self, needed: usize) {
        let deadlines = self.queue.iter().copied();
        let bound = needed.next_power_of_two();
        self.queue = BinaryHeapOfIndices::from_iter_with_index_bound(bound, deadlines);
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            queue: BinaryHeapOfIndices::with_index_bound(0),
        }
    }
}

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
