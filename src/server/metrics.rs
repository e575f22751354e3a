//! Asks a task over star for what it counts and waits for.

use std::time::Duration;

use grpcxx_rpc::{Code, GraphCall, Request, Response, Status, Text};
pub use grpcxx_runtime::exposition::{SERVER_INSPECT, SERVER_METRICS};
use grpcxx_runtime::{Client, Peer};

/// Asks the task at `peer` for its numbers, in Prometheus' text format.
///
/// # Errors
/// The call failed, or the answer makes no sense (`DATA_LOSS`).
pub fn server_metrics(
    client: &Client,
    peer: &Peer,
    timeout: Option<Duration>,
) -> Result<String, Status> {
    ask(client, peer, timeout, SERVER_METRICS, "text")
}

/// Asks the task at `peer` what it waits for, as JSON.
///
/// # Errors
/// The call failed, or the answer makes no sense (`DATA_LOSS`).
pub fn server_inspect(
    client: &Client,
    peer: &Peer,
    timeout: Option<Duration>,
) -> Result<String, Status> {
    ask(client, peer, timeout, SERVER_INSPECT, "json")
}

fn ask(
    client: &Client,
    peer: &Peer,
    timeout: Option<Duration>,
    function: &str,
    fetch: &str,
) -> Result<String, Status> {
    let senseless = || {
        let text =
            format!("the answer to {function} makes no sense; is the peer of another version?");
        Status::new(Code::DataLoss, text)
    };
    let call = GraphCall {
        graph_handle: Text::from(function),
        fetches: vec![Text::from(fetch)].into(),
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
