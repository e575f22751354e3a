//! How a shard dozes that a thread has given back: nothing that peers send wakes its owner, who
//! looks after it once no thread comes for it any more.

use std::time::Duration;

use crate::host::bed::Bed;
use crate::host::sync::{AtomicBool, Ordering, fence};

/// Whether a shard dozes, and the alarm of its owner.
pub(super) struct Dozing {
    /// The alarm is set, or the owner has heard it and is about to set it again.
    has_alarm: AtomicBool,
    /// The shard dozes, so nothing else tells its owner what is handed over.
    is_on: AtomicBool,
    /// Something was handed over since, and nobody has come.
    is_stirred: AtomicBool,
}

/// How often the owner has woken up for a thread that wanted the shard then anyway.
#[derive(Default)]
pub(super) struct VainWakes {
    pub(super) count: u32,
}

impl VainWakes {
    /// A thread has the shard, so long after its owner woke up, and behind so many events.
    pub(super) fn note(&mut self, stayed: Duration, events: usize) {
        if events > VAIN_EVENTS_MAX {
            self.count = 0;
        } else if stayed < VAIN_TIME {
            self.count = (self.count + 1).min(VAIN_WAKES_MAX);
        }
    }

    /// The owner looks after a shard that dozes.
    pub(super) fn forget_one(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    /// Whether the shard dozes from now on when a thread gives it back.
    pub(super) fn are_many(&self) -> bool {
        self.count >= VAIN_WAKES_ALLOWED
    }
}

impl Dozing {
    pub(super) fn new() -> Self {
        Self {
            has_alarm: AtomicBool::new(false),
            is_on: AtomicBool::new(false),
            is_stirred: AtomicBool::new(false),
        }
    }

    /// The shard dozes from now on, unless something was handed over.
    pub(super) fn begin(&self, bed: &Bed, has_work: impl FnOnce() -> bool) -> bool {
        self.is_on.store(true, Ordering::Relaxed);
        // Whoever hands something over sees that, or it is seen here.
        fence(Ordering::SeqCst);
        if has_work() {
            return false;
        }
        if !self.has_alarm.swap(true, Ordering::AcqRel) && !self.is_stirred() {
            bed.set_alarm(LOOK_TIME);
        }
        true
    }

    /// Somebody turns the shard from now on.
    pub(super) fn end(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        self.is_stirred.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_stirred(&self) -> bool {
        self.is_stirred.load(Ordering::Acquire)
    }

    /// Something was handed over to the shard. Whoever did so is likely to wait soon; else its
    /// owner looks after it.
    pub(super) fn stir(&self, bed: &Bed) {
        fence(Ordering::SeqCst);
        if self.is_on.load(Ordering::Relaxed) && self.is_on.swap(false, Ordering::AcqRel) {
            self.is_stirred.store(true, Ordering::Release);
            bed.set_alarm(STIR_TIME);
        }
    }

    /// Lets the alarm go off again, unless somebody has stopped it. While a thread has the shard,
    /// that one sets it when it gives the shard back.
    pub(super) fn set_again(&self, bed: &Bed, is_borrowed: impl FnOnce() -> bool) {
        if !self.has_alarm.swap(false, Ordering::AcqRel) {
            return;
        }
        // Either who gives it back sees that in `begin`, or it is seen here.
        fence(Ordering::SeqCst);
        if !is_borrowed() && !self.has_alarm.swap(true, Ordering::AcqRel) {
            bed.set_alarm(LOOK_TIME);
        }
    }

    pub(super) fn stop_alarm(&self, bed: &Bed) {
        if self.has_alarm.swap(false, Ordering::AcqRel) {
            bed.set_alarm(Duration::ZERO);
        }
    }
}

/// A thread that wants the shard so soon behind the owner's waking would have turned it anyway,
/// unless more has come than its calls bring. A model has no time.
const VAIN_TIME: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 200 });
const VAIN_EVENTS_MAX: usize = 16;
/// Vain wakes from which on the shard dozes. An alarm takes some microseconds where a virtual
/// machine has to ask its host for it.
const VAIN_WAKES_ALLOWED: u32 = 2;
/// How many are remembered: as often the owner may look after a shard that dozes.
pub(super) const VAIN_WAKES_MAX: u32 = 8;

/// How long what was handed over waits.
const STIR_TIME: Duration = Duration::from_micros(50);

/// How often the owner looks whether threads still come for the shard: an alarm takes some
/// microseconds, and what comes behind the last of them waits for two.
const LOOK_TIME: Duration = Duration::from_micros(500);
