//! What a rank makes of the pieces that have come, and to whom that goes.

use grpcxx_memory::{Buffer, BufferMut};
use smallvec::SmallVec;

use super::{Effect, Machine, Slot, Spot};
use crate::dtype::ReduceOp;
use crate::fold::fold;
use crate::plan::{Source, Then};

impl Machine {
    /// Combines a piece of which all parts are here, and hands it on.
    pub(super) fn settle(&mut self, index: usize, effects: &mut Vec<Effect>) {
        self.unsettled -= 1;
        let piece = &mut self.pieces[index];
        let route = &self.routes[piece.route as usize];
        let range = &piece.range;
        let own = || {
            let at = route.input_at;
            self.input.slice(at + range.start..at + range.end)
        };
        let is_whole = matches!(route.then, Then::Whole(_));
        let parts = std::mem::take(&mut piece.parts);
        let value = |(source, part): (&Source, Option<Buffer>)| match source {
            Source::Own => own(),
            Source::Rank(_) => part.unwrap_or_default(),
        };
        let mut values: SmallVec<[Buffer; 4]> = route.order.iter().zip(parts).map(value).collect();
        let outlives;
        let combined = match (values.len(), self.arithmetic) {
            (2.., Some((op, arithmetic))) => {
                let sources: SmallVec<[&[u8]; 4]> = values.iter().map(|value| &value[..]).collect();
                let output = match route.from {
                    // That memory is for the finished piece.
                    Some(_) => None,
                    None => piece.output.take(),
                };
                outlives = output.is_none();
                let mut out = output.unwrap_or_else(|| BufferMut::zeroed(range.len()));
                let is_mean = op == ReduceOp::Mean && is_whole;
                let divisor = is_mean.then_some(self.plan.size);
                fold(op, arithmetic, &sources, divisor, &mut out);
                out.freeze()
            }
            _ => {
                let value = values.pop().unwrap_or_default();
                // Nobody lends what is empty, as it is for a barrier.
                outlives = value.is_empty();
                match piece.output.take_if(|_| is_whole) {
                    Some(out) => filled(out, &value),
                    None => value,
                }
            }
        };
        drop(values);
        let spot = Spot::of(self.called, route, piece);
        match &route.then {
            Then::Part(to) => effects.push(Effect::Send {
                to: *to,
                slot: Slot::Part(spot),
                data: combined,
                outlives,
            }),
            Then::Whole(wanted_by) => {
                spread(wanted_by, spot, &combined, outlives, effects);
            }
            Then::Nothing => {}
        }
    }

    /// Takes in a finished piece.
    pub(super) fn finish(&mut self, index: usize, data: Buffer, effects: &mut Vec<Effect>) {
        self.unsettled -= 1;
        let piece = &mut self.pieces[index];
        let route = &self.routes[piece.route as usize];
        let data = match piece.output.take() {
            Some(out) => filled(out, &data),
            None => data,
        };
        if let Some((_, forward)) = &route.from {
            let spot = Spot::of(self.called, route, piece);
            spread(forward, spot, &data, data.is_empty(), effects);
        }
    }
}

fn spread(to: &[u32], spot: Spot, data: &Buffer, outlives: bool, effects: &mut Vec<Effect>) {
    for &to in to {
        effects.push(Effect::Send {
            to,
            slot: Slot::Whole(spot),
            data: data.clone(),
            outlives,
        });
    }
}

/// A part of the result, with these bytes. Who sends it on sends it from there, so the operation
/// ends when that is sent.
fn filled(mut out: BufferMut, bytes: &[u8]) -> Buffer {
    out.copy_from_slice(bytes);
    out.freeze()
}
