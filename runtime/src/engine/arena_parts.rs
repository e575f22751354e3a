//! Which part of an arena a connection may have, and small requests.

use grpcxx_rpc::ConnectionLimits;

/// What one connection may have, of an arena of so many bytes. A limit that was set is one, also
/// where the arena itself goes beyond its bytes.
pub(super) fn connection_limits(
    limits: ConnectionLimits,
    capacity_bytes: usize,
    goes_beyond: bool,
) -> ConnectionLimits {
    if limits.arena_bytes != u64::MAX {
        return limits;
    }
    limits.with(|changed| {
        changed.arena_bytes = capacity_bytes as u64 / CONNECTION_SHARE;
        changed.goes_beyond = goes_beyond;
    })
}

/// What large requests leave to small ones, of an arena of so many bytes.
pub(super) fn small_bytes(set: Option<usize>, capacity_bytes: usize) -> usize {
    let default_bytes = (capacity_bytes / SMALL_SHARE).min(SMALL_BYTES_MAX);
    set.unwrap_or(default_bytes)
}

/// Part of an arena that the unfinished frames of one connection may take, if nothing else is said.
const CONNECTION_SHARE: u64 = 2;

/// Part of an arena that is kept for small requests, if nothing else is said...
const SMALL_SHARE: usize = 64;

/// ...and the most that is kept.
const SMALL_BYTES_MAX: usize = 64 << 20;
