//! The tensors of one frame on their way in, in either form.

use grpcxx_memory::Buffer;
use grpcxx_transport::Next;
use smallvec::SmallVec;

use super::cursor::Cursor;
use super::records::Records;
use super::{ConnectionLimits, Landings, PeerViolation};
use crate::extensions::heads_first::body::HeadsFirst;
use crate::wire::HEADER_BYTES;
use crate::{Status, Tensor, Text};

/// The tensors of one response on their way in, in either form.
#[derive(Debug)]
pub(crate) enum Body {
    /// Each head before its data.
    Records(Records),
    /// All heads first; there are as many as were asked for.
    HeadsFirst(HeadsFirst),
}

impl Body {
    /// Drops the rest; the first reason counts.
    pub(crate) fn fail(&mut self, status: Status) {
        match self {
            Self::Records(records) => records.fail(status),
            Self::HeadsFirst(body) => body.fail(status),
        }
    }

    /// Whether all bytes of all tensors are there, or ordered to be dropped.
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Self::Records(records) => records.is_complete(),
            Self::HeadsFirst(body) => body.is_complete(),
        }
    }

    /// Whether all tensors are begun, so that what follows is the next frame.
    pub(crate) fn are_begun(&self) -> bool {
        match self {
            Self::Records(records) => records.are_begun(),
            Self::HeadsFirst(body) => body.are_begun(),
        }
    }

    /// Whether data lands.
    pub(crate) fn is_landing(&self) -> bool {
        match self {
            Self::Records(records) => records.is_landing(),
            Self::HeadsFirst(body) => body.is_landing(),
        }
    }

    /// Landings that were ordered and are not back.
    pub(crate) fn landings_out(&self) -> usize {
        match self {
            Self::Records(records) => records.landings_out(),
            Self::HeadsFirst(body) => body.landings_out(),
        }
    }

    /// What the data takes of the arena.
    pub(crate) fn arena_bytes(&self) -> u64 {
        match self {
            Self::Records(records) => records.arena_bytes(),
            Self::HeadsFirst(body) => body.arena_bytes(),
        }
    }

    /// How much of that is there, at least.
    pub(crate) fn arrived_bytes(&self) -> u64 {
        match self {
            Self::Records(records) => records.arrived_bytes(),
            // Responses, which their receiver has asked for.
            Self::HeadsFirst(_) => 0,
        }
    }

    /// Drops what lands, and all that follows. Returns how many bytes behind what lands are to be
    /// dropped, and what the link has to show then.
    pub(crate) fn give_up(&mut self, status: Status) -> (u64, usize) {
        match self {
            Self::Records(records) => {
                records.give_up(status);
                (0, records.next_head_bytes())
            }
            Self::HeadsFirst(body) => (body.give_up(status), HEADER_BYTES),
        }
    }

    /// All tensors, with their indexes, once complete. `name` tells how the tensor with an index
    /// was asked for.
    pub(crate) fn into_result(
        self,
        name: impl FnOnce(usize) -> Option<Text>,
    ) -> Result<(SmallVec<[Tensor; 1]>, Vec<u32>), Status> {
        match self {
            Self::Records(records) => records.into_result(name),
            Self::HeadsFirst(body) => Ok((body.into_result()?, Vec::new())),
        }
    }

    /// Takes the memory that was ordered to be filled first.
    pub(crate) fn landed(&mut self, buffer: Buffer) {
        match self {
            Self::Records(records) => records.landed(buffer),
            Self::HeadsFirst(body) => body.landed(buffer),
        }
    }

    /// Takes what is there, and says what the link shall do. `None` means that all tensors are
    /// complete.
    pub(crate) fn advance(
        &mut self,
        cursor: &mut Cursor<'_>,
        limits: &ConnectionLimits,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        match self {
            Self::Records(records) => records.advance(cursor, limits, landings),
            Self::HeadsFirst(body) => Ok(body.advance(cursor, limits, landings)),
        }
    }
}
