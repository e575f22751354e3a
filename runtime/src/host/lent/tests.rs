//! What a model cannot hold: loom lets nobody try a lock while the owner has it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use super::solitude::{SLEEPS_UNSEEN_MAX, Solitude};
use super::*;
use crate::host::error::HostError;
use crate::idle::IdlePolicy;

/// A shard that nothing ever happens to, and that wants a turn at a time.
#[derive(Default)]
struct Still {
    bell: Option<OwnedFd>,
    wants_turn_at: Option<Time>,
    parks: usize,
}

/// Nothing beside a shard, and what happens while that sleeps.
struct Nothing<F>(F);

impl ShardLoop for Still {
    fn turn(&mut self, _: Time) -> usize {
        0
    }

    fn next_timeout(&self) -> Option<Time> {
        self.wants_turn_at
    }

    fn park(&mut self, _: Option<Duration>) {
        self.parks += 1;
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(OwnedFd::as_fd)
    }

    fn patience(&mut self) -> Option<Duration> {
        None
    }

    fn unpark(&mut self) {}

    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }

    fn is_finished(&self) -> bool {
        false
    }

    fn die(self, _: &HostError) {}
}

impl<F: FnMut()> Executor for Nothing<F> {
    fn turn(&mut self, _: Time) -> usize {
        0
    }

    fn next_timeout(&self) -> Option<Time> {
        None
    }

    fn take_panic(&mut self) -> Option<Panic> {
        None
    }

    fn is_empty(&self) -> bool {
        true
    }

    fn jobs(&mut self) -> &mut Option<Jobs> {
        unreachable!("it is never away")
    }

    fn may_sleep(&mut self) -> bool {
        true
    }

    fn awake(&mut self) {
        self.0();
    }

    fn ends_loop(&self) -> bool {
        false
    }
}

/// A shard that its owner has just begun to turn.
fn lent(shard: Still) -> Lent<Still> {
    let idle = Idle::new(IdlePolicy::Park);
    Lent::new(shard, Clock::start(), idle, Bed::new().unwrap())
}

/// A shard that can sleep, and wants a turn in an hour.
fn patient() -> Still {
    Still {
        bell: Some(eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
        wants_turn_at: Some(Time::ZERO + Duration::from_secs(3600)),
        parks: 0,
    }
}

/// Turns the shard as its owner, until that sleeps so that others can have it.
fn turn_until_asleep(lent: &Lent<Still>, meanwhile: impl FnMut()) {
    let (mut time, mut beside) = (TurnTime::new(lent.clock), Nothing(meanwhile));
    let paused = lent.turn_until_pause(&mut lent.lock(), &mut beside, &mut time);
    assert!(matches!(paused, Ok(Pause::Sleep(Some(_)))));
}

#[test]
fn a_call_that_begins_wakes_no_owner_who_wakes_in_time_by_itself() {
    let lent = lent(patient());
    lent.comings.note_wait();
    turn_until_asleep(&lent, || {});
    assert_eq!(lent.visit(|_| true, |_, _| 7), Some(7));
    assert!(lent.lock().hold == Hold::Asleep, "the owner was woken");
    let sooner = Time::ZERO + Duration::from_secs(1800);
    let visited = lent.visit(|_| true, |shard, _| shard.wants_turn_at = Some(sooner));
    assert_eq!(visited, Some(()));
    assert!(lent.lock().hold == Hold::Turned, "it would wake too late");
}

#[test]
fn an_owner_to_whom_no_thread_comes_sleeps_without_a_bed() {
    let (mut solitude, comings) = (Solitude::default(), Comings::new());
    assert!(solitude.note_sleep(&comings));
    for come in [Comings::note_wait, Comings::note_begin] {
        come(&comings);
        let in_bed = (0..).take_while(|_| !solitude.note_sleep(&comings)).count();
        assert_eq!(in_bed, SLEEPS_UNSEEN_MAX as usize);
    }
    let lent = lent(patient());
    turn_until_asleep(&lent, || lent.comings.note_wait());
    assert_eq!(lent.lock().shard().parks, 1);
}

#[test]
fn a_thread_that_comes_soon_behind_its_owner_has_woken_that_in_vain() {
    let lent = lent(patient());
    let waiter = Waiter::new();
    let borrow = |is_awake: bool| {
        let mut seat = lent.lock();
        seat.hold = Hold::Asleep;
        if is_awake {
            seat.woke_at = Some(lent.clock.now());
        }
        drop(seat);
        assert!(lent.turn_for(&waiter, Some(Duration::ZERO)));
        lent.lock().vain_wakes.count
    };
    assert_eq!(borrow(true), 1);
    assert_eq!(borrow(false), 1, "it sleeps since");
    assert_eq!(borrow(true), 2);
}

#[test]
fn the_owner_of_a_shard_that_dozes_hears_what_was_handed_over() {
    let (bed, dozing) = (Bed::new().unwrap(), Dozing::new());
    assert!(dozing.begin(&bed, || false));
    dozing.stir(&bed);
    assert_eq!(bed.sleep(None), Woken::ByAlarm);
    // Whoever borrows it takes that along.
    assert!(dozing.is_stirred());
    dozing.end();
    assert!(!dozing.is_stirred());
    assert!(!dozing.begin(&bed, || true), "it is there already");
}

#[test]
fn a_thread_that_takes_the_shard_asks_for_it_no_more() {
    let lent = lent(Still::default());
    for hold in [Hold::Asleep, Hold::Dozing, Hold::Handed] {
        lent.lock().hold = hold;
        assert!(lent.want().is_some_and(|seat| seat.hold == hold));
        let is_wanted = lent.is_wanted.load(Ordering::Relaxed);
        assert!(!is_wanted, "the owner would hand it to nobody");
    }
    lent.lock().hold = Hold::Turned;
    assert!(lent.want().is_none());
    assert!(!lent.is_wanted.load(Ordering::Relaxed));
}
