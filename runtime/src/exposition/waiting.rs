//! What an engine and its program wait for, as JSON for the page.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::LinkMedium;
use crate::inspection::{InspectedConnection, ShardInspection, excerpt, name_peers};

/// A tensor that the program has asked a peer for, and that has not come.
#[derive(Clone, Debug)]
pub struct AwaitedTensor {
    /// The task or the address that was asked.
    pub peer: String,
    /// The step.
    pub step_id: i64,
    /// The key.
    pub key: String,
    /// How long ago it was asked for.
    pub age: Duration,
}

/// Tells what the program waits for, on a thread of the page.
pub type MoreAwaited = Arc<dyn Fn(&mut Vec<AwaitedTensor>) + Send + Sync>;

/// The names and units are those of `grpcxx inspect --json`. At most
/// [`ROWS_MAX`] rows of each kind; of tensors that are awaited those first that have waited
/// longest. Texts of others are cut.
pub(super) fn to_json(
    mut told: Vec<ShardInspection>,
    shards: usize,
    mut awaited: Vec<AwaitedTensor>,
) -> Value {
    told.sort_by_key(|shard| shard.shard);
    name_peers(&mut told);
    awaited.sort_by_key(|tensor| std::cmp::Reverse(tensor.age));
    json!({
        "awaits": rows(awaited.iter().map(|tensor| json!({
            "step": tensor.step_id, "key": excerpt(&tensor.key), "peer": excerpt(&tensor.peer),
            "age_ms": milliseconds(tensor.age),
        }))),
        "awaits_total": awaited.len(),
        "receives": receives(&told),
        "receives_total": sum(&told, |shard| shard.receives_total as u64),
        "parked": rows(told.iter().flat_map(|shard| shard.parked.iter().map(|tensor| json!({
            "step": tensor.step_id, "key": excerpt(tensor.key.as_str()), "bytes": tensor.bytes,
            "shard": shard.shard,
        })))),
        "keys_total": sum(&told, |shard| shard.keys_total as u64),
        "parked_bytes": sum(&told, |shard| shard.parked_bytes),
        "connections": rows(told.iter().flat_map(|shard| {
            shard.connections.iter().map(|found| connection(found, shard.shard))
        })),
        "connections_total": sum(&told, |shard| shard.connections_total as u64),
        "failures": rows(told.iter().flat_map(|shard| shard.failures.iter().map(|failure| json!({
            "side": failure.side.name(), "age_ms": milliseconds(failure.age),
            "code": failure.code.name(), "reason": format!("{:?}", failure.reason),
            "message": excerpt(&failure.message), "shard": shard.shard,
        })))),
        "shards": shards,
        "shards_silent": shards.saturating_sub(told.len()),
    })
}

fn receives(told: &[ShardInspection]) -> Vec<Value> {
    let mut all: Vec<_> = told
        .iter()
        .flat_map(|shard| shard.receives.iter().map(|receive| (shard.shard, receive)))
        .collect();
    all.sort_by_key(|(_, receive)| std::cmp::Reverse(receive.age));
    rows(all.into_iter().map(|(shard, receive)| {
        json!({
            "step": receive.step_id, "key": excerpt(receive.key.as_str()), "keys": receive.keys,
            "age_ms": milliseconds(receive.age), "peer": receive.peer, "shard": shard,
        })
    }))
}

fn connection(found: &InspectedConnection, shard: usize) -> Value {
    json!({
        "side": found.side.name(), "peer": found.peer, "is_connected": found.is_connected,
        "medium": LinkMedium::name(found.medium),
        "stays": found.stays.as_deref().map(excerpt),
        "failure": found.failure.as_deref().map(excerpt),
        "waiting": found.waiting, "under_way": found.under_way,
        "streams": found.streams.open, "streams_without_credit": found.streams.without_credit,
        "unsent_bytes": found.unsent_bytes, "oldest_ms": found.oldest.map(milliseconds),
        "shard": shard,
    })
}

fn sum(told: &[ShardInspection], of: impl Fn(&ShardInspection) -> u64) -> u64 {
    told.iter().map(of).sum()
}

fn rows(all: impl Iterator<Item = Value>) -> Vec<Value> {
    all.take(ROWS_MAX).collect()
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What is not shown is counted.
const ROWS_MAX: usize = 1_000;
