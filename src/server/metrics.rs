//! Asks a task over star for what it counts and waits for.

use std::time::Duration;

use grpcxx_rpc::Status;
pub use grpcxx_runtime::exposition::{SERVER_INSPECT, SERVER_METRICS};
use grpcxx_runtime::{Client, Peer};

use super::ask::{ask, text};

/// Asks the task at `peer` for its numbers, in Prometheus' text format.
///
/// # Errors
/// The call failed, or the answer makes no sense (`DATA_LOSS`).
pub fn server_metrics(
    client: &Client,
    peer: &Peer,
    timeout: Option<Duration>,
) -> Result<String, Status> {
    let told = ask(client, peer, timeout, SERVER_METRICS, &["text"])?;
    text(&told, SERVER_METRICS, "text")
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
    let told = ask(client, peer, timeout, SERVER_INSPECT, &["json"])?;
    text(&told, SERVER_INSPECT, "json")
}
