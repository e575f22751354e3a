//! Models of a shard that changes hands: an owner, a thread that waits, and what wakes them.

use loom::sync::atomic::AtomicUsize;
use loom::thread;

use super::super::bed::Line;
use super::super::model::{PREEMPTIONS_MAX, Toy};
use super::dozing::VAIN_WAKES_MAX;
use super::*;
use crate::idle::IdlePolicy;

/// What runs beside the shard on its owner's thread: jobs, each of which brings an event.
struct Jobs {
    waiting: Arc<AtomicUsize>,
    line: Arc<Line>,
}

impl Executor for Jobs {
    fn turn(&mut self, _: Time) -> usize {
        let jobs = self.waiting.swap(0, loom::sync::atomic::Ordering::SeqCst);
        if jobs > 0 {
            self.line.change(|state| state.events += jobs);
        }
        jobs
    }

    fn next_timeout(&self) -> Option<Time> {
        None
    }

    fn take_panic(&mut self) -> Option<Panic> {
        None
    }

    fn is_empty(&self) -> bool {
        false
    }

    fn jobs(&mut self) -> &mut Option<super::super::tasks::Jobs> {
        unreachable!("it is never away")
    }

    fn may_sleep(&mut self) -> bool {
        self.waiting.load(loom::sync::atomic::Ordering::SeqCst) == 0
    }

    fn awake(&mut self) {}

    fn ends_loop(&self) -> bool {
        false
    }
}

/// Lets an event come to a shard whose owner runs, and on which a thread waits; over the line, or
/// from a job that only the owner can do. The thread waits for the first of two events, if there
/// are two. With as many vain wakes the shard dozes each time. The owner's first sleep is one
/// alone, or not.
fn check(comes_from_job: bool, vain_wakes: u32, events: usize) {
    check_sleep(comes_from_job, vain_wakes, events, true);
    check_sleep(comes_from_job, vain_wakes, events, false);
}

fn check_sleep(comes_from_job: bool, vain_wakes: u32, events: usize, is_alone: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS_MAX);
    model.check(move || {
        let line = Arc::<Line>::default();
        let waiter = Waiter::new();
        let toy = Toy {
            line: Arc::clone(&line),
            waiter: Arc::new(Mutex::new(Some(Arc::clone(&waiter)))),
            left: events,
        };
        let jobs = Arc::new(AtomicUsize::new(0));
        let bed = Bed(Arc::clone(&line));
        let both = Arc::new(Both(bed.waker(), toy.waker()));
        let idle = Idle::new(IdlePolicy::Park);
        let lent = Arc::new(Lent::new(toy, Clock::start(), idle, bed));
        let mut seat = lent.lock();
        seat.vain_wakes.count = vain_wakes;
        if !is_alone {
            lent.comings.note_wait();
        }
        drop(seat);
        let owner = {
            let lent = Arc::clone(&lent);
            let (waiting, line) = (Arc::clone(&jobs), Arc::clone(&line));
            thread::spawn(move || {
                let kept = lent.own(&mut Jobs { waiting, line });
                assert!(kept.is_ok_and(|(toy, _)| toy.left == 0));
            })
        };
        let source = thread::spawn(move || match comes_from_job {
            true => {
                jobs.fetch_add(1, loom::sync::atomic::Ordering::SeqCst);
                both.wake_by_ref();
            }
            false => (0..events).for_each(|_| line.change(|state| state.events += 1)),
        });
        assert!(waiter.wait(Some(&*lent), None));
        source.join().unwrap();
        owner.join().unwrap();
    });
}

#[test]
fn loom_an_event_wakes_whoever_waits_for_it_and_the_owner_ends() {
    check(false, 0, 1);
    check(false, VAIN_WAKES_MAX, 1);
}

#[test]
fn loom_what_comes_while_nobody_waits_wakes_the_owner() {
    check(false, 0, 2);
    check(false, VAIN_WAKES_MAX, 2);
}

#[test]
fn loom_a_job_of_the_owner_does_not_wait_for_a_thread_that_waits() {
    check(true, 0, 1);
    check(true, VAIN_WAKES_MAX, 1);
}
