//! Groups of up to 1,024 ranks without engines, in which ranks die, hang or leave at moments that a
//! seed draws.
//!
//! The lanes and the operations are those of a real group; around them, this model does what a
//! member does with an engine. Messages wait at their senders until they are asked for, and come in
//! an order that the seed decides. The model holds that
//!
//! - no operation ends well with another result than the right one, and none with nothing;
//! - who fails names the rank that was lost, whether it needs it or hears of it from one that does;
//! - every rank ends: with all results, or with that error.
//!
//! Whoever dies, leaves or hangs is named by all, and nobody else is.

mod looks;
mod world;

use world::{Loss, World};

use crate::dtype::ReduceOp;
use crate::operator::Operator;

/// What all ranks call one after the other, with arrays of so many elements.
const PROGRAM: [(Operator, usize); 5] = [
    (Operator::AllReduce(ReduceOp::Sum), 3),
    (Operator::Barrier, 0),
    (Operator::Broadcast { root: 5 }, 40),
    (
        Operator::Reduce {
            op: ReduceOp::Max,
            root: 1,
        },
        40,
    ),
    (Operator::AllReduce(ReduceOp::Max), 40),
];

/// The longest arrays go round in a ring, in as many turns as there are ranks.
fn program_of_rings(size: u32) -> Vec<(Operator, usize)> {
    let len = size as usize * 3100;
    vec![
        (Operator::AllReduce(ReduceOp::Sum), len),
        (Operator::AllGather, 7),
        (Operator::AllReduce(ReduceOp::Max), len),
    ]
}

fn check(world: &World, what: &str) {
    world.check_results(what);
    let Some((lost, _)) = world.loss else {
        return;
    };
    for (rank, text) in world.errors() {
        let named = text.matches(" (host-").count();
        let is_named = text.contains(&format!("rank {lost} (")) && named == 1;
        assert!(is_named, "{what}: rank {rank} says: {text}");
    }
}

#[test]
fn a_group_of_1024_gets_all_results_when_nobody_is_lost() {
    let mut world = World::new(1024, &PROGRAM, 1);
    world.run();
    assert_eq!(world.errors().count(), 0);
    world.check_results("1,024 ranks");
}

#[test]
fn whoever_dies_hangs_or_leaves_among_1024_is_named_and_nobody_has_a_wrong_result() {
    let losses = [Loss::Dies, Loss::DoesNotCall, Loss::Leaves];
    let mut failed = 0;
    for (seed, loss) in (0..).zip(losses.into_iter().cycle().take(12)) {
        let mut world = World::new(1024, &PROGRAM, seed);
        world.lose_one(loss);
        world.run();
        check(&world, &format!("1,024 ranks, seed {seed}, {loss:?}"));
        failed += world.errors().count();
    }
    assert!(failed > 6 * 1024, "{failed} of 12 times 1,024 ranks failed");
}

#[test]
fn whoever_dies_hangs_or_leaves_in_a_ring_or_a_small_group_is_named() {
    for size in [2, 3, 32, 33, 48] {
        let losses = [Loss::Dies, Loss::DoesNotCall, Loss::Leaves];
        for (seed, loss) in (0..).zip(losses.into_iter().cycle().take(9)) {
            let mut world = World::new(size, &program_of_rings(size), seed);
            world.lose_one(loss);
            world.run();
            check(&world, &format!("{size} ranks, seed {seed}, {loss:?}"));
        }
    }
}

#[test]
fn an_engine_that_freezes_ends_all_with_an_error() {
    for (size, seed) in [(3, 1), (32, 2), (33, 3), (48, 4), (1024, 5), (1024, 6)] {
        let rings = program_of_rings(size);
        let program = if size > 100 { &PROGRAM[..] } else { &rings };
        let mut world = World::new(size, program, seed);
        world.lose_one(Loss::Freezes);
        world.run();
        check(&world, &format!("{size} ranks, seed {seed}"));
    }
}
