//! What an operation shows on boards and takes from them.

use std::ops::Range;

use super::{Machine, Segments, Shown};
use crate::description::DESCRIPTION_BYTES;
use crate::plan::Scheme;

impl Machine {
    /// What was called, and what goes with it in the present step, to be shown to all.
    pub(crate) fn shown(&self) -> ([u8; DESCRIPTION_BYTES], Shown<'_>) {
        let array = match (self.scheme, &self.segments) {
            (Scheme::Exchange, _) => Shown::from_slice(&[(0, &self.input[..])]),
            (_, Some(segments)) => segments.shown(&self.input),
            (_, None) => Shown::new(),
        };
        (self.description.to_bytes(), array)
    }

    /// Takes what all partners show in the present step, if there are steps: `read` copies it from
    /// a rank and a place. `room` is for what is not kept. Returns whether there is another step.
    pub(crate) fn take_step(
        &mut self,
        room: &mut Vec<u8>,
        read: impl FnMut(u32, usize, &mut [u8]),
    ) -> bool {
        let Some(segments) = &mut self.segments else {
            return false;
        };
        segments.take(&self.input, room, read);
        !segments.is_done()
    }

    /// What of the array that a partner shows this rank takes.
    pub(crate) fn taken_from(&self, from: u32) -> Range<usize> {
        match self.scheme {
            Scheme::Exchange => self.plan.exchanged_by(from),
            Scheme::Owners | Scheme::Ring | Scheme::Tree | Scheme::Segments => 0..0,
        }
    }

    /// Whether it waits for what partners show.
    pub(crate) fn waits_for_boards(&self) -> bool {
        self.waits_for_greetings() || !self.has_all_segments()
    }

    pub(super) fn has_all_segments(&self) -> bool {
        self.segments.as_ref().is_none_or(Segments::is_done)
    }
}
