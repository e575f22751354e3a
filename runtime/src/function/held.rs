//! Code of the program that holds its shard for too long: the log names it, once.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use grpcxx_rpc::Text;

/// Looks at how long a function or method holds its shard. Until it has held it for too long once,
/// its first calls are looked at, and one of many that follow: reading the clock for each would
/// cost some hundredths of a short call. Each thread counts those for itself, so that shards do not
/// wait for each other's line of memory.
#[derive(Debug)]
pub struct HoldWatch {
    name: Text,
    /// `None`: it may hold it as long as it likes.
    held_max: Option<Duration>,
    /// Calls so far, up to [`ALL_OF`].
    first_calls: AtomicU32,
    is_told: AtomicBool,
}

impl HoldWatch {
    pub(crate) fn new(name: Text, held_max: Option<Duration>) -> Self {
        Self {
            name,
            held_max,
            first_calls: AtomicU32::new(0),
            is_told: AtomicBool::new(false),
        }
    }

    /// What the log calls it.
    pub(crate) fn name(&self) -> &Text {
        &self.name
    }

    /// Runs a call, or a part of one, on the thread of a shard.
    #[inline]
    pub fn run<T>(&self, code: impl FnOnce() -> T) -> T {
        if !self.looks() {
            return code();
        }
        let since = Instant::now();
        let result = code();
        self.note(since.elapsed());
        result
    }

    /// Looks at each poll of a future.
    pub(crate) async fn poll<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|context| self.run(|| future.as_mut().poll(context))).await
    }

    /// A call has held the shard for so long.
    #[inline]
    pub(crate) fn note(&self, held: Duration) {
        if self.held_max.is_some_and(|held_max| held > held_max) {
            self.tell(held);
        }
    }

    /// Whether the next call is looked at. Shards that count at the same time may lose some.
    #[inline]
    fn looks(&self) -> bool {
        if self.held_max.is_none() || self.is_told.load(Ordering::Relaxed) {
            return false;
        }
        let calls = self.first_calls.load(Ordering::Relaxed);
        if calls < ALL_OF {
            self.first_calls.store(calls + 1, Ordering::Relaxed);
            return true;
        }
        let calls = CALLS.get().wrapping_add(1);
        CALLS.set(calls);
        calls.is_multiple_of(ONE_IN)
    }

    #[cold]
    fn tell(&self, held: Duration) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                name = self.name.as_str(),
                held_ms = held.as_millis() as u64,
                "a function or method held its shard, and with it all others there; what blocks or \
                 computes for long belongs on the compute pool"
            );
        }
    }
}

/// Calls that are all looked at.
const ALL_OF: u32 = 64;
/// Of how many calls one is looked at then: a prime, so that each of several polls of a future has
/// its turn.
const ONE_IN: u32 = 61;

thread_local! {
    /// Calls behind the first ones that this thread has made.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn looked_at(watch: &HoldWatch, calls: u32) -> u32 {
        (0..calls).map(|_| u32::from(watch.looks())).sum()
    }

    #[test]
    fn first_calls_are_looked_at_and_some_of_the_others_until_one_was_too_long() {
        let limit = Duration::from_millis(1);
        let watch = HoldWatch::new("code".into(), Some(limit));
        assert_eq!(looked_at(&watch, ALL_OF), ALL_OF);
        watch.note(limit);
        assert_eq!(looked_at(&watch, 10 * ONE_IN), 10);
        watch.note(limit * 2);
        assert_eq!(looked_at(&watch, 10 * ONE_IN), 0);
    }

    #[test]
    fn without_a_limit_nothing_is_looked_at() {
        let watch = HoldWatch::new("code".into(), None);
        assert_eq!(looked_at(&watch, ALL_OF), 0);
    }
}
