//! How long the calls of a task took, over all of its shards, as a function that peers call.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, GraphCall, NamedTensors, Request, Response, Shape, Status, Tensor, Text};
use grpcxx_runtime::{Client, Function, Latency, Peer};

/// Name of the function by which a task tells how long calls took at both ends. Fetches, vectors
/// of one length: `side` (`client` or `server`), `method`, `medium` (strings), `count`, `p50_ns`
/// and `p99_ns` (i64). Peers that are not grpcxx do not have it.
pub const SERVER_LATENCIES: &str = "grpcxx.server.latencies";

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

/// The function that tells.
pub(super) struct ServerLatencies {
    client: Client,
}

impl ServerLatencies {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    /// What the shards tell that answer in time, summed.
    fn summaries(&self) -> Vec<CallSummary> {
        let (tell, told) = channel();
        self.client.shard_calls(move |calls| {
            // Who asked may have given up.
            let _ = tell.send(calls.latencies);
        });
        let end = Instant::now() + SHARD_TIMEOUT;
        let mut sums = BTreeMap::<_, Latency>::new();
        while let Ok(latencies) = told.recv_timeout(end.saturating_duration_since(Instant::now())) {
            for call in latencies {
                let key = (call.side.name(), call.method, call.medium);
                sums.entry(key).or_default().add(&call.latency);
            }
        }
        let summary =
            |((side, method, medium), latency): ((&str, &str, &str), Latency)| CallSummary {
                side: side.to_owned(),
                method: method.to_owned(),
                medium: medium.to_owned(),
                count: latency.count(),
                p50_ns: latency.quantile_ns(0.5),
                p99_ns: latency.quantile_ns(0.99),
            };
        sums.into_iter().map(summary).collect()
    }
}

impl Function for ServerLatencies {
    fn call(&self, call: GraphCall) -> Result<NamedTensors, Status> {
        let rows = self.summaries();
        let shape = Shape::vector(rows.len());
        let texts = |text: fn(&CallSummary) -> &str| {
            Tensor::from_strings(shape.clone(), rows.iter().map(|row| text(row).as_bytes()))
        };
        let numbers = |number: fn(&CallSummary) -> u64| {
            let numbers = rows
                .iter()
                .map(|row| number(row).min(i64::MAX as u64) as i64);
            Tensor::from_slice(shape.clone(), &numbers.collect::<Vec<i64>>())
        };
        let mut fetched = NamedTensors::with_capacity(call.fetches.len());
        for fetch in call.fetches {
            let tensor = match fetch.as_str() {
                "side" => texts(|row| &row.side),
                "method" => texts(|row| &row.method),
                "medium" => texts(|row| &row.medium),
                "count" => numbers(|row| row.count),
                "p50_ns" => numbers(|row| row.p50_ns),
                "p99_ns" => numbers(|row| row.p99_ns),
                unknown => {
                    let known = FETCHES.join(", ");
                    let text = format!("{SERVER_LATENCIES} has no \"{unknown}\"; fetch {known}");
                    return Err(Status::new(Code::InvalidArgument, text));
                }
            };
            fetched.push((fetch, tensor?));
        }
        Ok(fetched)
    }
}

fn senseless() -> Status {
    let text =
        format!("the answer to {SERVER_LATENCIES} makes no sense; is the peer of another version?");
    Status::new(Code::DataLoss, text)
}

const FETCHES: [&str; 6] = ["side", "method", "medium", "count", "p50_ns", "p99_ns"];

/// How long a shard may take to tell what it has counted.
const SHARD_TIMEOUT: Duration = Duration::from_millis(500);
