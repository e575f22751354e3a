//! How a shard dozes that a thread has given back: nothing that peers send wakes its owner, who
//! looks after it once no thread comes for it any more.

use std::time::Duration;

use crate::host::bed::Bed;
use crate::host::sync::{AtomicBool, AtomicUsize, Ordering, fence};

/// Whether a shard dozes, and the alarm of its owner.
pub(super) struct Dozing {
    /// How often threads that wait have borrowed the shard.
    borrows: AtomicUsize,
    /// The alarm is set, or the owner has heard it and is about to set it again.
    has_alarm: AtomicBool,
    /// The shard dozes, so nothing else tells its owner what is handed over.
    is_on: AtomicBool,
}

impl Dozing {
    pub(super) fn new() -> Self {
        Self {
            borrows: AtomicUsize::new(0),
            has_alarm: AtomicBool::new(false),
            is_on: AtomicBool::new(false),
        }
    }

    pub(super) fn note_borrow(&self) {
        self.borrows.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn borrows(&self) -> usize {
        self.borrows.load(Ordering::Relaxed)
    }

    /// The shard dozes from now on, unless something was handed over.
    pub(super) fn begin(&self, bed: &Bed, has_work: impl FnOnce() -> bool) -> bool {
        self.is_on.store(true, Ordering::Relaxed);
        // Whoever hands something over sees that, or it is seen here.
        fence(Ordering::SeqCst);
        if has_work() {
            return false;
        }
        if !self.has_alarm.swap(true, Ordering::AcqRel) {
            bed.set_alarm(LOOK_TIME);
        }
        true
    }

    /// Somebody turns the shard from now on.
    pub(super) fn end(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    /// Something was handed over to the shard. Whoever did so is likely to wait soon; else its
    /// owner looks after it.
    pub(super) fn stir(&self, bed: &Bed) {
        fence(Ordering::SeqCst);
        if self.is_on.load(Ordering::Relaxed) && self.is_on.swap(false, Ordering::AcqRel) {
            bed.set_alarm(STIR_TIME);
        }
    }

    /// Lets the alarm go off again, unless somebody has stopped it.
    pub(super) fn set_again(&self, bed: &Bed) {
        if self.has_alarm.load(Ordering::Acquire) {
            bed.set_alarm(LOOK_TIME);
        }
    }

    pub(super) fn stop_alarm(&self, bed: &Bed) {
        if self.has_alarm.swap(false, Ordering::AcqRel) {
            bed.set_alarm(Duration::ZERO);
        }
    }
}

/// How long what was handed over waits.
const STIR_TIME: Duration = Duration::from_micros(50);

/// How often the owner looks whether threads still come for the shard: an alarm takes some
/// microseconds, and what comes behind the last of them waits for two.
const LOOK_TIME: Duration = Duration::from_micros(500);
