//! Models of an owner that runs a function, a thread that stands in for it, and what the function
//! waits for.

use loom::thread;

use super::super::bed::Line;
use super::super::model::{PREEMPTIONS_MAX, Toy};
use super::super::waiter::Waiter;
use super::*;
use crate::compute::Pace;
use crate::idle::IdlePolicy;

/// Lets the owner run a function that says that it waits, and does so if the shard has an event to
/// bring.
fn check(events: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS_MAX);
    model.check(move || {
        let line = Arc::<Line>::default();
        let waiter = Arc::new(Mutex::new(None));
        let toy = Toy {
            line: Arc::clone(&line),
            waiter: Arc::clone(&waiter),
            left: events + 1,
        };
        let idle = Idle::new(IdlePolicy::Park);
        let ended = Box::new(|| panic!("an event is left"));
        let stand_in = Arc::new(StandIn::new(toy.waker(), Clock::start(), idle, ended));
        let watch = {
            let stand_in = Arc::clone(&stand_in);
            thread::spawn(move || stand_in.watch())
        };
        stand_in.set_thread(watch.thread().clone());
        let owner = {
            let stand_in = Arc::clone(&stand_in);
            thread::spawn(move || {
                let here = Waiter::new();
                *waiter.lock().expect("no thread panics") = Some(Arc::clone(&here));
                stand_in.lock().calls.push_back(ShortCall {
                    peer: grpcxx_rpc::Account::OWN,
                    pace: Arc::new(Pace::default()),
                    job: Box::new(move || match events {
                        0 => note_wait(),
                        _ => assert!(here.wait(None, None)),
                    }),
                });
                let Found::Shard(toy) = stand_in.run(Box::new(toy)) else {
                    panic!("the shard neither ends nor dies");
                };
                assert_eq!(toy.left, 1);
                stand_in.end();
            })
        };
        line.change(|state| state.events += events);
        owner.join().expect("no thread panics");
        watch.join().expect("no thread panics");
    });
}

#[test]
fn loom_a_function_gets_what_it_waits_for_and_its_owner_the_shard() {
    check(1);
}

#[test]
fn loom_a_stand_in_that_comes_late_gives_the_shard_back() {
    check(0);
}
