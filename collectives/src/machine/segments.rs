//! An all_reduce of a long array by boards, segment by segment.
//!
//! Each segment takes two steps. In the first one, each rank shows what it brings but for its own
//! chunk, takes its chunk from all others, and combines it. In the second one it shows that, and
//! takes the chunks that the others have combined.

use std::fmt;
use std::ops::Range;

use grpcxx_memory::BufferMut;
use smallvec::SmallVec;

use crate::dtype::{Arithmetic, ReduceOp};
use crate::fold::fold;
use crate::plan::Plan;

/// What one rank has made of the segments so far.
pub(super) struct Segments {
    plan: Plan,
    op: ReduceOp,
    arithmetic: Arithmetic,
    output: BufferMut,
    step: usize,
}

/// Bytes to be shown, each with its place in the slot.
pub(crate) type Shown<'a> = SmallVec<[(usize, &'a [u8]); 2]>;

impl Segments {
    pub(super) fn new(
        plan: Plan,
        (op, arithmetic): (ReduceOp, Arithmetic),
        output: BufferMut,
    ) -> Self {
        Self {
            plan,
            op,
            arithmetic,
            output,
            step: 0,
        }
    }

    /// What this rank shows in the present step.
    pub(super) fn shown<'a>(&'a self, input: &'a [u8]) -> Shown<'a> {
        let segment = self.segment();
        let own = self.chunk(self.plan.rank);
        match self.combines() {
            true => {
                let input = &input[segment];
                let both = [(0, &input[..own.start]), (own.end, &input[own.end..])];
                both.into_iter()
                    .filter(|(_, part)| !part.is_empty())
                    .collect()
            }
            false => {
                let output = &self.output[segment];
                Shown::from_slice(&[(own.start, &output[own])])
            }
        }
    }

    /// Takes what all others show in the present step: `read` copies it from a rank and a place,
    /// and `room` is for what is not kept.
    pub(super) fn take(
        &mut self,
        input: &[u8],
        room: &mut Vec<u8>,
        mut read: impl FnMut(u32, usize, &mut [u8]),
    ) {
        let segment = self.segment();
        let others = (0..self.plan.size).filter(|&rank| rank != self.plan.rank);
        if !self.combines() {
            for from in others {
                let chunk = self.chunk(from);
                read(from, chunk.start, &mut self.output[segment.clone()][chunk]);
            }
            self.step += 1;
            return;
        }
        let own = self.chunk(self.plan.rank);
        let parts_bytes = (self.plan.size as usize - 1) * own.len();
        if room.len() < parts_bytes {
            room.resize(parts_bytes, 0);
        }
        let mut sources: SmallVec<[&[u8]; 8]> = SmallVec::new();
        let mut parts = &mut room[..];
        for from in others {
            let (part, rest) = parts.split_at_mut(own.len());
            read(from, own.start, part);
            sources.push(part);
            parts = rest;
        }
        let brought = &input[segment.clone()][own.clone()];
        sources.insert(self.plan.rank as usize, brought);
        let divisor = (self.op == ReduceOp::Mean).then_some(self.plan.size);
        let output = &mut self.output[segment][own];
        fold(self.op, self.arithmetic, &sources, divisor, output);
        self.step += 1;
    }

    pub(super) fn is_done(&self) -> bool {
        self.step / 2 * SEGMENT_BYTES >= self.plan.bytes
    }

    /// Whether this step combines chunks, and does not spread them.
    fn combines(&self) -> bool {
        self.step.is_multiple_of(2)
    }

    /// Where the present segment lies in the array.
    fn segment(&self) -> Range<usize> {
        let start = self.step / 2 * SEGMENT_BYTES;
        start..self.plan.bytes.min(start + SEGMENT_BYTES)
    }

    /// Where the chunk that a rank combines lies in the present segment.
    fn chunk(&self, rank: u32) -> Range<usize> {
        let plan = Plan {
            bytes: self.segment().len(),
            ..self.plan
        };
        plan.chunk(rank)
    }
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Segments(step {} of {} bytes)",
            self.step, self.plan.bytes
        )
    }
}

/// Length of a segment, a multiple of the length of each element.
pub(crate) const SEGMENT_BYTES: usize = 512 << 10;
