//! The worker service.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use grpcxx_rpc::proto::*;
use grpcxx_rpc::{Account, Code, Text};
use grpcxx_runtime::policy::Authority;
use tonic::{Request, Response, Status};

use crate::connections::Caller;
use crate::limits::FUSED_KEYS_MAX;
use crate::services::worker_service_server::WorkerService;
use crate::sessions::Sessions;
use crate::status::to_grpc;
use crate::tensors::TensorFrames;
use crate::waiting::Waiting;
use crate::{Backend, TakenTensors};

/// What this task offers to masters and other tasks over gRPC.
///
/// Methods that are not here never arrive: [`methods`](crate::methods) says so and what to use
/// instead.
pub(crate) struct Worker {
    pub(crate) backend: Arc<dyn Backend>,
    /// Says who may end which step.
    pub(crate) authority: Arc<Authority>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) waiting: Waiting,
}

#[tonic::async_trait]
impl WorkerService for Worker {
    async fn get_status(
        &self,
        _: Request<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        answer(self.backend.status().await)
    }

    async fn create_worker_session(
        &self,
        request: Request<CreateWorkerSessionRequest>,
    ) -> Result<Response<CreateWorkerSessionResponse>, Status> {
        let account = account_of(&request);
        let opened = (self.sessions).open(&request.get_ref().session_handle, account);
        answer(opened.map(|()| CreateWorkerSessionResponse {}))
    }

    async fn delete_worker_session(
        &self,
        request: Request<DeleteWorkerSessionRequest>,
    ) -> Result<Response<DeleteWorkerSessionResponse>, Status> {
        // An unknown session is gone already, which is what the caller wants.
        self.sessions.close(&request.get_ref().session_handle);
        answer(Ok(DeleteWorkerSessionResponse {}))
    }

    async fn cleanup_graph(
        &self,
        request: Request<CleanupGraphRequest>,
    ) -> Result<Response<CleanupGraphResponse>, Status> {
        let step_id = request.get_ref().step_id;
        let caller = Caller::of(request.extensions());
        if !self.authority.knows(&caller.identity) {
            let may_end = self.authority.check_end_of_step(caller.peer, step_id);
            may_end.map_err(|status| to_grpc(&status))?;
        }
        let cleaned = self.backend.cleanup_graph(step_id).await;
        answer(cleaned.map(|()| CleanupGraphResponse {}))
    }

    async fn cleanup_all(
        &self,
        request: Request<CleanupAllRequest>,
    ) -> Result<Response<CleanupAllResponse>, Status> {
        let cleaned = self.backend.cleanup_all(request.into_inner().container);
        answer(cleaned.await.map(|()| CleanupAllResponse {}))
    }

    async fn recv_tensor(
        &self,
        request: Request<RecvTensorRequest>,
    ) -> Result<Response<RecvTensorResponse>, Status> {
        let account = account_of(&request);
        let request = request.into_inner();
        let wait = self.waiting.begin(account, request.step_id);
        let _wait = wait.map_err(|status| to_grpc(&status))?;
        let keys = vec![Text::from(request.rendezvous_key)];
        let received = self.backend.recv_tensors(request.step_id, keys).await;
        let taken = received.map_err(|status| to_grpc(&status))?;
        let [tensor] = taken.tensors() else {
            return Err(wrong_count(1, taken.tensors().len()));
        };
        let frames = TensorFrames::single(tensor, now_micros());
        with_frames(frames, taken)
    }

    async fn fuse_recv_tensor(
        &self,
        request: Request<FuseRecvTensorRequest>,
    ) -> Result<Response<FuseRecvTensorResponse>, Status> {
        let account = account_of(&request);
        let request = request.into_inner();
        let count = request.rendezvous_key.len();
        if count == 0 || count > FUSED_KEYS_MAX {
            return Err(Status::invalid_argument(format!(
                "{count} rendezvous keys in one call, allowed are 1 to {FUSED_KEYS_MAX}"
            )));
        }
        let wait = self.waiting.begin(account, request.step_id);
        let _wait = wait.map_err(|status| to_grpc(&status))?;
        let keys = request.rendezvous_key.into_iter().map(Text::from).collect();
        let received = self.backend.recv_tensors(request.step_id, keys).await;
        let taken = received.map_err(|status| to_grpc(&status))?;
        let tensors = taken.tensors();
        if tensors.len() != count {
            return Err(wrong_count(count, tensors.len()));
        }
        let frames = TensorFrames::fused(tensors, now_micros());
        with_frames(frames, taken)
    }

    async fn mark_recv_finished(
        &self,
        _: Request<MarkRecvFinishedRequest>,
    ) -> Result<Response<MarkRecvFinishedResponse>, Status> {
        // No answer of ours asks for this, so there is nothing to release.
        answer(Ok(MarkRecvFinishedResponse {}))
    }

    async fn logging(
        &self,
        request: Request<LoggingRequest>,
    ) -> Result<Response<LoggingResponse>, Status> {
        let request = request.get_ref();
        if request.enable_rpc_logging || !request.fetch_step_id.is_empty() {
            return Err(Status::unimplemented(NO_LOGGING));
        }
        // Turning it off and clearing it leave what there is: no log.
        answer(Ok(LoggingResponse::default()))
    }
}

/// Whose share a session counts against.
pub(crate) fn account_of<T>(request: &Request<T>) -> Account {
    Caller::of(request.extensions()).account
}

/// The answer of the engine as gRPC carries it.
pub(crate) fn answer<T>(result: Result<T, grpcxx_rpc::Status>) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(|status| to_grpc(&status))
}

/// An empty message that [`dispatch`](crate::dispatch) replaces by the tensors. Those that cannot
/// be sent go back into their step.
fn with_frames<T: Default>(
    frames: Result<TensorFrames, grpcxx_rpc::Status>,
    taken: TakenTensors,
) -> Result<Response<T>, Status> {
    let frames = frames.map_err(|status| to_grpc(&status))?;
    let mut response = Response::new(T::default());
    response.extensions_mut().insert(frames.holding(taken));
    Ok(response)
}

fn wrong_count(expected: usize, found: usize) -> Status {
    to_grpc(&grpcxx_rpc::Status::new(
        Code::Internal,
        format!("the engine answered {expected} rendezvous keys with {found} tensors"),
    ))
}

fn now_micros() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_micros()).ok())
        .unwrap_or(0)
}

const NO_LOGGING: &str = "Logging: no log of calls is kept for fetching; read the metrics page (--metrics-addr) or start the server with RUST_LOG=debug";
