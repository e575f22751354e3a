use std::fmt;
use std::sync::OnceLock;
use std::task::Waker;

use super::sync::{Arc, AtomicBool, Ordering, fence};

/// Wakes a shard that sleeps; may be cloned and rung from any thread.
///
/// The rule that loses no wake-up: whoever puts work into a queue of the shard rings afterwards;
/// the shard says that it will sleep, looks into its queues once more, and only then sleeps
/// ([`Sleeper::may_sleep`]). Both sides have a full fence between their write and their read, so at
/// least one of them sees the other.
#[derive(Clone)]
pub struct Doorbell {
    shared: Arc<Shared>,
}

/// The sleeping side of a [`Doorbell`]; belongs to the shard alone.
pub struct Sleeper {
    shared: Arc<Shared>,
}

struct Shared {
    parked: AtomicBool,
    waker: OnceLock<Waker>,
}

/// A doorbell and the side that sleeps.
pub fn doorbell() -> (Doorbell, Sleeper) {
    let shared = Arc::new(Shared {
        parked: AtomicBool::new(false),
        waker: OnceLock::new(),
    });
    (
        Doorbell {
            shared: shared.clone(),
        },
        Sleeper { shared },
    )
}

impl Doorbell {
    /// Wakes the shard if it sleeps. While it is awake this costs a fence and a relaxed load.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if !self.shared.parked.load(Ordering::Relaxed) {
            return;
        }
        if self.shared.parked.swap(false, Ordering::AcqRel)
            && let Some(waker) = self.shared.waker.get()
        {
            waker.wake_by_ref();
        }
    }
}

impl Sleeper {
    /// Says what ends the shard's sleep. Must be called before the first [`Sleeper::may_sleep`];
    /// the first waker stays.
    pub fn install(&mut self, waker: Waker) {
        let _stays = self.shared.waker.set(waker);
    }

    /// Announces sleep, then asks `has_work` once more. If the answer is `false`, the shard may
    /// sleep and must call [`Sleeper::awake`] afterwards; otherwise the announcement is already
    /// withdrawn.
    pub fn may_sleep(&mut self, has_work: impl FnOnce() -> bool) -> bool {
        if self.shared.waker.get().is_none() {
            return false;
        }
        // Not a plain store: it orders the swaps of earlier rings before this announcement.
        let _was_parked = self.shared.parked.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if has_work() {
            self.awake();
            return false;
        }
        true
    }

    /// Withdraws the announcement of sleep.
    pub fn awake(&mut self) {
        self.shared.parked.store(false, Ordering::Relaxed);
    }

    /// Another doorbell of the same shard.
    pub fn doorbell(&self) -> Doorbell {
        Doorbell {
            shared: self.shared.clone(),
        }
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbell").finish_non_exhaustive()
    }
}

impl fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleeper").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_a_sleeping_shard_is_woken_and_only_once() {
        let count = std::sync::Arc::new(Count::default());
        let (doorbell, mut sleeper) = doorbell();
        sleeper.install(count.clone().into());
        doorbell.ring();
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        assert!(sleeper.may_sleep(|| false));
        doorbell.ring();
        doorbell.ring();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        sleeper.awake();
        assert!(!sleeper.may_sleep(|| true));
        doorbell.ring();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_shard_that_nobody_can_wake_does_not_sleep() {
        let (_doorbell, mut sleeper) = doorbell();
        assert!(!sleeper.may_sleep(|| false));
    }
}

#[cfg(all(test, loom))]
mod model {
    use std::task::Wake;

    use loom::sync::Notify;
    use loom::thread;

    use super::*;

    /// Ends the model's sleep as a driver's waker ends a park: the present one or the next.
    struct Bed(Notify);

    impl Wake for Bed {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.notify();
        }
    }

    fn run(producers: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(PREEMPTIONS_MAX);
        model.check(move || {
            let bed = std::sync::Arc::new(Bed(Notify::new()));
            let (doorbell, mut sleeper) = doorbell();
            sleeper.install(bed.clone().into());
            // What a ring of one producer comes down to: only its producer writes the tail.
            let tails: Vec<_> = (0..producers)
                .map(|_| Arc::new(AtomicBool::new(false)))
                .collect();
            let threads: Vec<_> = tails
                .iter()
                .map(|tail| {
                    let (tail, doorbell) = (tail.clone(), doorbell.clone());
                    thread::spawn(move || {
                        tail.store(true, Ordering::Release);
                        doorbell.ring();
                    })
                })
                .collect();
            let mut taken = vec![false; producers];
            while taken.contains(&false) {
                let before = taken.clone();
                for (tail, taken) in tails.iter().zip(&mut taken) {
                    *taken = *taken || tail.load(Ordering::Acquire);
                }
                let has_work = || {
                    let mut rings = tails.iter().zip(&taken);
                    rings.any(|(tail, taken)| !taken && tail.load(Ordering::Acquire))
                };
                if taken == before && sleeper.may_sleep(has_work) {
                    bed.0.wait();
                    sleeper.awake();
                }
            }
            for thread in threads {
                thread.join().expect("a producer of the model ends");
            }
        });
    }

    /// Switches of threads that the model forces where none is due; more take hours.
    const PREEMPTIONS_MAX: usize = 3;

    #[test]
    fn loom_one_producer_never_leaves_the_shard_asleep() {
        run(1);
    }

    #[test]
    fn loom_two_producers_never_leave_the_shard_asleep() {
        run(2);
    }
}
