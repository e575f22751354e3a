use std::time::Duration;

use grpcxx_rpc::Status;
use grpcxx_runtime::exposition::INFO_FETCHES;
pub use grpcxx_runtime::exposition::SERVER_INFO;
use grpcxx_runtime::{Client, Peer};

use super::ask::{ask, text};

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
    let told = ask(client, peer, timeout, SERVER_INFO, INFO_FETCHES)?;
    let text = |fetch: &str| text(&told, SERVER_INFO, fetch);
    Ok(ServerInfo {
        version: text("version")?,
        driver: text("driver")?,
        host: text("host")?,
        report: text("report")?,
        policy: text("policy")?,
    })
}
