//! Asks a task what the functions of its engine tell.

use std::time::Duration;

use grpcxx_rpc::{Code, Fetched, GraphCall, Request, Response, Status, Text};
use grpcxx_runtime::{Client, Peer};

/// What a function of the task at `peer` tells.
///
/// # Errors
/// The call failed, or the answer is none (`DATA_LOSS`).
pub(super) fn ask(
    client: &Client,
    peer: &Peer,
    timeout: Option<Duration>,
    function: &str,
    fetches: &[&str],
) -> Result<Fetched, Status> {
    let call = GraphCall {
        graph_handle: Text::from(function),
        fetches: fetches.iter().map(|fetch| Text::from(*fetch)).collect(),
        ..GraphCall::default()
    };
    let request = Request::StarRunGraph(Box::new(call));
    match client.call(peer, request, timeout).wait()? {
        Response::Fetched(values) => Ok(values.into()),
        _ => Err(senseless(function)),
    }
}

/// The one text that is fetched under a name.
pub(super) fn text(told: &Fetched, function: &str, fetch: &str) -> Result<String, Status> {
    let mut texts = texts(told, function, fetch)?.into_iter();
    texts.next().ok_or_else(|| senseless(function))
}

/// All texts that are fetched under a name.
pub(super) fn texts(told: &Fetched, function: &str, fetch: &str) -> Result<Vec<String>, Status> {
    let tensor = told.get(fetch).map_err(|_| senseless(function))?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| senseless(function));
    tensor.strings()?.iter().map(|bytes| text(bytes)).collect()
}

/// What else than an answer came.
pub(super) fn senseless(function: &str) -> Status {
    let text = format!("the answer to {function} makes no sense; is the peer of another version?");
    Status::new(Code::DataLoss, text)
}
