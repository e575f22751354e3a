//! What stands in for the glommio host where the C library is musl: glommio does not compile there.

use super::life::{Owner, Turned};
use super::native;
use super::shard_loop::{Dead, ShardLoop};
use super::tasks::FirstTasks;
use crate::idle::Idle;

/// There is none.
pub(super) enum Executor {}

/// Tells why there is none, so that the native host is chosen.
pub(super) fn executor() -> Result<Executor, String> {
    Err("glommio does not compile for the C library musl".to_owned())
}

/// Turns `shard` in the native loop.
pub(super) fn own<L: ShardLoop + Send + 'static>(
    shard: Box<L>,
    idle: &Idle,
    first: FirstTasks,
    owner: &Owner<L>,
    _made: Option<Executor>,
) -> Result<Turned<L>, Dead<Box<L>>> {
    native::own(shard, idle, first, owner)
}
