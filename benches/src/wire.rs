//! What client and server of a bench say to each other beside the calls that are measured.

use grpcxx_rpc::{Code, Element, GraphCall, Request, Response, Shape, Status, Tensor, Text};
use serde::{Deserialize, Serialize};

use super::payload::PayloadSpec;

/// What a client tells a server before it begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Opening {
    /// The tensors of a step.
    pub(super) payload: PayloadSpec,
    /// Whether the server needs their contents: it sends them, or compares them.
    pub(super) needs_contents: bool,
    /// Whether the server compares what it gets.
    pub(super) verify: bool,
}

/// Calls a function of the bench with one argument and one result.
pub(super) fn ask(function: &str, argument: Option<Tensor>) -> Request {
    Request::StarRunGraph(Box::new(GraphCall {
        graph_handle: Text::from(function),
        feeds: argument
            .map(|tensor| (Text::from(VALUE), tensor))
            .into_iter()
            .collect(),
        fetches: vec![Text::from(VALUE)].into(),
        ..GraphCall::default()
    }))
}

/// The argument of a function of the bench.
pub(super) fn argument(call: &GraphCall) -> Result<&Tensor, Status> {
    match &call.feeds[..] {
        [(name, tensor)] if *name == VALUE => Ok(tensor),
        _ => Err(Status::new(
            Code::InvalidArgument,
            format!("{} takes one argument, {VALUE:?}", call.graph_handle),
        )),
    }
}

/// The result of a function of the bench.
pub(super) fn result<T: Element>(value: T) -> Vec<(Text, Tensor)> {
    vec![(Text::from(VALUE), Tensor::scalar(value))]
}

/// Reads the answer to [`ask`].
pub(super) fn answer<T: Element>(response: &Response) -> Result<T, Status> {
    let value = match response {
        Response::Fetched(results) => match &results[..] {
            [(_, tensor)] => tensor.elements::<T>()?.first().copied(),
            _ => None,
        },
        _ => None,
    };
    value.ok_or_else(|| {
        Status::new(
            Code::Internal,
            "the server of the bench answered without a value; use the same version of grpcxx on both sides",
        )
    })
}

/// A text as an argument.
pub(super) fn text_tensor(text: &str) -> Result<Tensor, Status> {
    Tensor::from_strings(Shape::SCALAR, [text.as_bytes()])
}

/// The text of an argument.
pub(super) fn text_of(tensor: &Tensor) -> Result<String, Status> {
    let bytes = tensor.strings()?.into_iter().next().unwrap_or_default();
    String::from_utf8(bytes.to_vec())
        .map_err(|error| Status::new(Code::InvalidArgument, format!("no text: {error}")))
}

/// The rendezvous key of a tensor, of the form and length that TensorFlow's have.
pub(super) fn key(index: usize) -> Text {
    Text::from(format!(
        "/job:ps/replica:0/task:0/device:CPU:0;0000000000000001;/job:worker/replica:0/task:0/device:CPU:0;edge_{index}_bench;0:0"
    ))
}

/// Prepares the tensors of a session; its number comes back.
pub(super) const OPEN: &str = "grpcxx.bench.open";
/// Forgets a session.
pub(super) const CLOSE: &str = "grpcxx.bench.close";
/// CPU time of the server so far, in seconds.
pub(super) const USAGE: &str = "grpcxx.bench.usage";
/// Takes tensors.
pub(super) const PUSH: &str = "grpcxx.bench.push";
/// Gives its argument back.
pub(super) const ECHO: &str = "grpcxx.bench.echo";
/// Opens a port for plain sockets; its number comes back.
pub(super) const FLOOR_PORT: &str = "grpcxx.bench.floor.port";
/// Serves plain sockets on the shard's thread until the client ends it.
pub(super) const FLOOR_SERVE: &str = "grpcxx.bench.floor.serve";

/// Name of arguments and results.
pub(super) const VALUE: &str = "value";
