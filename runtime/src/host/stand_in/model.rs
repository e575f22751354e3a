//! Models of an owner that runs functions, a thread that stands in for it, and what they wait for.

use loom::thread;

use super::super::bed::Line;
use super::super::model::{PREEMPTIONS_MAX, Toy};
use super::super::tasks::jobs;
use super::super::waiter::Waiter;
use super::*;
use crate::compute::Job;

/// Lets the owner be away several times. The functions say that they wait; the last one does so, if
/// the shard has an event to bring. Whoever has the shard in the end finds it in order.
fn check(absences: usize, events: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS_MAX);
    model.check(move || {
        let line = Arc::<Line>::default();
        let waiter = Arc::new(Mutex::new(None));
        let shard = Box::new(Toy {
            line: Arc::clone(&line),
            waiter: Arc::clone(&waiter),
            left: 1,
        });
        let (_, jobs) = jobs();
        let stand_in = Arc::new(StandIn::new());
        let watch = {
            let stand_in = Arc::clone(&stand_in);
            thread::spawn(move || match stand_in.watch() {
                Some(mut left) => {
                    turn(&mut left.shard, events);
                    1
                }
                None => 0,
            })
        };
        stand_in.set_thread(watch.thread().clone());
        let owner = thread::spawn(move || {
            let here = Waiter::new();
            *waiter.lock().expect("no thread panics") = Some(Arc::clone(&here));
            let mut left = Left { shard, jobs };
            for absence in 1..=absences {
                let here = (absence == absences && events > 0).then(|| Arc::clone(&here));
                stand_in.lock().calls.push_back(call(here));
                match stand_in.run(left) {
                    Some(back) => left = back,
                    None => return 0,
                }
            }
            assert_eq!(events, 0, "the stand-in has brought it");
            stand_in.end();
            1
        });
        line.change(|state| state.events += events);
        let owners = owner.join().expect("it does not panic") + watch.join().expect("nor this");
        assert_eq!(owners, 1);
    });
}

/// A call that waits for what the shard brings, or says so and ends.
fn call(waiter: Option<Arc<Waiter>>) -> ShortCall {
    ShortCall {
        peer: grpcxx_rpc::Account::OWN,
        pace: Arc::default(),
        is_own: false,
        job: Job::new(move || match waiter {
            Some(waiter) => assert!(waiter.wait(None, None)),
            None => note_wait(),
        }),
    }
}

fn turn(shard: &mut Toy, events: usize) {
    let mut seen = 0;
    while seen < events {
        seen += shard.turn(grpcxx_transport::Time::ZERO);
        if seen < events {
            shard.park(None);
        }
    }
}

#[test]
fn loom_a_function_gets_what_it_waits_for_from_a_new_owner() {
    check(1, 1);
}

#[test]
fn loom_one_thread_has_the_shard_after_each_absence() {
    check(2, 0);
}
