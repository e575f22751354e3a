//! Asks a task how long its calls took, over all of its shards.

use std::time::Duration;

use grpcxx_rpc::{Code, GraphCall, Request, Response, Status, Text};
pub use grpcxx_runtime::exposition::SERVER_LATENCIES;
use grpcxx_runtime::{Client, Peer};

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
    let call = GraphCall {
        graph_handle: Text::from(SERVER_LATENCIES),
        fetches: FETCHES.iter().map(|fetch| Text::from(*fetch)).collect(),
        ..GraphCall::default()
    };
    let request = Request::StarRunGraph(Box::new(call));
    let Response::Fetched(values) = client.call(peer, request, timeout).wait()? else {
        return Err(senseless());
    };
    let fetched = |wanted: &str| {
        let found = values.iter().find(|(name, _)| name == wanted);
        found.map(|(_, tensor)| tensor).ok_or_else(senseless)
    };
    let texts = |wanted: &str| -> Result<Vec<String>, Status> {
        let texts = fetched(wanted)?.strings()?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| senseless());
        texts.iter().map(|bytes| text(bytes)).collect()
    };
    let numbers = |wanted: &str| -> Result<Vec<u64>, Status> {
        let numbers = fetched(wanted)?.elements::<i64>()?;
        let number = |&number: &i64| u64::try_from(number).map_err(|_| senseless());
        numbers.iter().map(number).collect()
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

fn senseless() -> Status {
    let text =
        format!("the answer to {SERVER_LATENCIES} makes no sense; is the peer of another version?");
    Status::new(Code::DataLoss, text)
}

const FETCHES: [&str; 6] = ["side", "method", "medium", "count", "p50_ns", "p99_ns"];
