//! Ranks of one host, which show each other short arrays in shared memory.

use std::thread;
use std::time::{Duration, Instant};

use grpcxx_collectives::{Group, Operation, ReduceOp};
use grpcxx_rpc::{Code, Tensor};

use super::{address, engines, sums, together, values};

fn sum(group: &Group, len: usize) -> Operation<Tensor> {
    group.all_reduce(Tensor::vector(values(group.rank(), len)), ReduceOp::Sum)
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.elements::<f32>().unwrap().into_owned()
}

#[test]
fn ranks_that_come_late_find_the_others_asleep_and_wake_them() {
    let engines = engines(3, true);
    let start = Instant::now();
    together(
        &engines,
        |builder| builder,
        |group| {
            for round in 0..30 {
                // Longer than a rank looks before it sleeps.
                if round % 3 == group.rank() {
                    thread::sleep(Duration::from_millis(5));
                }
                assert_eq!(floats(&sum(&group, 16).wait().unwrap()), sums(3, 16));
            }
            group.leave().unwrap();
        },
    );
    let taken = start.elapsed();
    assert!(
        taken < Duration::from_secs(10),
        "{taken:?}: only the timers woke them"
    );
}

#[test]
fn operations_that_nobody_waits_for_go_on() {
    let engines = engines(2, true);
    together(
        &engines,
        |builder| builder,
        |group| {
            // One that is dropped, one that is held, and one that is too long to be shown.
            drop(sum(&group, 5));
            let held = sum(&group, 6);
            let long = sum(&group, 300_000);
            assert_eq!(floats(&long.wait().unwrap()), sums(2, 300_000));
            assert_eq!(floats(&held.wait().unwrap()), sums(2, 6));
            let mut last = sum(&group, 7);
            let result = last.wait_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(floats(&result.unwrap()), sums(2, 7));
            assert_eq!(
                floats(&futures_executor::block_on(sum(&group, 8)).unwrap()),
                sums(2, 8)
            );
            group.leave().unwrap();
        },
    );
}

/// While a rank waits for something else, or computes for longer than an operation may take.
#[test]
fn operations_that_are_held_go_on_meanwhile() {
    let engines = engines(2, true);
    let patience = Duration::from_millis(400);
    together(
        &engines,
        |builder| builder.timeout(patience),
        |group| {
            let beside = group.with_tag(1);
            for len in [16, 600_000] {
                let held = sum(&group, len);
                let found = match group.rank() {
                    0 => {
                        beside.barrier().wait().unwrap();
                        thread::sleep(2 * patience);
                        held.wait().unwrap()
                    }
                    _ => {
                        let found = held.wait().unwrap();
                        beside.barrier().wait().unwrap();
                        found
                    }
                };
                assert_eq!(floats(&found), sums(2, len));
                // Nobody waits in an operation for longer than that may take.
                thread::sleep(Duration::from_millis(if group.rank() == 0 {
                    0
                } else {
                    800
                }));
            }
            group.leave().unwrap();
        },
    );
}

#[test]
fn any_operations_in_any_rhythm_give_all_ranks_their_results() {
    const SIZE: u32 = 3;
    let engines = engines(SIZE, true);
    together(
        &engines,
        |builder| builder,
        |group| {
            // All ranks draw the same operations, each its own rhythm.
            let mut common = fastrand::Rng::with_seed(7);
            let mut own = fastrand::Rng::with_seed(100 + u64::from(group.rank()));
            let mut held: Vec<(Operation<Tensor>, Vec<f32>)> = Vec::new();
            for _ in 0..600 {
                let len = common.usize(..6) * common.usize(1..4000) * SIZE as usize;
                let share = len / SIZE as usize;
                let rank = group.rank() as usize;
                let mine = Tensor::vector(values(group.rank(), len));
                let all = |rank: u32| values(rank, len);
                let (operation, wanted) = match common.u32(..4) {
                    0 => (group.all_reduce(mine, ReduceOp::Sum), sums(SIZE, len)),
                    1 => {
                        let root = common.u32(..SIZE);
                        (group.broadcast(mine, root), all(root))
                    }
                    2 => (group.all_gather(mine), (0..SIZE).flat_map(all).collect()),
                    _ => {
                        let part = |from| all(from)[rank * share..][..share].to_vec();
                        (group.all_to_all(mine), (0..SIZE).flat_map(part).collect())
                    }
                };
                match own.u32(..10) {
                    0 => thread::sleep(Duration::from_micros(own.u64(..400))),
                    1 => thread::yield_now(),
                    _ => {}
                }
                held.push((operation, wanted));
                if own.bool() {
                    for (operation, wanted) in held.drain(..) {
                        assert_eq!(floats(&operation.wait().unwrap()), wanted);
                    }
                }
            }
            for (operation, wanted) in held {
                assert_eq!(floats(&operation.wait().unwrap()), wanted);
            }
            group.leave().unwrap();
        },
    );
}

#[test]
fn a_rank_that_dies_ends_those_that_look_for_what_it_shows() {
    let mut engines = engines(3, true);
    let (size, first) = (engines.len() as u32, address(&engines[0]));
    let last = engines.pop().unwrap();
    let victim = Group::builder(2, size, first.clone()).begin(&last).unwrap();
    let victim = thread::spawn(move || {
        let group = victim.wait().unwrap();
        assert_eq!(floats(&sum(&group, 4).wait().unwrap()), sums(size, 4));
        drop(last);
        drop(group);
    });
    thread::scope(|scope| {
        for (rank, engine) in (0..).zip(&engines) {
            let joining = Group::builder(rank, size, first.clone())
                .begin(engine)
                .unwrap();
            scope.spawn(move || {
                let group = joining.wait().unwrap();
                assert_eq!(floats(&sum(&group, 4).wait().unwrap()), sums(size, 4));
                let status = sum(&group, 4).wait().unwrap_err();
                assert_eq!(status.code, Code::Aborted, "{status}");
                assert!(status.message.contains("rank 2 ("), "{status}");
                let again = sum(&group, 4).wait().unwrap_err();
                assert_eq!(again.message, status.message);
            });
        }
    });
    victim.join().unwrap();
}

#[test]
fn long_arrays_have_the_same_bits_on_all_ranks() {
    const SIZE: u32 = 3;
    // A whole segment and a part of one, which three ranks cannot divide evenly.
    const LEN: usize = 400_001;
    let drawn = |rank: u32| -> Vec<f32> {
        let mut random = fastrand::Rng::with_seed(u64::from(rank));
        (0..LEN).map(|_| random.f32() * 1e6 - 5e5).collect()
    };
    let all: Vec<Vec<f32>> = (0..SIZE).map(drawn).collect();
    let in_order = |at: usize| {
        all.iter()
            .skip(1)
            .fold(all[0][at], |sum, rank| sum + rank[at])
    };
    let wanted: Vec<u32> = (0..LEN).map(|at| in_order(at).to_bits()).collect();
    let engines = engines(SIZE, true);
    together(
        &engines,
        |builder| builder,
        |group| {
            let mine = Tensor::vector(all[group.rank() as usize].clone());
            let found = floats(&group.all_reduce(mine, ReduceOp::Sum).wait().unwrap());
            let bits: Vec<u32> = found.into_iter().map(f32::to_bits).collect();
            assert!(bits == wanted, "rank {}", group.rank());
            group.leave().unwrap();
        },
    );
}
