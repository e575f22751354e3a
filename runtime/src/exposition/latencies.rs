//! How long the calls of a task took, over all of its shards.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::Instant;

use grpcxx_rpc::{Shape, Status, Tensor};

use super::{SHARD_TIMEOUT, received_until};
use crate::client::Client;
use crate::latency::Latency;

/// Name of the function by which a task that listens tells how long calls took at both ends.
/// Fetches, vectors of one length: `side` (`client` or `server`), `method`, `medium` (strings),
/// `count`, `p50_ns` and `p99_ns` (i64). Peers that are not grpcxx do not have it.
pub const SERVER_LATENCIES: &str = "grpcxx.server.latencies";

/// All that can be fetched of [`SERVER_LATENCIES`].
pub const LATENCY_FETCHES: &[&str] = &["side", "method", "medium", "count", "p50_ns", "p99_ns"];

/// A tensor for each of the fetches, in their order. Waits for shards that are busy, within bounds.
pub(super) fn tensors(client: &Client) -> Result<Vec<Tensor>, Status> {
    let (tell, told) = channel();
    client.shard_calls(move |calls| {
        // Who asked may have given up.
        let _ = tell.send(calls.latencies);
    });
    let mut sums = BTreeMap::<_, Latency>::new();
    for call in received_until(&told, Instant::now() + SHARD_TIMEOUT)
        .into_iter()
        .flatten()
    {
        let key = (call.side.name(), call.method, call.medium);
        sums.entry(key).or_default().add(&call.latency);
    }
    let shape = Shape::vector(sums.len());
    let texts = |texts: &mut dyn Iterator<Item = &'static str>| {
        Tensor::from_strings(shape.clone(), texts.map(str::as_bytes))
    };
    let numbers = |number: fn(&Latency) -> u64| {
        let numbers = sums
            .values()
            .map(|latency| number(latency).min(i64::MAX as u64) as i64);
        Tensor::from_slice(shape.clone(), &numbers.collect::<Vec<i64>>())
    };
    Ok(vec![
        texts(&mut sums.keys().map(|(side, _, _)| *side))?,
        texts(&mut sums.keys().map(|(_, method, _)| *method))?,
        texts(&mut sums.keys().map(|(_, _, medium)| *medium))?,
        numbers(Latency::count)?,
        numbers(|latency| latency.quantile_ns(0.5))?,
        numbers(|latency| latency.quantile_ns(0.99))?,
    ])
}
