//! The master service.

use std::sync::Arc;

use grpcxx_rpc::proto::*;
use prost::Message;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Response, Status};

use crate::Backend;
use crate::backend::TaskDevices;
use crate::limits::UNREACHABLE_TEXT_BYTES_MAX;
use crate::methods::NO_GRAPHS_MASTER;
use crate::services::master_service_server::MasterService;
use crate::sessions::Sessions;
use crate::status::{shortened, to_grpc};
use crate::worker::{account_of, answer};

/// What this task offers to programs over gRPC.
///
/// Sessions exist for what needs no graph: TensorFlow's clients open one, with an empty graph, to
/// list devices. Methods that are not here never arrive: [`methods`](crate::methods) says so and
/// what to use instead.
pub(crate) struct Master {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) worker_sessions: Arc<Sessions>,
}

#[tonic::async_trait]
impl MasterService for Master {
    async fn create_session(
        &self,
        request: Request<CreateSessionRequest>,
    ) -> Result<Response<CreateSessionResponse>, Status> {
        let account = account_of(&request);
        let graph = Graph::decode(request.into_inner().graph_def).map_err(|error| {
            Status::invalid_argument(format!("graph_def holds no GraphDef: {error}"))
        })?;
        if !graph.nodes.is_empty() {
            return Err(Status::unimplemented(format!(
                "the graph has {} nodes, but {NO_GRAPHS_MASTER}",
                graph.nodes.len()
            )));
        }
        let opened = self.sessions.open_new(account);
        answer(opened.map(|session_handle| CreateSessionResponse {
            session_handle,
            graph_version: 0,
        }))
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        let handle = &request.get_ref().session_handle;
        if !self.sessions.close(handle) {
            return Err(Status::aborted(unknown_session(handle)));
        }
        answer(Ok(CloseSessionResponse {}))
    }

    async fn list_devices(
        &self,
        request: Request<ListDevicesRequest>,
    ) -> Result<Response<ListDevicesResponse>, Status> {
        let handle = &request.get_ref().session_handle;
        if !handle.is_empty() && !self.sessions.use_session(handle) {
            return Err(Status::invalid_argument(unknown_session(handle)));
        }
        let tasks = self.backend.cluster_devices().await;
        let tasks = tasks.map_err(|status| to_grpc(&status))?;
        Ok(device_list(tasks))
    }

    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ResetResponse>, Status> {
        self.sessions.close_all();
        self.worker_sessions.close_all();
        let reset = self.backend.reset(request.into_inner().container).await;
        answer(reset.map(|()| ResetResponse {}))
    }
}

/// As much of a `GraphDef` as it takes to see whether it is empty.
#[derive(Clone, PartialEq, Message)]
struct Graph {
    /// Nothing is kept of a node, which may be as short as two bytes.
    #[prost(message, repeated, tag = "1")]
    nodes: Vec<()>,
}

/// The devices of all tasks that answered; the others are named beside the message, which has no
/// field for them.
fn device_list(tasks: Vec<TaskDevices>) -> Response<ListDevicesResponse> {
    let mut response = Response::new(ListDevicesResponse::default());
    let mut remark_bytes = 0;
    for task in tasks {
        match task.devices {
            Ok(devices) if task.is_local => response.get_mut().local_device.extend(devices),
            Ok(devices) => response.get_mut().remote_device.extend(devices),
            Err(status) => {
                let remark = format!("{}: {status}", task.task);
                remark_bytes += remark.len() + UNREACHABLE_TASK.len();
                if remark_bytes <= UNREACHABLE_TEXT_BYTES_MAX {
                    append_remark(response.metadata_mut(), &remark);
                }
            }
        }
    }
    response
}

fn append_remark(metadata: &mut MetadataMap, remark: &str) {
    let remark = shortened(remark, UNREACHABLE_TEXT_BYTES_MAX);
    metadata.append_bin(
        UNREACHABLE_TASK,
        MetadataValue::from_bytes(remark.as_bytes()),
    );
}

fn unknown_session(handle: &str) -> String {
    let handle = shortened(handle, 64);
    format!("session {handle:?} is not open here; the server may have restarted since")
}

/// Metadata of a device list: a task whose devices are unknown, and why, in UTF-8. Once for each
/// such task.
pub(crate) const UNREACHABLE_TASK: &str = "grpcxx-unreachable-task-bin";

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use grpcxx_rpc::Code;

    use super::*;

    #[test]
    fn a_graph_is_empty_without_nodes() {
        // Versions (field 4) without nodes, as TensorFlow sends them.
        let versions = Bytes::from_static(&[0x22, 0x02, 0x08, 0x01]);
        assert!(Graph::decode(versions).unwrap().nodes.is_empty());
        let one_node = Bytes::from_static(&[0x0a, 0x03, 0x0a, 0x01, b'x']);
        assert_eq!(Graph::decode(one_node).unwrap().nodes.len(), 1);
        assert!(Graph::decode(&b"\xff"[..]).is_err());
    }

    #[test]
    fn remarks_fit_into_headers() {
        let lost = |task| TaskDevices {
            task: format!("/job:worker/replica:0/task:{task}"),
            is_local: false,
            devices: Err(grpcxx_rpc::Status::new(Code::Unavailable, "no answer")),
        };
        let response = device_list((0..1000).map(lost).collect());
        let remarks: Vec<_> = response
            .metadata()
            .get_all_bin(UNREACHABLE_TASK)
            .iter()
            .map(|value| value.to_bytes().unwrap())
            .collect();
        assert!(remarks.len() > 10 && remarks.len() < 1000);
        assert!(remarks.iter().map(Bytes::len).sum::<usize>() <= UNREACHABLE_TEXT_BYTES_MAX);
        assert_eq!(
            remarks[0],
            "/job:worker/replica:0/task:0: UNAVAILABLE: no answer"
        );
    }
}
