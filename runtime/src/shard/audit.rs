use grpcxx_memory::Arena;
use grpcxx_transport::Transport;

use crate::shard::Shard;

/// What a shard holds at the moment, for a simulation to compare with what it should hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Audit {
    /// Calls without a result.
    pub(crate) calls: usize,
    /// Whether commands or mesh messages are on their way to this shard, or from it to others.
    pub(crate) has_mail: bool,
    /// Requests that wait in steps of this shard.
    pub(crate) waiters: usize,
    /// Tensors and requests that wait in steps of this shard, by key.
    pub(crate) waiting_keys: usize,
    /// Bytes of tensors that wait in steps of this shard.
    pub(crate) stored_bytes: u64,
    /// Steps that count calls of functions.
    pub(crate) unfinished_steps: usize,
    /// Requests of peers that have no answer.
    pub(crate) requests: usize,
    /// Links of any state.
    pub(crate) links: usize,
    /// Bytes of the arena that are handed out.
    pub(crate) arena_bytes: usize,
}

impl<T: Transport> Shard<T> {
    pub(crate) fn audit(&self) -> Audit {
        let core = &self.core;
        Audit {
            calls: core.outgoing.calls.len(),
            has_mail: core.mail.has_work(),
            waiters: core.steps.waiters(),
            waiting_keys: core.steps.waiting_keys(),
            stored_bytes: core.steps.stored_bytes(),
            unfinished_steps: core.steps.unfinished_steps(),
            requests: core.incoming.outstanding_requests(),
            links: core.links.iter().count(),
            arena_bytes: core.arena.statistics().in_use_bytes,
        }
    }

    /// Drops everything but the arena.
    pub(crate) fn into_arena(self) -> Arena {
        self.core.arena
    }
}
