use std::future::Future;
use std::pin::Pin;

use grpcxx_rpc::proto::{DeviceAttributes, GetStatusResponse};
use grpcxx_rpc::{Envelope, Status, Text};
use grpcxx_runtime::service::{Caller, RawSink, RawStream, ServiceReport};

use crate::TakenTensors;
use crate::services::inspect::InspectReply;

/// An answer that comes later. Dropping it before then cancels the request.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send + 'a>>;

/// The engine as the endpoint sees it.
///
/// Every method returns at once; its answer is awaited on the endpoint's thread, which also serves
/// all other calls, so polling an answer must not block. The thread runs a tokio runtime: answers
/// may use its timers and sockets, and hand what blocks to its blocking threads.
pub trait Backend: Send + Sync + 'static {
    /// The devices of this task.
    fn status(&self) -> Answer<'_, GetStatusResponse>;

    /// The tensors of one step under these rendezvous keys (at least one), in the order of the
    /// keys, as soon as all are there. A dropped answer leaves the tensors for the next who asks,
    /// and those that are answered and do not leave are given back.
    fn recv_tensors(&self, step_id: i64, keys: Vec<Text>) -> Answer<'_, TakenTensors>;

    /// Forgets the tensors of a step that nobody has fetched.
    fn cleanup_graph(&self, step_id: i64) -> Answer<'_, ()>;

    /// Forgets the resources in these containers; none named: those in the default container.
    fn cleanup_all(&self, containers: Vec<String>) -> Answer<'_, ()>;

    /// The devices of all tasks of the cluster, this one included. A task that does not answer is
    /// listed with the reason.
    fn cluster_devices(&self) -> Answer<'_, Vec<TaskDevices>>;

    /// Does on all tasks of the cluster what [`cleanup_all`](Self::cleanup_all) does on one.
    fn reset(&self, containers: Vec<String>) -> Answer<'_, ()>;

    /// Whether a service has the method at this path.
    fn serves(&self, path: &str) -> bool;

    /// Calls the method that the envelope names. The call counts against the share of `caller`.
    fn call(&self, caller: Caller, envelope: Envelope) -> Answer<'_, Envelope>;

    /// Whether the method at this path takes or answers with a stream.
    fn streams(&self, path: &str) -> bool;

    /// Calls the method that the envelope names and that streams. The call has begun when this
    /// returns, and ends when both are dropped. It is one of those that `caller` may have.
    fn stream(&self, caller: Caller, envelope: Envelope) -> Result<(RawSink, RawStream), Status>;

    /// The services that are registered now.
    fn services(&self) -> Vec<ServiceReport>;

    /// What this task waits for.
    fn inspect(&self) -> Answer<'_, InspectReply>;

    /// Whether the task is alive, which one that stops is too.
    ///
    /// # Errors
    /// It has died or hangs: why.
    fn liveness(&self) -> Result<(), Status>;

    /// The metrics of this task in Prometheus' text format.
    fn metrics_text(&self) -> Answer<'_, String>;
}

/// The devices of one task, as far as they are known.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskDevices {
    /// The task: `/job:ps/replica:0/task:0`.
    pub task: String,
    /// Whether it is the task that was asked.
    pub is_local: bool,
    /// Its devices, or why they are unknown.
    pub devices: Result<Vec<DeviceAttributes>, Status>,
}
