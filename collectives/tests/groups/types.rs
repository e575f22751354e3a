//! Types of 8 and 16 bits between engines: combined to the bit, or moved and refused by name.

use grpcxx_collectives::{Group, ReduceOp};
use grpcxx_rpc::{Code, DType, Shape, Tensor};
use half::{bf16, f16};

use super::{engines, together};

/// A type, and its elements as wide numbers, which hold sums and products of three of them.
struct Type {
    dtype: DType,
    ops: &'static [ReduceOp],
    bytes_of: fn(f32) -> Vec<u8>,
    number_of: fn(&[u8]) -> f32,
}

const TYPES: [Type; 4] = [
    Type {
        dtype: DType::Float16,
        ops: &ReduceOp::ALL,
        bytes_of: |number| f16::from_f32(number).to_le_bytes().to_vec(),
        number_of: |bytes| f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
    },
    Type {
        dtype: DType::BFloat16,
        ops: &ReduceOp::ALL,
        bytes_of: |number| bf16::from_f32(number).to_le_bytes().to_vec(),
        number_of: |bytes| bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
    },
    Type {
        dtype: DType::Int8,
        ops: OPS_OF_INTEGERS,
        bytes_of: |number| vec![number as i32 as i8 as u8],
        number_of: |bytes| f32::from(bytes[0] as i8),
    },
    Type {
        dtype: DType::UInt8,
        ops: OPS_OF_INTEGERS,
        bytes_of: |number| vec![number as i32 as u8],
        number_of: |bytes| f32::from(bytes[0]),
    },
];

const OPS_OF_INTEGERS: &[ReduceOp] = &[ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod];

/// One that goes by boards or with what was called, and one whose chunks have several pieces.
const LENGTHS: [usize; 2] = [60, 840_000];

impl Type {
    /// What a rank brings.
    fn elements(&self, rank: u32, len: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(u64::from(rank));
        let number = |_| (self.bytes_of)((random.f32() - 0.3) * 200.0);
        (0..len).flat_map(number).collect()
    }

    /// What all ranks get: combined in their order, and rounded once.
    fn combined(&self, op: ReduceOp, brought: &[Vec<u8>]) -> Vec<u8> {
        let width = self.dtype.element_bytes().unwrap();
        let combine = |one: f32, other: f32| match op {
            ReduceOp::Sum | ReduceOp::Mean => one + other,
            ReduceOp::Min => one.min(other),
            ReduceOp::Max => one.max(other),
            ReduceOp::Prod => one * other,
        };
        let element = |at: usize| {
            let numbers = brought
                .iter()
                .map(|of| (self.number_of)(&of[at..at + width]));
            let number = numbers.reduce(combine).unwrap();
            match op {
                ReduceOp::Mean => (self.bytes_of)(number / brought.len() as f32),
                _ => (self.bytes_of)(number),
            }
        };
        (0..brought[0].len())
            .step_by(width)
            .flat_map(element)
            .collect()
    }
}

fn tensor(dtype: DType, data: Vec<u8>) -> Tensor {
    let len = data.len() / dtype.element_bytes().unwrap();
    Tensor::new(dtype, Shape::vector(len), data).unwrap()
}

/// Lets two and three ranks do the same, with shared memory and without.
fn in_each_group(code: impl Fn(&Group) + Sync) {
    for (size, has_shared_memory) in [(2, true), (3, true), (2, false), (3, false)] {
        let engines = engines(size, has_shared_memory);
        together(
            &engines,
            |builder| builder,
            |group| {
                code(&group);
                group.leave().unwrap();
            },
        );
    }
}

#[test]
fn short_types_are_combined_to_the_same_bits_on_all_ranks() {
    in_each_group(|group| {
        let (rank, size) = (group.rank() as usize, group.size());
        for (kind, len) in TYPES.iter().flat_map(|kind| LENGTHS.map(|len| (kind, len))) {
            let brought: Vec<_> = (0..size).map(|rank| kind.elements(rank, len)).collect();
            let mine = || tensor(kind.dtype, brought[rank].clone());
            // Tests are not optimized: of long arrays the sum alone.
            let ops = &kind.ops[..if len == LENGTHS[0] { kind.ops.len() } else { 1 }];
            for &op in ops {
                let wanted = kind.combined(op, &brought);
                let what = format!("{op} of {len} {} at rank {rank} of {size}", kind.dtype);
                let found = group.all_reduce(mine(), op).wait().unwrap();
                assert_eq!(found.dtype, kind.dtype, "{what}");
                assert!(found.data[..] == wanted[..], "all_reduce, {what}");
                let found = group.reduce_scatter(mine(), op).wait().unwrap();
                let share = wanted.len() / size as usize;
                let part = &wanted[rank * share..][..share];
                assert!(found.data[..] == *part, "reduce_scatter, {what}");
                let found = group.reduce(mine(), op, 1).wait().unwrap();
                assert_eq!(found.is_some(), rank == 1, "{what}");
                let is_right = found.is_none_or(|found| found.data[..] == wanted[..]);
                assert!(is_right, "reduce, {what}");
            }
        }
    });
}

#[test]
fn what_has_no_arithmetic_is_moved_and_refused_by_name() {
    let types = [
        (DType::Float8E5M2, "float8_e5m2"),
        (DType::Float8E4M3Fn, "float8_e4m3fn"),
        (DType::Float8E4M3B11FnUz, "float8_e4m3b11fnuz"),
        (DType::Float8E8M0FnU, "float8_e8m0fnu"),
    ];
    in_each_group(|group| {
        let (rank, size) = (group.rank(), group.size());
        for ((dtype, name), len) in types.iter().flat_map(|kind| LENGTHS.map(|len| (kind, len))) {
            let bytes = |rank: u32| -> Vec<u8> {
                (0..len)
                    .map(|at| (at * 7 + rank as usize * 31) as u8)
                    .collect()
            };
            let mine = || tensor(*dtype, bytes(rank));
            let found = group.broadcast(mine(), 1).wait().unwrap();
            assert_eq!(found.dtype, *dtype);
            assert!(found.data[..] == bytes(1), "broadcast of {name} at {rank}");
            let all: Vec<u8> = (0..size).flat_map(bytes).collect();
            let found = group.all_gather(mine()).wait().unwrap();
            assert!(found.data[..] == all[..], "all_gather of {name} at {rank}");
            let share = len / size as usize;
            let part = |from| bytes(from)[rank as usize * share..][..share].to_vec();
            let wanted: Vec<u8> = (0..size).flat_map(part).collect();
            let found = group.all_to_all(mine()).wait().unwrap();
            assert!(
                found.data[..] == wanted[..],
                "all_to_all of {name} at {rank}"
            );

            let refused = [
                group.all_reduce(mine(), ReduceOp::Sum).wait().map(|_| ()),
                group
                    .reduce_scatter(mine(), ReduceOp::Max)
                    .wait()
                    .map(|_| ()),
                group.reduce(mine(), ReduceOp::Mean, 0).wait().map(|_| ()),
            ];
            for (refused, op) in refused.into_iter().zip(["sum", "max", "mean"]) {
                let error = refused.unwrap_err();
                assert_eq!(error.code, Code::InvalidArgument, "{error}");
                let wanted = format!("{op} of {name} is not defined");
                assert!(error.message.contains(&wanted), "{error}");
            }
            // Nothing was sent, so the group goes on.
            group.barrier().wait().unwrap();
        }
    });
}
