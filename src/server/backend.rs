use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use grpcxx_control::services::inspect::InspectReply;
use grpcxx_control::{
    Answer, Backend, ClientError, ClientOptions, ControlClient, TakenTensors, TaskDevices,
};
use grpcxx_memory::Buffer;
use grpcxx_rpc::proto::{
    CleanupAllRequest, CleanupGraphRequest, DeviceAttributes, GetStatusResponse,
};
use grpcxx_rpc::{Code, Envelope, Method, Reason, Request, Response, Status, Text};
use grpcxx_runtime::cluster::{ClusterSpec, TaskId};
use grpcxx_runtime::exposition::Liveness;
use grpcxx_runtime::service::{Caller, RawSink, RawStream, ServiceReport};
use grpcxx_runtime::{Call, Certificates, Client, Engine};
use prost::Message;

use super::engine_slot::EngineSlot;
use super::inspection;
use super::scrapes::Scrapes;
use crate::topology::Topology;

/// The engine as its gRPC endpoint sees it.
pub(super) struct EngineBackend {
    engine: Arc<EngineSlot>,
    client: Client,
    /// The task itself and all others, in the order of the cluster.
    tasks: Vec<Neighbour>,
    certificates: Option<Arc<Certificates>>,
    scrapes: Scrapes,
    liveness: Liveness,
}

#[derive(Clone, Debug)]
struct Neighbour {
    name: String,
    is_local: bool,
    grpc: String,
    /// None if the tasks do not speak star with each other.
    star: Option<String>,
}

impl EngineBackend {
    pub(super) fn new(
        engine: Arc<EngineSlot>,
        client: Client,
        cluster: &ClusterSpec,
        own: TaskId,
        topology: Option<Topology>,
        certificates: Option<Arc<Certificates>>,
    ) -> Self {
        let tasks = cluster
            .tasks()
            .map(|(task, grpc)| Neighbour {
                name: task.to_string(),
                is_local: task == own,
                grpc: grpc.to_owned(),
                star: topology
                    .as_ref()
                    .and_then(|topology| topology.task(&task))
                    .map(|addresses| addresses.star.clone()),
            })
            .collect();
        Self {
            engine,
            liveness: Liveness::new(client.clone()),
            client,
            tasks,
            certificates,
            scrapes: Scrapes::new(),
        }
    }

    /// Lets the task itself serve `request`, as if a peer had sent it.
    async fn serve(&self, request: Request) -> Result<Response, Status> {
        let call = self.engine.with(|engine| engine.serve(request, None))?;
        call.await
    }

    /// Sends a message to a task over star and returns the answer's bytes.
    async fn ask(&self, task: &Neighbour, method: Method, body: Buffer) -> Result<Buffer, Status> {
        let request = Request::Message { method, body };
        let response = match &task.star {
            _ if task.is_local => self.serve(request).await?,
            Some(star) => {
                let peer = self.client.peer(star)?;
                self.client
                    .call(&peer, request, Some(NEIGHBOUR_TIMEOUT))
                    .await?
            }
            None => {
                return Err(Status::new(
                    Code::Unimplemented,
                    format!("{method} goes over star, which this cluster does not speak"),
                ));
            }
        };
        match response {
            Response::Message(body) => Ok(body),
            Response::Tensors(_) | Response::Fetched(_) | Response::Unary(_) => Err(Status::new(
                Code::Internal,
                format!("{} answered {method} with tensors", task.name),
            )),
        }
    }

    async fn describe(&self, task: &Neighbour) -> TaskDevices {
        TaskDevices {
            task: task.name.clone(),
            is_local: task.is_local,
            devices: self.devices(task).await,
        }
    }

    async fn devices(&self, task: &Neighbour) -> Result<Vec<DeviceAttributes>, Status> {
        if task.is_local || task.star.is_some() {
            let body = self.ask(task, Method::GetStatus, Buffer::new()).await?;
            let status = GetStatusResponse::decode(&body[..]).map_err(|error| {
                Status::new(
                    Code::DataLoss,
                    format!(
                        "{} answered GetStatus with no such message: {error}",
                        task.name
                    ),
                )
            })?;
            return Ok(status.device_attributes);
        }
        let options = ClientOptions {
            connect_timeout: NEIGHBOUR_TIMEOUT,
            call_timeout: NEIGHBOUR_TIMEOUT,
            certificates: self.certificates.clone(),
            task: task.name.parse().ok(),
        };
        let status = |error: ClientError| match error {
            ClientError::Call { status, .. } => status,
            ClientError::Unproven { .. } => {
                Status::new(Code::Unauthenticated, error.to_string()).because(Reason::Unproven)
            }
            other => Status::new(Code::Unavailable, other.to_string()),
        };
        let client = ControlClient::connect(&task.grpc, options)
            .await
            .map_err(status)?;
        let answer = client.get_status().await.map_err(status)?;
        Ok(answer.device_attributes)
    }
}

