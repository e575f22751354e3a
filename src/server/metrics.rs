//! All that a task counts, in Prometheus' text format: for its page, and as a function that peers
//! call.

use std::sync::{Arc, Weak};
use std::time::Duration;

use grpcxx_rpc::{Code, GraphCall, NamedTensors, Request, Response, Shape, Status, Tensor, Text};
use grpcxx_runtime::{Client, Function, Peer};

use super::engine_slot::EngineSlot;
use super::program_metrics;

/// Name of the function by which a task tells its numbers. Fetches `text` (a scalar string), which
/// is in Prometheus' text format. Peers that are not grpcxx do not have it.
pub const SERVER_METRICS: &str = "grpcxx.server.metrics";

/// Asks the task at `peer` for its numbers, in Prometheus' text format.
///
/// # Errors
/// The call failed, or the answer makes no sense (`DATA_LOSS`).
pub fn server_metrics(
    client: &Client,
    peer: &Peer,
    timeout: Option<Duration>,
) -> Result<String, Status> {
    let call = GraphCall {
        graph_handle: Text::from(SERVER_METRICS),
        fetches: vec![Text::from(FETCH)].into(),
        ..GraphCall::default()
    };
    let request = Request::StarRunGraph(Box::new(call));
    let Response::Fetched(values) = client.call(peer, request, timeout).wait()? else {
        return Err(senseless());
    };
    let (_, tensor) = values.first().ok_or_else(senseless)?;
    let strings = tensor.strings()?;
    let bytes = strings.first().ok_or_else(senseless)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| senseless())
}

/// The function that tells.
pub(super) struct ServerMetrics {
    /// The engine has this function.
    engine: Weak<EngineSlot>,
}

impl ServerMetrics {
    pub(super) fn new(engine: &Arc<EngineSlot>) -> Self {
        Self {
            engine: Arc::downgrade(engine),
        }
    }
}

impl Function for ServerMetrics {
    fn call(&self, call: GraphCall) -> Result<NamedTensors, Status> {
        if let Some(unknown) = call.fetches.iter().find(|fetch| fetch.as_str() != FETCH) {
            let text = format!("{SERVER_METRICS} has no \"{unknown}\"; fetch {FETCH}");
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let stopping = || Status::new(Code::Unavailable, "this task is stopping");
        let engine = self.engine.upgrade().ok_or_else(stopping)?;
        let text = metrics_text(&engine)?;
        let tensor = Tensor::from_strings(Shape::SCALAR, [text.as_bytes()])?;
        Ok(NamedTensors::from_buf([(Text::from(FETCH), tensor)]))
    }
}

/// What the task and its program have counted. Waits up to half a second for busy shards.
pub(super) fn metrics_text(engine: &EngineSlot) -> Result<String, Status> {
    let (exposition, program) =
        engine.with(|engine| (engine.exposition(), engine.metrics().reports()))?;
    let mut text = exposition.text().into_string();
    program_metrics::write(&program, &mut text);
    Ok(text)
}

fn senseless() -> Status {
    let text =
        format!("the answer to {SERVER_METRICS} makes no sense; is the peer of another version?");
    Status::new(Code::DataLoss, text)
}

const FETCH: &str = "text";
