//! Operations of whole groups without an engine: messages wait in a map, and come in an order that
//! a seed decides.

use std::collections::{BTreeMap, HashMap};

use grpcxx_rpc::{DType, Shape};

use super::*;
use crate::description::Kind;
use crate::operation::{Ending, Operation};

/// What each rank brings, and what each should get.
struct Case {
    kind: Kind,
    op: Option<ReduceOp>,
    root: u32,
    inputs: Vec<Vec<f32>>,
    /// Elements of which all ranks must agree.
    shape: u64,
}

/// A rank, its operation, and what it gets.
struct Rank {
    machine: Option<Box<Machine>>,
    ending: Option<std::sync::Arc<Ending>>,
    operation: Operation<Option<Vec<f32>>>,
}

type Address = (u32, u32, Slot);

fn rank(case: &Case, rank: u32, size: u32) -> Rank {
    let plan = Plan {
        kind: case.kind,
        rank,
        size,
        root: case.root,
        bytes: case.shape as usize * 4,
        element_bytes: 4,
        has_boards: false,
    };
    let description = Description {
        kind: case.kind,
        op: case.op,
        dtype: DType::Float32,
        root: case.root,
        number: 0,
        shape: Shape::new(&[case.shape]).unwrap(),
    };
    let arithmetic = case.op.map(|op| op.arithmetic(DType::Float32).unwrap());
    let (operation, ending) = Operation::new(|result: Option<BufferMut>| {
        let values = |bytes: BufferMut| {
            bytes
                .chunks_exact(4)
                .map(bytemuck::pod_read_unaligned)
                .collect()
        };
        Ok(result.map(values))
    });
    let input: &[u8] = bytemuck::cast_slice(&case.inputs[rank as usize]);
    let task = Task {
        plan,
        description,
        arithmetic,
        input: ending.lend(Buffer::from(input.to_vec())),
    };
    let output_bytes = plan.output_bytes();
    let machine = Machine::new(task, |ends| {
        let ending = std::sync::Arc::clone(&ending);
        let output = BufferMut::zeroed(output_bytes.unwrap());
        output.split(ends, move |whole| ending.give_back(whole))
    });
    Rank {
        machine: Some(machine),
        ending: Some(ending),
        operation,
    }
}

/// Carries all messages, in an order that the seed decides, and returns what each rank gets.
fn run(case: &Case, seed: u64) -> Vec<Option<Vec<f32>>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let size = case.inputs.len() as u32;
    let mut ranks: Vec<Rank> = (0..size).map(|number| rank(case, number, size)).collect();
    let mut sent: HashMap<Address, Buffer> = HashMap::new();
    let mut asked: BTreeMap<Address, u32> = BTreeMap::new();
    let mut ready: Vec<(Address, u32, Buffer)> = Vec::new();
    let mut todo: Vec<(u32, Vec<Effect>)> = Vec::new();
    for (number, rank) in (0..size).zip(&mut ranks) {
        let mut effects = Vec::new();
        for from in Plan::partners(number, size) {
            asked.insert((from, number, Slot::Hello), u32::MAX);
        }
        rank.machine.as_mut().unwrap().begin(&mut effects);
        todo.push((number, effects));
    }
    loop {
        for (number, effects) in todo.drain(..) {
            for effect in effects {
                let address = match effect {
                    Effect::Send { to, slot, data, .. } => {
                        let before = sent.insert((number, to, slot), data);
                        assert!(before.is_none(), "{slot:?} to {to} was sent twice");
                        (number, to, slot)
                    }
                    Effect::Receive { from, slot, ticket } => {
                        let before = asked.insert((from, number, slot), ticket);
                        assert!(before.is_none(), "{slot:?} was asked of {from} twice");
                        (from, number, slot)
                    }
                };
                if asked.contains_key(&address)
                    && let Some(data) = sent.remove(&address)
                {
                    let ticket = asked.remove(&address).unwrap();
                    ready.push((address, ticket, data));
                }
            }
        }
        if ready.is_empty() {
            break;
        }
        let next = ready.swap_remove(random.usize(..ready.len()));
        let ((from, to, slot), ticket, data) = next;
        let mut effects = Vec::new();
        let machine = ranks[to as usize].machine.as_mut().unwrap();
        let taken = match slot {
            Slot::Hello => machine.greeted(from, data, &mut effects),
            Slot::Bell => unreachable!("a machine rings no bells"),
            Slot::Part(_) | Slot::Whole(_) => {
                let landed = machine.memory(ticket, data.len() as u64).map(|mut memory| {
                    memory.copy_from_slice(&data);
                    memory.freeze()
                });
                machine.arrived(ticket, landed.unwrap_or(data), &mut effects)
            }
        };
        taken.unwrap();
        todo.push((to, effects));
    }
    assert!(sent.is_empty() && asked.is_empty(), "{sent:?} {asked:?}");
    let finish = |mut rank: Rank| {
        let machine = rank.machine.take().unwrap();
        assert!(machine.is_done(), "{:?}", machine.waits_for());
        drop(machine);
        let ending = rank.ending.take().unwrap();
        ending.succeed();
        drop(ending);
        rank.operation.wait().unwrap()
    };
    ranks.into_iter().map(finish).collect()
}

fn inputs(size: u32, len: usize) -> Vec<Vec<f32>> {
    let of = |rank: u32| {
        (0..len)
            .map(|at| (rank as usize * 1000 + at) as f32)
            .collect()
    };
    (0..size).map(of).collect()
}

fn sum(inputs: &[Vec<f32>]) -> Vec<f32> {
    let len = inputs[0].len();
    (0..len)
        .map(|at| inputs.iter().map(|input| input[at]).sum())
        .collect()
}

