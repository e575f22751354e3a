//! How long the calls of a function have taken so far: one that proved to be short may run on the
//! shard.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// What is known of a function. Threads that note calls at the same time may lose some of them.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Short calls since the last one that was not.
    short_calls: AtomicU32,
    /// How many of them make a short function.
    needed: AtomicU32,
    /// It has waited for a call of its own.
    waits: AtomicBool,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            short_calls: AtomicU32::new(0),
            needed: AtomicU32::new(NEEDED_MIN),
            waits: AtomicBool::new(false),
        }
    }
}

impl Pace {
    /// Whether the next call is expected to be short.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.short_calls.load(Ordering::Relaxed) >= self.needed.load(Ordering::Relaxed)
            && !self.waits.load(Ordering::Relaxed)
    }

    /// A call has taken so long. After a long one a function that was short has to prove itself
    /// twice as often, until it did well for some time.
    pub(crate) fn note(&self, took: Duration) {
        let short_calls = self.short_calls.load(Ordering::Relaxed);
        let needed = self.needed.load(Ordering::Relaxed);
        if took <= SHORT_MAX {
            let mut short_calls = short_calls.saturating_add(1);
            if needed > NEEDED_MIN && short_calls >= needed * TRUST {
                self.needed.store(needed / 2, Ordering::Relaxed);
                // The next step back takes as long.
                short_calls = needed / 2;
            }
            self.short_calls.store(short_calls, Ordering::Relaxed);
            return;
        }
        self.short_calls.store(0, Ordering::Relaxed);
        if took >= LONG_MIN && short_calls >= needed {
            self.needed
                .store((needed * 2).min(NEEDED_MAX), Ordering::Relaxed);
        }
    }

    /// A call takes long, and has not ended yet.
    pub(crate) fn note_late(&self) {
        self.note(LONG_MIN);
    }

    /// A call has waited for another one. The function is never short again.
    pub(crate) fn note_wait(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }
}

/// A call that holds up a shard less than the hand-over to the compute pool and back would cost.
const SHORT_MAX: Duration = Duration::from_micros(10);
/// A call that others have felt.
const LONG_MIN: Duration = Duration::from_micros(100);
const NEEDED_MIN: u32 = 32;
const NEEDED_MAX: u32 = 4096;
/// So many times the calls that it needed forgive a long one.
const TRUST: u32 = 8;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(1);
    const LONG: Duration = Duration::from_millis(1);

    fn note(pace: &Pace, took: Duration, calls: u32) {
        (0..calls).for_each(|_| pace.note(took));
    }

    #[test]
    fn a_function_is_short_once_many_calls_in_a_row_were() {
        let pace = Pace::default();
        note(&pace, SHORT, NEEDED_MIN - 1);
        assert!(!pace.is_short());
        note(&pace, LONG, 1);
        note(&pace, SHORT, NEEDED_MIN - 1);
        assert!(!pace.is_short());
        note(&pace, SHORT, 1);
        assert!(pace.is_short());
    }

    #[test]
    fn each_long_call_of_a_short_function_asks_for_more_proof() {
        let pace = Pace::default();
        for needed in [32, 64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            note(&pace, SHORT, needed - 1);
            assert!(!pace.is_short(), "{needed}");
            note(&pace, SHORT, 1);
            assert!(pace.is_short(), "{needed}");
            note(&pace, LONG, 3);
            assert!(!pace.is_short(), "{needed}");
        }
        note(&pace, SHORT, NEEDED_MAX * TRUST + 8);
        note(&pace, LONG, 1);
        note(&pace, SHORT, NEEDED_MAX - 1);
        assert!(!pace.is_short(), "2,048 were forgiven, and doubled");
        note(&pace, SHORT, 1);
        assert!(pace.is_short());
    }

    #[test]
    fn a_function_that_has_waited_is_never_short() {
        let pace = Pace::default();
        note(&pace, SHORT, 100);
        pace.note_wait();
        note(&pace, SHORT, 100_000);
        assert!(!pace.is_short());
    }
}