impl Backend for EngineBackend {
    fn status(&self) -> Answer<'_, GetStatusResponse> {
        let attributes = self
            .engine
            .with(|engine| engine.device_attributes().clone());
        Box::pin(async move {
            Ok(GetStatusResponse {
                device_attributes: vec![attributes?],
            })
        })
    }

    fn recv_tensors(&self, step_id: i64, keys: Vec<Text>) -> Answer<'_, TakenTensors> {
        let call = self
            .engine
            .with(|engine| engine.receive(step_id, keys.clone(), None));
        let client = self.client.clone();
        Box::pin(async move {
            match call?.await? {
                Response::Tensors(tensors) => {
                    let give_back = move |tensors| client.give_back(step_id, keys, tensors);
                    Ok(TakenTensors::new(tensors.into_vec(), give_back))
                }
                Response::Message(_) | Response::Fetched(_) | Response::Unary(_) => {
                    Err(Status::new(
                        Code::Internal,
                        "the engine answered a receive with something else",
                    ))
                }
            }
        })
    }

    fn cleanup_graph(&self, step_id: i64) -> Answer<'_, ()> {
        let body = CleanupGraphRequest { step_id }.encode_to_vec();
        Box::pin(async move {
            let request = Request::Message {
                method: Method::CleanupGraph,
                body: Buffer::from(body),
            };
            self.serve(request).await.map(drop)
        })
    }

    fn cleanup_all(&self, containers: Vec<String>) -> Answer<'_, ()> {
        Box::pin(async move {
            let request = Request::Message {
                method: Method::CleanupAll,
                body: cleanup_all_body(containers),
            };
            self.serve(request).await.map(drop)
        })
    }

    fn cluster_devices(&self) -> Answer<'_, Vec<TaskDevices>> {
        let questions: Vec<_> = self.tasks.iter().map(|task| self.describe(task)).collect();
        Box::pin(async move {
            let answers = stream::iter(questions).buffered(NEIGHBOURS_AT_ONCE);
            Ok(answers.collect().await)
        })
    }

    fn reset(&self, containers: Vec<String>) -> Answer<'_, ()> {
        let body = cleanup_all_body(containers);
        let orders: Vec<_> = self
            .tasks
            .iter()
            .map(|task| self.ask(task, Method::CleanupAll, body.clone()))
            .collect();
        Box::pin(async move {
            let answers: Vec<Result<Buffer, Status>> = stream::iter(orders)
                .buffered(NEIGHBOURS_AT_ONCE)
                .collect()
                .await;
            let tasks = self.tasks.iter().zip(answers);
            let failures = tasks.filter_map(|(task, answer)| Some((&*task.name, answer.err()?)));
            reset_status(&failures.collect::<Vec<_>>())
        })
    }

    fn serves(&self, path: &str) -> bool {
        let serves = self.engine.with(|engine| engine.serves(path));
        serves.unwrap_or_default()
    }

    fn call(&self, caller: Caller, envelope: Envelope) -> Answer<'_, Envelope> {
        let call: Result<Call<Envelope>, Status> =
            self.engine.with(|engine| engine.call_own(caller, envelope));
        Box::pin(async move { call?.await })
    }

    fn streams(&self, path: &str) -> bool {
        let streams = self.engine.with(|engine| engine.streams(path));
        streams.unwrap_or_default()
    }

    fn stream(&self, caller: Caller, envelope: Envelope) -> Result<(RawSink, RawStream), Status> {
        self.engine
            .with(|engine| engine.stream_own(caller, envelope))
    }

    fn services(&self) -> Vec<ServiceReport> {
        self.engine.with(Engine::services).unwrap_or_default()
    }

    fn inspect(&self) -> Answer<'_, InspectReply> {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let shards = self.client.inspect_shards(move |shard| {
            // Who asked may have given up.
            let _ = tell.send(shard);
        });
        Box::pin(async move {
            let mut all = Vec::new();
            let end = tokio::time::Instant::now() + inspection::SHARD_TIMEOUT;
            while let Ok(Some(shard)) = tokio::time::timeout_at(end, told.recv()).await {
                all.push(shard);
            }
            Ok(inspection::reply(all, shards))
        })
    }

    fn liveness(&self) -> Result<(), Status> {
        self.liveness.check()
    }

    fn metrics_text(&self) -> Answer<'_, String> {
        let engine = Arc::clone(&self.engine);
        Box::pin(self.scrapes.write(move || {
            let exposition = engine.with(Engine::exposition)?;
            Ok(exposition.text().into_string())
        }))
    }
}

/// What a reset ends with that failed at these tasks. Where all of them had the same reason, as a
/// right that is missing, that is the code; else it is worth another try.
fn reset_status(failures: &[(&str, Status)]) -> Result<(), Status> {
    let Some((_, first)) = failures.first() else {
        return Ok(());
    };
    let are_alike = failures
        .iter()
        .all(|(_, failure)| failure.code == first.code);
    let code = if are_alike {
        first.code
    } else {
        Code::Unavailable
    };
    let failures = failures
        .iter()
        .map(|(task, failure)| format!("{task}: {failure}"));
    let failures: Vec<String> = failures.collect();
    let text = format!("not all tasks were reset: {}", failures.join("; "));
    Err(Status::new(code, text))
}

fn cleanup_all_body(container: Vec<String>) -> Buffer {
    Buffer::from(CleanupAllRequest { container }.encode_to_vec())
}

/// How long a question to another task may take before it counts as unreachable.
const NEIGHBOUR_TIMEOUT: Duration = Duration::from_secs(5);
/// Tasks that are asked at the same time.
const NEIGHBOURS_AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_that_fails_everywhere_alike_says_why() {
        let ended_with = |codes: &[Code]| {
            let failures = codes.iter().map(|code| ("task", Status::new(*code, "no")));
            let status = reset_status(&failures.collect::<Vec<_>>());
            status.err().map(|status| status.code)
        };
        let (denied, lost) = (Code::PermissionDenied, Code::Unavailable);
        assert_eq!(ended_with(&[]), None);
        assert_eq!(ended_with(&[denied, denied]), Some(denied));
        assert_eq!(ended_with(&[denied, lost]), Some(lost));
    }
}
