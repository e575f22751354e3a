//! Numbers that each shard counts for itself, and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sharded::Shards;

/// A few numbers for each shard, and once more for all other threads.
pub(super) struct Cells {
    shards: Shards,
    /// The last are those of threads that are no shards.
    parts: Box<[Part]>,
}

/// Alone in its cache lines, so that shards do not slow each other.
#[repr(align(128))]
struct Part(Box<[AtomicU64]>);

impl Cells {
    pub(super) fn new(shards: &Shards, numbers: usize) -> Self {
        let part = || Part((0..numbers).map(|_| AtomicU64::new(0)).collect());
        Self {
            shards: shards.clone(),
            parts: (0..=shards.len()).map(|_| part()).collect(),
        }
    }

    /// Changes the number at `index` that belongs to the calling thread.
    #[inline]
    pub(super) fn update(&self, index: usize, change: impl Fn(u64) -> u64) {
        match self.shards.current() {
            Some(shard) => {
                // Nobody else writes it, so a load and a store are enough.
                let number = &self.parts[shard].0[index];
                let changed = change(number.load(Ordering::Relaxed));
                number.store(changed, Ordering::Relaxed);
            }
            None => {
                let number = &self.parts[self.parts.len() - 1].0[index];
                let change = |number| Some(change(number));
                // It never refuses to change.
                let _ = number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
            }
        }
    }

    /// The number at `index` of each shard, and of all other threads together.
    pub(super) fn read(&self, index: usize) -> impl Iterator<Item = u64> {
        let part = move |part: &Part| part.0[index].load(Ordering::Relaxed);
        self.parts.iter().map(part)
    }
}
