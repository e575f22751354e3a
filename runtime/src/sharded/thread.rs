//! Which thread is that of a shard, for code of the program that runs there.

use super::Shards;
use crate::host::Presence;

/// Tells the code of the program on which shard it runs.
pub(crate) struct ShardThread {
    shards: Shards,
    index: usize,
}

impl Presence for ShardThread {
    fn enter(&self) {
        self.shards.enter(self.index);
    }

    fn leave(&self) {
        Shards::leave();
    }
}

impl ShardThread {
    pub(crate) fn new(shards: Shards, index: usize) -> Self {
        Self { shards, index }
    }
}
