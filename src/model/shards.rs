use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Entry, Model};

/// Which task holds which tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// For each tensor, in the order in which it was given, the index of its task.
    pub task_of: Vec<usize>,
    /// For each task, the bytes of its tensors.
    pub load_bytes: Vec<u64>,
}

/// Spreads tensors, given as name and length in bytes, over `tasks` tasks.
///
/// The rule, so that every process computes the same from names and lengths alone: take the tensors
/// by falling length, equal lengths by rising byte order of their names, and give each whole to the
/// task that has the fewest bytes so far, among equals to the one with the lowest index. With
/// `tasks` 0 nothing is assigned.
pub fn shard(tensors: &[(&str, u64)], tasks: usize) -> Shards {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_unstable_by_key(|&index| (Reverse(tensors[index].1), tensors[index].0, index));
    let mut least_loaded: BinaryHeap<Reverse<(u64, usize)>> =
        (0..tasks).map(|task| Reverse((0, task))).collect();
    let mut task_of = vec![0; tensors.len()];
    for index in order {
        let Some(Reverse((load_bytes, task))) = least_loaded.pop() else {
            task_of.clear();
            break;
        };
        task_of[index] = task;
        let load_bytes = load_bytes.saturating_add(tensors[index].1);
        least_loaded.push(Reverse((load_bytes, task)));
    }
    let mut load_bytes = vec![0; tasks];
    for Reverse((bytes, task)) in least_loaded {
        load_bytes[task] = bytes;
    }
    Shards {
        task_of,
        load_bytes,
    }
}

impl Model {
    /// Where [`shard`]'s rule puts the tensors, in the order of [`Model::entries`].
    pub fn shards(&self, tasks: usize) -> Shards {
        let entries = self.entries().iter();
        let sizes = entries.map(|entry| (entry.name.as_str(), entry.meta.data_bytes));
        shard(&sizes.collect::<Vec<_>>(), tasks)
    }

    /// The tensors that task `task` of `tasks` holds after [`shard`]'s rule, in byte order of their
    /// names.
    pub fn share(&self, task: usize, tasks: usize) -> Vec<&Entry> {
        let shards = self.shards(tasks);
        self.entries()
            .iter()
            .zip(&shards.task_of)
            .filter(|(_, owner)| **owner == task)
            .map(|(entry, _)| entry)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_largest_tensors_are_placed_first() {
        let shards = shard(&[("d", 1), ("c", 4), ("b", 4), ("a", 9)], 2);
        // a (9) to 0, b (4) before c (4) to 1, then d (1) to 1 because 8 < 9.
        assert_eq!(shards.task_of, [1, 1, 1, 0]);
        assert_eq!(shards.load_bytes, [9, 9]);
    }

    #[test]
    fn ties_go_to_the_lowest_task() {
        let shards = shard(&[("b", 0), ("a", 0), ("c", 5)], 3);
        assert_eq!(shards.task_of, [1, 1, 0]);
    }

    #[test]
    fn without_tasks_nothing_is_assigned() {
        assert_eq!(shard(&[("a", 1)], 0).task_of, [0; 0]);
    }

    proptest! {
        #[test]
        fn the_order_of_the_tensors_changes_nothing(
            sizes in proptest::collection::vec(0u64..1000, 0..40),
            tasks in 1usize..6,
            rotation in 0usize..40,
        ) {
            let names: Vec<String> = (0..sizes.len()).map(|index| format!("t{index}")).collect();
            let tensors: Vec<(&str, u64)> =
                names.iter().map(String::as_str).zip(sizes.iter().copied()).collect();
            let mut rotated = tensors.clone();
            if !rotated.is_empty() {
                let middle = rotation % rotated.len();
                rotated.rotate_left(middle);
            }
            let straight = shard(&tensors, tasks);
            let turned = shard(&rotated, tasks);
            prop_assert_eq!(&straight.load_bytes, &turned.load_bytes);
            for (index, (name, _)) in rotated.iter().enumerate() {
                let original = tensors.iter().position(|(other, _)| other == name).unwrap();
                prop_assert_eq!(turned.task_of[index], straight.task_of[original]);
            }
            let total: u64 = sizes.iter().sum();
            prop_assert_eq!(straight.load_bytes.iter().sum::<u64>(), total);
            // Largest first keeps every task within 4/3 of the best possible, so surely within
            // twice the mean plus the largest.
            let largest = sizes.iter().copied().max().unwrap_or(0);
            for load in &straight.load_bytes {
                prop_assert!(*load <= total / tasks as u64 + largest);
            }
        }
    }
}
