//! What an arena says of itself.

use crate::Shortage;

/// What an [`Arena`](crate::Arena) has handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStatistics {
    /// Bytes that the arena has in any case.
    pub capacity_bytes: usize,
    /// Bytes of the blocks handed out of those, rounded up as they are. A block counts until the
    /// arena has looked at what came back, which it does in every allocation and in
    /// [`Arena::reclaim`](crate::Arena::reclaim).
    pub in_use_bytes: usize,
    /// Bytes of the blocks handed out beyond the capacity.
    pub beyond_bytes: usize,
    /// Most bytes in use at one time, those beyond the capacity too.
    pub peak_bytes: usize,
    /// Bytes that were in use since the last [`Arena::trim`](crate::Arena::trim) and no longer are:
    /// about what a trim would give back.
    pub idle_bytes: usize,
    /// Bytes reserved for what is announced and not come: they serve other requests before one is
    /// refused.
    pub reserved_bytes: usize,
    /// Blocks handed out, counted as `in_use_bytes` and `beyond_bytes`.
    pub blocks: usize,
    /// Requests that found no place.
    pub failed_allocations: u64,
}

/// What is free of the memory that an arena can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaRoom {
    /// Bytes that are free now.
    pub free_bytes: u64,
    /// Bytes in all: the capacity, or the machine's memory if the arena goes beyond it.
    pub whole_bytes: u64,
}

/// An allocation that the arena could not serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "arena of {capacity_bytes} bytes has no block of {requested_bytes} bytes left ({in_use_bytes} bytes in use){}",
    beyond.map(|shortage| format!("; {shortage}")).unwrap_or_default()
)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested_bytes: usize,
    /// Bytes handed out when the request came.
    pub in_use_bytes: usize,
    /// Bytes that the arena has in any case.
    pub capacity_bytes: usize,
    /// Why there is no more beyond them, if the arena has a [`Headroom`](crate::Headroom).
    pub beyond: Option<Shortage>,
}
