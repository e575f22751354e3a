//! The programs of docs/collectives.md.

use std::thread;
use std::time::Duration;

use grpcxx::collectives::{Group, ReduceOp};
use grpcxx::{Engine, Status, Tensor};

use super::all_reduce;
use super::ports::held_address;

const PAGE: &str = include_str!("../../docs/collectives.md");

/// The ranks that are left meet again. Rank 0, at whose address they meet, is one of them.
fn without(lost: u32, group: Group, engine: &Engine, meeting: &str) -> Result<Group, Status> {
    let rank = group.rank() - u32::from(group.rank() > lost);
    let size = group.size() - 1;
    group.leave()?;
    let again = Group::builder(rank, size, meeting).generation(1);
    again.join(engine)
}

#[test]
fn the_page_has_the_programs_that_are_tested() {
    let (_, program) = include_str!("../../examples/all_reduce.rs")
        .split_once("to a person\")]\n\n")
        .unwrap();
    let program = program.replace("pub(crate) ", "");
    let (_, reforming) = include_str!("collectives.rs")
        .split_once("PAGE: &str = include_str!(\"../../docs/collectives.md\");\n\n")
        .unwrap();
    let (reforming, _) = reforming.split_once("\n#[test]").unwrap();
    let blocks = PAGE.split("```rust\n").skip(1);
    let blocks: Vec<&str> = blocks
        .map(|block| block.split("```").next().unwrap())
        .collect();
    assert_eq!(blocks, [&program, reforming]);
}

#[test]
fn two_ranks_sum_their_arrays() {
    let place = held_address().to_string();
    let ranks = [0, 1].map(|rank| {
        let place = place.clone();
        thread::spawn(move || all_reduce::sum(rank, &place))
    });
    for rank in ranks {
        assert_eq!(rank.join().unwrap().unwrap(), [1.0, 2.0]);
    }
}

#[test]
fn those_that_are_left_meet_again() {
    let engines = (0..3).map(|rank| {
        let engine = Engine::builder().task("worker", rank);
        engine.listen("127.0.0.1:0").arena_bytes(64 << 20).start()
    });
    let engines: Vec<Engine> = engines.map(Result::unwrap).collect();
    let meeting = engines[0].local_addr().unwrap().to_string();
    let ranks = (0..).zip(engines).map(|(rank, engine)| {
        let meeting = meeting.clone();
        thread::spawn(move || {
            let joining = Group::builder(rank, 3, meeting.clone()).timeout(Duration::from_secs(30));
            let group = joining.join(&engine).unwrap();
            let one = || Tensor::scalar(1f32);
            group.all_reduce(one(), ReduceOp::Sum).wait().unwrap();
            if rank == 1 {
                // Its engine stops without a word.
                return None;
            }
            let error = group.all_reduce(one(), ReduceOp::Sum).wait().unwrap_err();
            assert!(error.message.contains("rank 1 ("), "{error}");
            let group = without(1, group, &engine, &meeting).unwrap();
            let sum = group.all_reduce(one(), ReduceOp::Sum).wait().unwrap();
            let rank = group.rank();
            group.leave().unwrap();
            Some((rank, sum.value::<f32>().unwrap()))
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let ends: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    assert_eq!(ends, [Some((0, 2.0)), None, Some((1, 2.0))]);
}
