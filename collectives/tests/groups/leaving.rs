//! Ranks that leave at once when they have done their part.

use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use grpcxx_collectives::{Group, ReduceOp};
use grpcxx_rpc::Tensor;
use grpcxx_runtime::{Client, Engine};

use super::{engines, sums, together, values};

/// More pieces of 256 KiB than a rank asks another one for at a time.
const LONG: usize = 12 << 20;

#[test]
fn a_root_gets_what_ranks_have_combined_that_left_at_once() {
    for has_shared_memory in [true, false] {
        for _ in 0..5 {
            let engines = engines(3, has_shared_memory);
            together(
                &engines,
                |builder| builder,
                |group| {
                    let rank = group.rank();
                    let mine = Tensor::vector(values(rank, LONG));
                    let found = group.reduce(mine, ReduceOp::Sum, 0).wait().unwrap();
                    if rank == 0 {
                        let found = found.unwrap();
                        assert!(found.as_slice::<f32>().unwrap() == sums(3, LONG));
                    }
                    group.leave().unwrap();
                },
            );
        }
    }
}

#[test]
fn a_late_rank_of_a_tree_keeps_none_from_leaving_with_its_part() {
    let engines = super::large::engines(false);
    let size = engines.len() as u32;
    together(
        &engines,
        |builder| builder,
        |group| {
            let rank = group.rank();
            // Rank 1 takes what its children 3 and 4 have combined when both have called.
            if rank == 3 {
                thread::sleep(Duration::from_millis(400));
            }
            let mine = Tensor::vector(values(rank, 5));
            let found = group.reduce(mine, ReduceOp::Sum, 0).wait().unwrap();
            if let Some(found) = found {
                assert_eq!(found.elements::<f32>().unwrap()[..], sums(size, 5));
            }
            group.leave().unwrap();
        },
    );
}

#[test]
fn a_root_does_not_wait_for_a_rank_that_died_before_it_took_all() {
    for has_shared_memory in [true, false] {
        let mut engines = engines(2, has_shared_memory);
        let groups = together(&engines, |builder| builder, |group| group);
        let begin = |group: &Group| {
            let mine = Tensor::vector(values(0, 3 * LONG));
            group.broadcast(mine, 0)
        };
        let mut given = begin(&groups[0]);
        let taken = begin(&groups[1]);
        thread::sleep(Duration::from_millis(10));
        drop(engines.pop());
        drop(taken);
        let ended = given.wait_timeout(Duration::from_secs(20));
        assert!(ended.is_some(), "the root waits for a rank that is dead");
        let error = groups[0].barrier().wait().unwrap_err();
        assert!(error.message.contains("rank 1 ("), "{error}");
    }
}

#[test]
fn nobody_waits_for_the_dead_to_hear_why_the_group_is_over() {
    for has_shared_memory in [true, false] {
        let mut engines = engines(3, has_shared_memory);
        let groups = together(
            &engines,
            |builder| builder,
            |group| {
                // By then all have a connection to each other.
                group.barrier().wait().unwrap();
                group
            },
        );
        drop(engines.pop());
        let leaving = groups.into_iter().take(2).map(|group| {
            thread::spawn(move || {
                let error = group.barrier().wait().unwrap_err();
                assert!(error.message.contains("rank 2 ("), "{error}");
                let started = Instant::now();
                group.leave().unwrap();
                started.elapsed()
            })
        });
        for leaving in leaving.collect::<Vec<_>>() {
            let taken = leaving.join().unwrap();
            assert!(taken < Duration::from_secs(1), "{taken:?}");
        }
    }
}

#[test]
fn a_rank_that_leaves_twice_waits_for_the_others_as_well() {
    let engines = super::large::engines(false);
    let size = engines.len() as u32;
    let has_left = Barrier::new(2);
    together(
        &engines,
        |builder| builder,
        |group| {
            let rank = group.rank();
            // Rank 1 takes what its children 3 and 4 have combined when both have called.
            if rank == 3 {
                has_left.wait();
            }
            let mine = Tensor::vector(values(rank, 5));
            let found = group.reduce(mine, ReduceOp::Sum, 0).wait().unwrap();
            if let Some(found) = found {
                assert_eq!(found.elements::<f32>().unwrap()[..], sums(size, 5));
            }
            if rank == 4 {
                group.clone().leave_without_waiting();
                group.clone().leave_without_waiting();
                has_left.wait();
            }
            group.leave().unwrap();
        },
    );
}

#[test]
fn nobody_waits_for_a_rank_that_hangs_to_leave_a_group_that_has_failed() {
    for has_shared_memory in [true, false] {
        let engines: Vec<Engine> = (0..3).map(|rank| engine(rank, has_shared_memory)).collect();
        let (last, begun, hangs) = (engines[2].client(), Barrier::new(3), Barrier::new(3));
        let patience = Duration::from_secs(3);
        together(
            &engines,
            |builder| builder.timeout(patience),
            |group| {
                group.barrier().wait().unwrap();
                let rank = group.rank();
                let operation = (rank < 2).then(|| group.barrier());
                begun.wait();
                let Some(operation) = operation else {
                    return hang(&last, &hangs);
                };
                let error = operation.wait().unwrap_err();
                let started = Instant::now();
                let left = group.leave();
                let taken = started.elapsed();
                hangs.wait();
                assert!(error.message.starts_with("rank 2 ("), "{error}");
                assert!(
                    left.is_ok() && taken < patience * 3 / 2,
                    "{taken:?}: {left:?}"
                );
            },
        );
    }
}

fn engine(rank: u32, has_shared_memory: bool) -> Engine {
    let builder = Engine::builder()
        .task("worker", rank)
        .listen("127.0.0.1:0")
        .shards(1);
    let builder = builder.shared_memory(has_shared_memory).rdma(false);
    builder.arena_bytes(16 << 20).start().unwrap()
}

/// Keeps the only shard of an engine from all else until the others have left.
fn hang(engine: &Client, until: &Barrier) {
    let (lets_go, is_let_go) = mpsc::channel::<()>();
    let kept = engine.run_on(0, move |_| _ = is_let_go.recv());
    kept.unwrap();
    until.wait();
    drop(lets_go);
}