/// Lengths in elements: small, with a rest, and long enough for several pieces of each chunk.
const LENGTHS: [usize; 5] = [0, 1, 7 * 12, 24 * 1024, 7 * 3 * 70_000];

#[test]
fn every_rank_gets_the_sum_of_all() {
    for size in [1, 2, 3, 4, 7] {
        for len in LENGTHS {
            let inputs = inputs(size, len);
            let wanted = sum(&inputs);
            let case = Case {
                kind: Kind::AllReduce,
                op: Some(ReduceOp::Sum),
                root: 0,
                inputs,
                shape: len as u64,
            };
            for found in run(&case, 7) {
                assert_eq!(found.unwrap(), wanted, "{size} ranks, {len} elements");
            }
        }
    }
}

#[test]
fn a_root_gets_and_gives_what_it_should() {
    for size in [1, 2, 3, 7] {
        for len in LENGTHS {
            for root in [0, size - 1] {
                let reduce = Case {
                    kind: Kind::Reduce,
                    op: Some(ReduceOp::Sum),
                    root,
                    inputs: inputs(size, len),
                    shape: len as u64,
                };
                let broadcast = Case {
                    kind: Kind::Broadcast,
                    op: None,
                    inputs: inputs(size, len),
                    ..reduce
                };
                let gather = Case {
                    kind: Kind::Gather,
                    op: None,
                    inputs: inputs(size, len),
                    ..reduce
                };
                let (sums, gathered) = (run(&reduce, 1), run(&gather, 2));
                let given = run(&broadcast, 3);
                for rank in 0..size {
                    let is_root = rank == root;
                    let at = rank as usize;
                    let wanted = is_root.then(|| sum(&reduce.inputs));
                    assert_eq!(sums[at], wanted);
                    let wanted = is_root.then(|| gather.inputs.concat());
                    assert_eq!(gathered[at], wanted);
                    let wanted = (!is_root).then(|| broadcast.inputs[root as usize].clone());
                    assert_eq!(given[at], wanted);
                }
            }
        }
    }
}

#[test]
fn parts_go_where_they_belong() {
    for size in [1, 2, 3, 7] {
        for len in LENGTHS {
            let share = len / size as usize;
            let len = share * size as usize;
            let case = |kind, op, inputs, shape: usize| Case {
                kind,
                op,
                root: size - 1,
                inputs,
                shape: shape as u64,
            };
            let all = inputs(size, len);
            let part = |of: &[f32], rank: usize| of[rank * share..(rank + 1) * share].to_vec();
            let op = Some(ReduceOp::Sum);
            let scattered = run(&case(Kind::ReduceScatter, op, all.clone(), len), 4);
            let gathered = run(&case(Kind::AllGather, None, all.clone(), len), 5);
            let exchanged = run(&case(Kind::AllToAll, None, all.clone(), len), 6);
            let given = run(&case(Kind::Scatter, None, all.clone(), share), 7);
            for rank in 0..size as usize {
                assert_eq!(
                    scattered[rank].as_ref().unwrap()[..],
                    part(&sum(&all), rank)
                );
                assert_eq!(gathered[rank].as_ref().unwrap()[..], all.concat());
                let wanted: Vec<f32> = all.iter().flat_map(|of| part(of, rank)).collect();
                assert_eq!(exchanged[rank].as_ref().unwrap()[..], wanted);
                let wanted = part(&all[size as usize - 1], rank);
                assert_eq!(given[rank].as_ref().unwrap()[..], wanted);
            }
        }
    }
}

#[test]
fn a_large_group_uses_trees_and_rings() {
    for (kind, op) in [
        (Kind::Barrier, None),
        (Kind::AllReduce, Some(ReduceOp::Max)),
        (Kind::Reduce, Some(ReduceOp::Max)),
        (Kind::Broadcast, None),
        (Kind::AllGather, None),
    ] {
        for len in [0, 3, 40 * 3100] {
            let len = if kind == Kind::Barrier { 0 } else { len };
            let size = 37;
            let case = Case {
                kind,
                op,
                root: 5,
                inputs: inputs(size, len),
                shape: len as u64,
            };
            for (rank, found) in run(&case, 8).into_iter().enumerate() {
                let wanted = match kind {
                    Kind::AllReduce => Some(case.inputs[36].clone()),
                    Kind::Reduce => (rank == 5).then(|| case.inputs[36].clone()),
                    Kind::Broadcast => (rank != 5).then(|| case.inputs[5].clone()),
                    Kind::AllGather => Some(case.inputs.concat()),
                    _ => None,
                };
                assert_eq!(found, wanted, "{} of {len} at rank {rank}", kind.name());
            }
        }
    }
}

/// What rounding makes of a sum depends on the order; here that is the same for all ranks, however
/// messages come.
#[test]
fn all_ranks_get_the_same_bits_whatever_comes_first() {
    for (size, len) in [(3, 5), (5, 100_000), (33, 100), (33, 40 * 3100)] {
        let mut random = fastrand::Rng::with_seed(size);
        let mut value = || (random.f32() - 0.5) * 10f32.powi(random.i32(-6..6));
        let inputs = (0..size).map(|_| (0..len).map(|_| value()).collect());
        let case = Case {
            kind: Kind::AllReduce,
            op: Some(ReduceOp::Mean),
            root: 0,
            inputs: inputs.collect(),
            shape: len as u64,
        };
        let bits = |found: Vec<Option<Vec<f32>>>| -> Vec<Vec<u32>> {
            let of = |found: Option<Vec<f32>>| found.unwrap().iter().map(|v| v.to_bits()).collect();
            found.into_iter().map(of).collect()
        };
        let first = bits(run(&case, 1));
        assert!(first.iter().all(|found| *found == first[0]));
        assert_eq!(bits(run(&case, 2)), first);
    }
}
