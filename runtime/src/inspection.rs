//! What waits in a task at a moment, on which connections it works, and what failed last.

use std::collections::HashMap;
use std::time::Duration;

use grpcxx_memory::ArenaStatistics;
use grpcxx_rpc::{Code, Reason, StreamCount, Text};

use crate::client::LinkMedium;
use crate::latency::CallSide;

/// What waits on one shard, and on which connections it works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShardInspection {
    /// The shard.
    pub shard: usize,
    /// Requests for tensors that are not there, oldest first: at most [`INSPECTED_ROWS_MAX`].
    pub receives: Vec<PendingReceive>,
    /// All requests that wait for tensors.
    pub receives_total: usize,
    /// Tensors that nobody has asked for: at most [`INSPECTED_ROWS_MAX`].
    pub parked: Vec<ParkedTensor>,
    /// Keys under which a tensor or a request waits.
    pub keys_total: usize,
    /// Bytes of all parked tensors.
    pub parked_bytes: u64,
    /// Connections, those with most work first: at most [`INSPECTED_ROWS_MAX`].
    pub connections: Vec<InspectedConnection>,
    /// All connections, and peers without one that are called.
    pub connections_total: usize,
    /// Connections by what carries them, as far as the shard has looked.
    pub links: Vec<(LinkMedium, usize)>,
    /// What the shard's arena has handed out.
    pub arena: ArenaStatistics,
    /// The calls and requests that failed last, oldest first.
    pub failures: Vec<RecentFailure>,
}

/// A request that waits for tensors of a step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PendingReceive {
    /// The step.
    pub step_id: i64,
    /// The first key whose tensor is not there.
    pub key: Text,
    /// Keys that the request has asked for.
    pub keys: usize,
    /// How long it has waited.
    pub age: Duration,
    /// Who asks: an address, `self`, or nothing if that is not known any more.
    pub peer: Option<String>,
    /// The connection that it came over.
    pub(crate) asker: ConnectionName,
}

/// A connection of a peer, by its shard and its number there.
pub(crate) type ConnectionName = Option<(usize, u64)>;

/// A tensor in a step that nobody has asked for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ParkedTensor {
    /// The step.
    pub step_id: i64,
    /// The key.
    pub key: Text,
    /// Bytes of its data.
    pub bytes: u64,
}

/// A connection, or a peer that is called and has none.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InspectedConnection {
    /// Whether this task calls the peer, or the peer calls it.
    pub side: CallSide,
    /// The address of the peer.
    pub peer: String,
    /// Whether there is a connection now.
    pub is_connected: bool,
    /// What carries it.
    pub medium: LinkMedium,
    /// Why it has not moved on from TCP, as far as this end knows.
    pub stays: Option<String>,
    /// Why there is no connection, if the last attempt failed.
    pub failure: Option<String>,
    /// Calls that wait for a connection.
    pub waiting: usize,
    /// Calls or requests under way.
    pub under_way: usize,
    /// Bytes of answers that have not left.
    pub unsent_bytes: u64,
    /// Streams, and those whose messages wait for the peer to read.
    pub streams: StreamCount,
    /// How long the oldest of the requests has been under way, on connections of callers.
    pub oldest: Option<Duration>,
    pub(crate) name: ConnectionName,
}

/// A call or a request that failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecentFailure {
    /// Whether this task had called, or was asked.
    pub side: CallSide,
    /// How long ago it failed.
    pub age: Duration,
    /// The kind of failure.
    pub code: Code,
    /// Why it failed, as far as this task knows.
    pub reason: Reason,
    /// The beginning of its text.
    pub message: String,
}

/// The beginning of a text that somebody else has made.
pub fn excerpt(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// Most letters of such a text that are shown.
const TEXT_CHARS_MAX: usize = 300;

/// Names the peers of requests that wait on other shards than their connections.
pub fn name_peers(shards: &mut [ShardInspection]) {
    let connections = shards.iter().flat_map(|shard| &shard.connections);
    let named = connections.filter_map(|found| Some((found.name?, found.peer.clone())));
    let peers: HashMap<(usize, u64), String> = named.collect();
    for receive in shards.iter_mut().flat_map(|shard| &mut shard.receives) {
        if receive.peer.is_none() {
            let found = receive.asker.and_then(|asker| peers.get(&asker));
            receive.peer = found.cloned();
        }
    }
}

/// Most rows of each kind that one shard tells.
pub const INSPECTED_ROWS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(excerpt(&"ä".repeat(1_000)).chars().count(), TEXT_CHARS_MAX);
    }
}
