//! Where payload lands that connections of a shard receive.

use grpcxx_memory::{Arena, ArenaRoom, BufferMut};
use grpcxx_rpc::{HeldTensor, ImmediateHit, Landings, Status, TensorMeta, Text, home_shard};
use grpcxx_transport::SlotTable;

use crate::blame::{Blame, THE_SERVICE};
use crate::function::AtOnce;
use crate::shard::core::{Core, SharedParts};
use crate::shard::in_flight::InFlight;
use crate::shard::servers::ServerLink;
use crate::shard::steps::Steps;
use crate::shard::windows;

/// Lands everything in the arena, and knows which tensors are there.
pub(super) struct ArenaLandings<'a> {
    arena: &'a mut Arena,
    steps: &'a mut Steps,
    shared: &'a SharedParts,
    /// Unless the shard stops.
    shard: Option<usize>,
    /// Requests whose tensor was there.
    pub(super) answered: u64,
}

impl<'a> ArenaLandings<'a> {
    /// The landings of a shard, and its connections from peers.
    #[inline]
    pub(super) fn of<A>(core: &'a mut Core<A>) -> (Self, &'a mut SlotTable<ServerLink>) {
        let shard = (!core.is_stopping()).then_some(core.index);
        let landings = Self {
            arena: &mut core.arena,
            steps: &mut core.steps,
            shared: &core.shared,
            shard,
            answered: 0,
        };
        (landings, &mut core.incoming.servers)
    }

    /// Drops tensors that were held for answers which no longer need them.
    pub(super) fn release(&mut self, held: impl Iterator<Item = HeldTensor>) {
        self.steps.release(held);
    }
}

impl Landings for ArenaLandings<'_> {
    fn tensor(
        &mut self,
        _token: u64,
        _index: usize,
        meta: &TensorMeta,
        there_bytes: usize,
    ) -> Result<BufferMut, Status> {
        windows::begin(self.arena, meta.data_bytes, there_bytes)
    }

    fn tensor_beyond(
        &mut self,
        _token: u64,
        _index: usize,
        meta: &TensorMeta,
        there_bytes: usize,
    ) -> Result<BufferMut, Status> {
        windows::begin_beyond(self.arena, meta.data_bytes, there_bytes)
    }

    fn message(&mut self, len: usize, there_bytes: usize) -> Result<BufferMut, Status> {
        windows::begin(self.arena, len as u64, there_bytes)
    }

    fn grow(&mut self, memory: BufferMut, whole_len: usize) -> Result<BufferMut, Status> {
        windows::grow(self.arena, memory, whole_len)
    }

    fn room(&mut self) -> Option<ArenaRoom> {
        Some(self.arena.room())
    }

    fn block(&mut self, _: u64, _: usize) -> Option<BufferMut> {
        None
    }

    fn known_key(&mut self, bytes: &[u8]) -> Option<Text> {
        self.steps.keys.find(bytes)
    }

    #[inline]
    fn immediate_hit(
        &mut self,
        step_id: i64,
        key: &Text,
        data_bytes_max: usize,
    ) -> Option<ImmediateHit<'_>> {
        let shard = self.shard?;
        let at_once = match &self.shared.service {
            Some(service) => {
                let blame = Blame::on(THE_SERVICE);
                let at_once = service.at_once(step_id, key);
                blame.lift();
                at_once
            }
            None => AtOnce::Declined,
        };
        let immediate_hit = match at_once {
            AtOnce::Ask => return None,
            AtOnce::Tensor(tensor) if tensor.data.len() > data_bytes_max => return None,
            AtOnce::Tensor(tensor) => ImmediateHit::Owned(tensor),
            AtOnce::Declined if home_shard(step_id, self.shared.loads.len()) != shard => {
                return None;
            }
            AtOnce::Declined => {
                let key_hash = self.steps.keys.check(key, &self.shared.task).ok()?;
                let (held, tensor) = (self.steps).hold(step_id, key, key_hash, data_bytes_max)?;
                ImmediateHit::Borrowed(held, tensor)
            }
        };
        self.answered += 1;
        Some(immediate_hit)
    }
}

/// Lands tensors where the caller wants them, and everything else in the arena.
pub(super) struct CallLandings<'a> {
    pub(super) arena: &'a mut Arena,
    pub(super) calls: &'a InFlight,
}

impl Landings for CallLandings<'_> {
    fn tensor(
        &mut self,
        token: u64,
        index: usize,
        meta: &TensorMeta,
        there_bytes: usize,
    ) -> Result<BufferMut, Status> {
        match self.calls.allocate(token, index, meta) {
            Some(memory) => memory,
            None => windows::begin(self.arena, meta.data_bytes, there_bytes),
        }
    }

    fn block(&mut self, token: u64, len: usize) -> Option<BufferMut> {
        if self.calls.allocates(token) {
            return None;
        }
        self.arena.allocate(len).ok()
    }

    fn message(&mut self, len: usize, there_bytes: usize) -> Result<BufferMut, Status> {
        windows::begin(self.arena, len as u64, there_bytes)
    }

    fn grow(&mut self, memory: BufferMut, whole_len: usize) -> Result<BufferMut, Status> {
        windows::grow(self.arena, memory, whole_len)
    }

    fn known_key(&mut self, _: &[u8]) -> Option<Text> {
        None
    }

    fn immediate_hit(&mut self, _: i64, _: &Text, _: usize) -> Option<ImmediateHit<'_>> {
        None
    }
}
