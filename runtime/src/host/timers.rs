//! When futures of a shard's thread want to be woken.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::Waker;

use grpcxx_transport::Time;

/// The timers of one thread, in the order of their times.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: RefCell<BTreeMap<(Time, u64), Waker>>,
    /// The time of the first.
    next: Cell<Option<Time>>,
    numbers: Cell<u64>,
}

impl Timers {
    /// Wakes `waker` at `at`. Returns the number of the timer, unique among those of its time.
    pub(crate) fn arm(&self, at: Time, waker: &Waker) -> u64 {
        let number = self.numbers.get() + 1;
        self.numbers.set(number);
        self.renew(at, number, waker);
        number
    }

    /// Changes whom a timer wakes.
    pub(crate) fn renew(&self, at: Time, number: u64, waker: &Waker) {
        let mut waiting = self.waiting.borrow_mut();
        let former = match waiting.get_mut(&(at, number)) {
            Some(known) if known.will_wake(waker) => return,
            Some(known) => Some(std::mem::replace(known, waker.clone())),
            None => waiting.insert((at, number), waker.clone()),
        };
        self.note_next(&waiting);
        drop(waiting);
        drop(former);
    }

    /// Takes a timer back.
    pub(crate) fn disarm(&self, at: Time, number: u64) {
        let mut waiting = self.waiting.borrow_mut();
        let waker = waiting.remove(&(at, number));
        self.note_next(&waiting);
        drop(waiting);
        drop(waker);
    }

    /// Wakes those whose time has come, up to a limit. Returns how many there were.
    #[inline]
    pub(super) fn fire(&self, now: Time) -> usize {
        match self.next.get() {
            Some(next) if next <= now => self.fire_due(now),
            Some(_) | None => 0,
        }
    }

    /// When the first timer wants to fire.
    #[inline]
    pub(super) fn next(&self) -> Option<Time> {
        self.next.get()
    }

    /// Takes all timers back.
    pub(super) fn clear(&self) {
        self.next.set(None);
        drop(self.waiting.take());
    }

    #[cold]
    fn fire_due(&self, now: Time) -> usize {
        for fired in 0..TIMERS_PER_TURN_MAX {
            let mut waiting = self.waiting.borrow_mut();
            let due = waiting.first_entry().filter(|first| first.key().0 <= now);
            let Some(due) = due else {
                return fired;
            };
            let waker = due.remove();
            self.note_next(&waiting);
            drop(waiting);
            waker.wake();
        }
        TIMERS_PER_TURN_MAX
    }

    fn note_next(&self, waiting: &BTreeMap<(Time, u64), Waker>) {
        self.next.set(waiting.keys().next().map(|(at, _)| *at));
    }
}

/// Most timers that fire in one turn.
const TIMERS_PER_TURN_MAX: usize = 256;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn at(ns: u64) -> Time {
        Time::from_nanos(ns)
    }

    #[test]
    fn timers_fire_once_in_the_order_of_their_times_and_not_when_taken_back() {
        let (count, timers) = (Arc::new(Count::default()), Timers::default());
        let waker = Waker::from(Arc::clone(&count));
        let late = timers.arm(at(30), &waker);
        timers.arm(at(10), &waker);
        let taken_back = timers.arm(at(20), &waker);
        timers.disarm(at(20), taken_back);
        timers.renew(at(30), late, &waker);
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!((timers.fire(at(9)), timers.fire(at(25))), (0, 1));
        assert_eq!(timers.next(), Some(at(30)));
        assert_eq!((timers.fire(at(30)), timers.fire(at(99))), (1, 0));
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_turn_fires_a_bounded_number_of_timers() {
        let timers = Timers::default();
        for _ in 0..TIMERS_PER_TURN_MAX + 1 {
            timers.arm(at(1), Waker::noop());
        }
        assert_eq!(timers.fire(at(1)), TIMERS_PER_TURN_MAX);
        assert_eq!(timers.next(), Some(at(1)));
        assert_eq!((timers.fire(at(1)), timers.next()), (1, None));
    }
}
