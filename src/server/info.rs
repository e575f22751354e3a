use std::time::Duration;

use grpcxx_rpc::{Code, GraphCall, Request, Response, Status, Text};
pub use grpcxx_runtime::exposition::SERVER_INFO;
use grpcxx_runtime::{Client, Peer};

/// What a task tells about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// Version of the program.
    pub version: String,
    /// What moves its bytes, and why.
    pub driver: String,
    /// What turns its shards, and why.
    pub host: String,
    /// The line that its log begins with.
    pub report: String,
    /// Who may do what.
    pub policy: String,
}

/// Asks the task at `peer` about itself.
///
/// # Errors
/// The call failed, or the answer makes no sense (`DATA_LOSS`).
pub fn server_info(
    client: &Client,
    peer: &Peer,
    timeout: Option<Duration>,
) -> Result<ServerInfo, Status> {
    let call = GraphCall {
        graph_handle: Text::from(SERVER_INFO),
        fetches: FETCHES.iter().map(|fetch| Text::from(*fetch)).collect(),
        ..GraphCall::default()
    };
    let request = Request::StarRunGraph(Box::new(call));
    let Response::Fetched(values) = client.call(peer, request, timeout).wait()? else {
        return Err(senseless());
    };
    let text = |wanted: &str| {
        let (_, tensor) = values
            .iter()
            .find(|(name, _)| name == wanted)
            .ok_or_else(senseless)?;
        let strings = tensor.strings()?;
        let bytes = strings.first().ok_or_else(senseless)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| senseless())
    };
    Ok(ServerInfo {
        version: text("version")?,
        driver: text("driver")?,
        host: text("host")?,
        report: text("report")?,
        policy: text("policy")?,
    })
}

fn senseless() -> Status {
    Status::new(
        Code::DataLoss,
        format!("the answer to {SERVER_INFO} makes no sense; is the peer of another version?"),
    )
}

const FETCHES: [&str; 5] = ["version", "driver", "host", "report", "policy"];
