//! What a task tells about itself from its start.

use grpcxx_rpc::{Shape, Status, Tensor};

use crate::engine::StartReport;

/// Name of the function by which a task that listens tells about itself. Fetches, all scalar
/// strings: `version` of grpcxx, `driver` (what moves its bytes, and why), `host` (what turns its
/// shards, and why), `report` (the line of its log), `policy` (who may do what). Peers that are not
/// grpcxx do not have it.
pub const SERVER_INFO: &str = "grpcxx.server.info";

/// All that can be fetched of [`SERVER_INFO`].
pub const INFO_FETCHES: &[&str] = &["version", "driver", "host", "report", "policy"];

/// A tensor for each of the fetches, in their order.
pub(super) fn tensors(report: &StartReport) -> Result<Vec<Tensor>, Status> {
    let driver = format!(
        "{}, shm {}, rdma {}",
        report.driver, report.shared_memory, report.rdma
    );
    [
        env!("CARGO_PKG_VERSION"),
        &driver,
        &report.host.to_string(),
        &report.to_string(),
        &report.policy,
    ]
    .into_iter()
    .map(|text| Tensor::from_strings(Shape::SCALAR, [text.as_bytes()]))
    .collect()
}
