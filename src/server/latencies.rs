//! Asks a task how long its calls took, over all of its shards.

use std::time::Duration;

use grpcxx_rpc::Status;
use grpcxx_runtime::exposition::LATENCY_FETCHES;
pub use grpcxx_runtime::exposition::SERVER_LATENCIES;
use grpcxx_runtime::{Client, Peer};

use super::ask::{ask, senseless, texts};

/// How long the calls of one method took over one medium, on all shards together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallSummary {
    /// `client` for calls that the task made, `server` for those that it answered.
    pub side: String,
    /// The method of star, or `service` for calls of services by their paths.
    pub method: String,
    /// What carried the calls.
    pub medium: String,
    /// Calls that have ended.
    pub count: u64,
    /// The median, in nanoseconds.
    pub p50_ns: u64,
    /// The 99th percentile, in nanoseconds.
    pub p99_ns: u64,
}

/// Asks the task at `peer` how long its calls took.
///
/// # Errors
/// The call failed, or the answer makes no sense (`DATA_LOSS`).
pub fn server_latencies(
    client: &Client,
    peer: &Peer,
    timeout: Option<Duration>,
) -> Result<Vec<CallSummary>, Status> {
    let told = ask(client, peer, timeout, SERVER_LATENCIES, LATENCY_FETCHES)?;
    let senseless = || senseless(SERVER_LATENCIES);
    let texts = |fetch: &str| texts(&told, SERVER_LATENCIES, fetch);
    let numbers = |fetch: &str| -> Result<Vec<u64>, Status> {
        let numbers = told.get(fetch).map_err(|_| senseless())?;
        let number = |&number: &i64| u64::try_from(number).map_err(|_| senseless());
        numbers.elements::<i64>()?.iter().map(number).collect()
    };
    let (sides, methods, media) = (texts("side")?, texts("method")?, texts("medium")?);
    let (counts, p50s, p99s) = (numbers("count")?, numbers("p50_ns")?, numbers("p99_ns")?);
    let rows = sides.len();
    if [
        methods.len(),
        media.len(),
        counts.len(),
        p50s.len(),
        p99s.len(),
    ] != [rows; 5]
    {
        return Err(senseless());
    }
    let labels = sides.into_iter().zip(methods).zip(media);
    let figures = counts.into_iter().zip(p50s).zip(p99s);
    let summary = |(((side, method), medium), ((count, p50_ns), p99_ns))| CallSummary {
        side,
        method,
        medium,
        count,
        p50_ns,
        p99_ns,
    };
    Ok(labels.zip(figures).map(summary).collect())
}
