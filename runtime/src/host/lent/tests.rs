//! What a model cannot hold: loom lets nobody try a lock while the owner has it.

use std::os::fd::BorrowedFd;

use super::*;
use crate::host::error::HostError;
use crate::idle::IdlePolicy;

/// A shard that nothing ever happens to.
struct Still;

impl ShardLoop for Still {
    fn turn(&mut self, _: Time) -> usize {
        0
    }

    fn next_timeout(&self) -> Option<Time> {
        None
    }

    fn park(&mut self, _: Option<Duration>) {}

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        None
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

#[test]
fn the_owner_of_a_shard_that_dozes_hears_what_was_handed_over() {
    let (bed, dozing) = (Bed::new().unwrap(), Dozing::new());
    assert!(dozing.begin(&bed, || false));
    dozing.note_borrow();
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
    let idle = Idle::new(IdlePolicy::Park);
    let lent = Lent::new(Still, Clock::start(), idle, Bed::new().unwrap());
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
