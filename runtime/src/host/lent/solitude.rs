//! Whether threads come for a shard that is lent, or leave it to its owner.

use crate::host::sync::{AtomicUsize, Ordering};

/// How often threads have come for the shard.
pub(super) struct Comings {
    /// To wait for what it brings, whether they got it or not.
    waits: AtomicUsize,
    /// To begin a call.
    begins: AtomicUsize,
}

/// What the owner has seen of that when it went to sleep.
pub(super) struct Solitude {
    waits: Unseen,
    begins: Unseen,
}

/// How often the owner was about to sleep since it has last seen a count grow.
struct Unseen {
    count: usize,
    sleeps: u32,
}

impl Comings {
    pub(super) fn new() -> Self {
        Self {
            waits: AtomicUsize::new(0),
            begins: AtomicUsize::new(0),
        }
    }

    pub(super) fn note_wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_begin(&self) {
        self.begins.fetch_add(1, Ordering::Relaxed);
    }

    /// How often threads have come to wait.
    pub(super) fn waits(&self) -> usize {
        self.waits.load(Ordering::Relaxed)
    }
}

impl Default for Solitude {
    fn default() -> Self {
        let never = || Unseen {
            count: 0,
            sleeps: SLEEPS_UNSEEN_MAX,
        };
        Self {
            waits: never(),
            begins: never(),
        }
    }
}

impl Solitude {
    /// The owner is about to sleep. Returns whether no thread has come lately, so that nobody needs
    /// to hear of the sleep.
    pub(super) fn note_sleep(&mut self, comings: &Comings) -> bool {
        self.begins.note_sleep(&comings.begins);
        self.waits.note_sleep(&comings.waits);
        !self.begins.is_recent() && !self.is_sought()
    }

    /// Whether threads that wait come for the shard.
    pub(super) fn is_sought(&self) -> bool {
        self.waits.is_recent()
    }
}

impl Unseen {
    fn note_sleep(&mut self, count: &AtomicUsize) {
        let count = count.load(Ordering::Relaxed);
        self.sleeps = match count == self.count {
            true => (self.sleeps + 1).min(SLEEPS_UNSEEN_MAX),
            false => 0,
        };
        self.count = count;
    }

    /// Whether the count has grown lately.
    fn is_recent(&self) -> bool {
        self.sleeps < SLEEPS_UNSEEN_MAX
    }
}

/// Sleeps of the owner for which threads may stay away before it takes itself to be alone. A thread
/// that comes after that waits for the owner once.
pub(super) const SLEEPS_UNSEEN_MAX: u32 = if cfg!(loom) { 1 } else { 16 };
