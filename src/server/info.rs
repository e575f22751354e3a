use std::time::Duration;

use grpcxx_rpc::{Code, GraphCall, NamedTensors, Request, Response, Shape, Status, Tensor, Text};
use grpcxx_runtime::{Client, Function, Peer, StartReport};

/// Name of the function by which a task tells about itself. Fetches, all scalar strings: `version`
/// of the program, `driver` (what moves its bytes, and why), `host` (what turns its shards, and
/// why), `report` (the line of its log), `policy` (who may do what). Peers that are not grpcxx do
/// not have it.
pub const SERVER_INFO: &str = "grpcxx.server.info";

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

impl ServerInfo {
    pub(super) fn of(report: &StartReport) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            driver: format!(
                "{}, shm {}, rdma {}",
                report.driver, report.shared_memory, report.rdma
            ),
            host: report.host.to_string(),
            report: report.to_string(),
            policy: report.policy.clone(),
        }
    }
}

impl Function for ServerInfo {
    fn call(&self, call: GraphCall) -> Result<NamedTensors, Status> {
        call.fetches
            .into_iter()
            .map(|fetch| {
                let text = match fetch.as_str() {
                    "version" => &self.version,
                    "driver" => &self.driver,
                    "host" => &self.host,
                    "report" => &self.report,
                    "policy" => &self.policy,
                    unknown => {
                        return Err(Status::new(
                            Code::InvalidArgument,
                            format!(
                                "{SERVER_INFO} has no \"{unknown}\"; fetch {}",
                                FETCHES.join(", ")
                            ),
                        ));
                    }
                };
                let value = Tensor::from_strings(Shape::SCALAR, [text.as_bytes()])?;
                Ok((fetch, value))
            })
            .collect()
    }
}

fn senseless() -> Status {
    Status::new(
        Code::DataLoss,
        format!("the answer to {SERVER_INFO} makes no sense; is the peer of another version?"),
    )
}

const FETCHES: [&str; 5] = ["version", "driver", "host", "report", "policy"];
