//! The turns of shards that are lent: whether the calling thread is within one, and what a panic in
//! one becomes.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Hold, Seat};
use crate::host::shard_loop::{Dead, ShardLoop};

/// Runs code with a shard that its owner has lent. A panic is the shard's death, which its owner
/// has to hear of.
pub(super) fn guard<L: ShardLoop, R>(
    seat: &mut Seat<L>,
    code: impl FnOnce(&mut Seat<L>) -> R,
) -> Option<R> {
    let result = catch_unwind(AssertUnwindSafe(|| code(seat)));
    let panic = |panic| {
        seat.shard().set_borrowed(false);
        seat.hold = Hold::Turned;
        seat.death = Some(Dead::of((), panic));
    };
    result.map_err(panic).ok()
}

/// Stands while the calling thread turns a shard that is lent.
pub(super) struct Turning;

impl Turning {
    pub(super) fn begin() -> Self {
        TURNS.set(TURNS.get() + 1);
        Self
    }

    pub(super) fn is_under_way() -> bool {
        TURNS.get() > 0
    }
}

impl Drop for Turning {
    fn drop(&mut self) {
        TURNS.set(TURNS.get() - 1);
    }
}

thread_local! {
    static TURNS: Cell<u32> = const { Cell::new(0) };
}
