//! Groups of up to 1,024 ranks without engines, in which ranks die, hang or leave at moments that a
//! seed draws.
//!
//! The lanes and the operations are those of a real group; around them, this model does what a
//! member does with an engine. Messages wait at their senders until they are asked for, and come in
//! an order that the seed decides. The model holds that
//!
//! - no operation ends well with another result than the right one, and none with nothing;
//! - no barrier ends before all have called it;
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
fn nobody_passes_a_barrier_before_the_last_has_come() {
    for (size, late) in [(2, 1), (32, 0), (33, 0), (40, 39), (1024, 0), (1024, 700)] {
        let mut world = World::new(size, &[(Operator::Barrier, 0); 3], 7);
        world.late = Some(late);
        world.run();
        assert_eq!(world.errors().count(), 0);
        world.check_results(&format!("{size} ranks, {late} is late"));
    }
}

/// The tree in which ranks compare what was called begins at rank 0, and not at the root: a rank
/// is ahead of one that has yet to take what it sent, by as many operations as steps of that tree.
#[test]
fn what_ranks_send_that_are_ahead_comes_in_its_turn() {
    let sum = |root| {
        let op = ReduceOp::Sum;
        (Operator::Reduce { op, root }, 5)
    };
    for (size, root, late) in [(33, 25, 28), (64, 2, 26), (100, 2, 26), (1024, 2, 26)] {
        // In small groups all places come again.
        let count = if size <= 64 { 150 } else { 9 };
        let mut world = World::new(size, &vec![sum(root); count], 3);
        world.late = Some(late);
        world.run();
        assert_eq!(world.errors().count(), 0);
        world.check_results(&format!("{size} ranks, root {root}, {late} is late"));
    }
}

/// A request for each operation would cost each of them a message more.
#[test]
fn ranks_ask_for_several_operations_at_once() {
    for (size, count) in [(2, 80), (3, 400), (33, 80)] {
        let sum = (Operator::AllReduce(ReduceOp::Sum), 3);
        let mut world = World::new(size, &vec![sum; count], 11);
        world.run();
        assert_eq!(world.errors().count(), 0);
        world.check_results(&format!("{size} ranks"));
        let (asked, ranks) = (world.hellos_asked, size as usize);
        assert!(
            asked <= ranks * (count / 8 + 4),
            "{size} ranks asked {asked} times"
        );
    }
}

/// Whoever is asked for operations that nobody begins any more is not missed in the present one.
#[test]
fn a_rank_that_leaves_ends_no_operation_for_which_it_has_sent_all() {
    let sum = (Operator::AllReduce(ReduceOp::Sum), 3);
    for seed in 0..300 {
        let mut world = World::new(4, &[sum; 20], seed);
        world.late = Some(3);
        world.run();
        assert_eq!(world.errors().count(), 0, "seed {seed}");
        world.check_results(&format!("seed {seed}"));
    }
}

/// All below rank 1 in the tree call the scatter, so most of them agree with whom they ask. Its
/// parts are as long as what the others send each other.
#[test]
fn nobody_takes_what_was_sent_for_another_operation() {
    let (size, share) = (40, 6);
    let (all, part) = (share * size as usize, share);
    let below_1 = || {
        [1..=1, 3..=4, 7..=10, 15..=22, 31..=39]
            .into_iter()
            .flatten()
    };
    for seed in 0..20 {
        let sum = Operator::ReduceScatter(ReduceOp::Sum);
        let mut world = World::new(size, &[(sum, all)], seed);
        below_1().for_each(|rank| world.give(rank, &[(Operator::Scatter { root: 5 }, part)]));
        world.run();
        assert_eq!(world.errors().count(), size as usize, "seed {seed}");
        assert_eq!(world.ended(), 0, "seed {seed}");
    }
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
