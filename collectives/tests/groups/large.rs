//! Groups of more ranks than speak with each other: rings and trees between engines.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use grpcxx_collectives::{Group, ReduceOp};
use grpcxx_rpc::Tensor;
use grpcxx_runtime::Engine;

use super::log::{are_told_once, logged};
use super::{sums, together, values};

/// More than the 32 ranks that all speak with each other, and no power of two.
const SIZE: u32 = 35;

/// Short ones go by a tree, those of 12 KiB for each rank and more by a ring.
const LENGTHS: [usize; 4] = [0, 3, 1000, SIZE as usize * 3 * 1024 + 77];

pub(super) fn engines(has_shared_memory: bool) -> Vec<Engine> {
    let engine = |index| {
        let builder = Engine::builder()
            .task("worker", index)
            .listen("127.0.0.1:0")
            .shards(1);
        let builder = builder.shared_memory(has_shared_memory).rdma(false);
        builder.arena_bytes(16 << 20).start().unwrap()
    };
    (0..SIZE).map(engine).collect()
}

/// What all ranks do. Sums of whole numbers are exact in any order.
fn reduce_and_spread(group: &Group) {
    let rank = group.rank();
    let floats = |tensor: &Tensor| tensor.elements::<f32>().unwrap().into_owned();
    for len in LENGTHS {
        let mine = || Tensor::vector(values(rank, len));
        let what = format!("{len} elements at rank {rank}");
        let found = group.all_reduce(mine(), ReduceOp::Sum).wait().unwrap();
        assert_eq!(floats(&found), sums(SIZE, len), "all_reduce of {what}");
        let found = group.broadcast(mine(), 7).wait().unwrap();
        assert_eq!(floats(&found), values(7, len), "broadcast of {what}");
        let found = group
            .reduce(mine(), ReduceOp::Sum, SIZE - 1)
            .wait()
            .unwrap();
        let wanted = (rank == SIZE - 1).then(|| sums(SIZE, len));
        assert_eq!(found.as_ref().map(floats), wanted, "reduce of {what}");
    }
    group.barrier().wait().unwrap();
}

/// Sums that depend on the order have the same bits everywhere.
fn round(group: &Group) -> Vec<Vec<u32>> {
    let mut random = fastrand::Rng::with_seed(u64::from(group.rank()));
    let mut value = || (random.f32() - 0.5) * 10f32.powi(random.i32(-6..6));
    let bits = |len| {
        let mine = Tensor::vector((0..len).map(|_| value()).collect());
        let found = group.all_reduce(mine, ReduceOp::Mean).wait().unwrap();
        let found = found.elements::<f32>().unwrap();
        found.iter().map(|value| value.to_bits()).collect()
    };
    LENGTHS.map(bits).to_vec()
}

fn all_get_what_they_should(has_shared_memory: bool) {
    let engines = engines(has_shared_memory);
    let rounded = Mutex::new(Vec::new());
    let lines = logged(&engines, |group| {
        reduce_and_spread(&group);
        let found = round(&group);
        rounded.lock().unwrap().push(found);
        group.leave().unwrap();
    });
    let rounded = rounded.into_inner().unwrap();
    assert!(rounded.iter().all(|of| *of == rounded[0]), "{rounded:?}");
    for lines in lines {
        are_told_once(
            &lines,
            &[
                "short arrays go by messages, not by shared memory: the group has 35 ranks",
                "all_reduce goes by tree: ",
                "all_reduce goes by ring: ",
            ],
        );
    }
}

#[test]
fn large_groups_use_trees_and_rings_over_tcp() {
    all_get_what_they_should(false);
}

#[test]
fn large_groups_use_trees_and_rings_over_shared_memory() {
    all_get_what_they_should(true);
}

#[test]
fn a_barrier_of_a_large_group_waits_for_the_last_rank() {
    let engines = engines(false);
    let came = AtomicU32::new(0);
    let wait_for_all = |group: Group| {
        // Far from most others in the tree.
        let is_last = group.rank() == SIZE - 1;
        while is_last && came.load(Ordering::Relaxed) < SIZE - 1 {
            thread::yield_now();
        }
        came.fetch_add(1, Ordering::Relaxed);
        group.barrier().wait().unwrap();
        let seen = came.load(Ordering::Relaxed);
        group.leave().unwrap();
        seen
    };
    let seen = together(&engines, |builder| builder, wait_for_all);
    assert_eq!(seen, [SIZE; SIZE as usize]);
}
