use std::error::Error;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use grpcxx_rpc::proto::*;
use grpcxx_rpc::{Code, OtherTask, Reason, Status, Tensor};
use grpcxx_runtime::Certificates;
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::policy::Authority;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::dial::Dial;
use crate::limits::MESSAGE_BYTES_MAX;
use crate::master::UNREACHABLE_TASK;
use crate::services::inspect::inspector_client::InspectorClient;
use crate::services::inspect::{InspectReply, InspectRequest};
use crate::services::master_service_client::MasterServiceClient;
use crate::services::worker_service_client::WorkerServiceClient;
use crate::status::from_grpc;
use crate::tensor_proto;

/// How long a client waits, and how it proves itself.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// For the connection.
    pub connect_timeout: Duration,
    /// For the answer to each call.
    pub call_timeout: Duration,
    /// What decides whether endpoints are dialled by TLS, and proves who dials; `None`: without.
    pub certificates: Option<Arc<Certificates>>,
    /// Which task the cluster has at the address: an endpoint whose certificate names another one
    /// is not asked. `None`: any of the cluster.
    pub task: Option<TaskId>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(30),
            certificates: None,
            task: None,
        }
    }
}

/// Why an endpoint could not be asked, or what it answered instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The address cannot be dialled.
    #[error(
        "{address:?} is no address of a gRPC endpoint: write host:port as in the cluster spec, an IPv6 host in brackets"
    )]
    Address {
        /// The address as given.
        address: String,
    },
    /// Nobody answers there.
    #[error(
        "cannot connect to {address}: {reason}; check that the server runs, and that this is its address in the cluster spec"
    )]
    Connect {
        /// The address as given.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// The certificate of the endpoint is that of another task. Nothing was sent there.
    #[error("{address} was not called: {other}")]
    Unproven {
        /// The address as given.
        address: String,
        /// Which task was called, and which one answers.
        other: Box<OtherTask>,
    },
    /// The call failed.
    #[error("{method} at {address} failed: {status}{}", hint(status))]
    Call {
        /// The address as given.
        address: String,
        /// The method's name.
        method: &'static str,
        /// What the endpoint answered, or why no answer came.
        status: Status,
    },
    /// The event loop of a blocking client could not be had.
    #[error(
        "the event loop of the client cannot start: {0}; raise the limit of open files (ulimit -n)"
    )]
    EventLoop(std::io::Error),
}

/// The devices of a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceList {
    /// Those of the task that was asked.
    pub local: Vec<DeviceAttributes>,
    /// Those of all other tasks that answered.
    pub remote: Vec<DeviceAttributes>,
    /// Tasks that did not answer, each with the reason.
    pub unreachable: Vec<String>,
}

/// Whether an endpoint takes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Serving,
    /// It is stopping.
    NotServing,
    /// It does not say.
    Unknown,
}

/// A connection to the gRPC endpoint of a task. Clones share it.
#[derive(Clone, Debug)]
pub struct ControlClient {
    address: String,
    call_timeout: Duration,
    authority: Option<Arc<Authority>>,
    worker: WorkerServiceClient<Channel>,
    master: MasterServiceClient<Channel>,
    inspector: InspectorClient<Channel>,
    health: HealthClient<Channel>,
}

impl ControlClient {
    /// Connects to `host:port`.
    ///
    /// # Errors
    /// The address has no host or port, or nobody listens there.
    pub async fn connect(address: &str, options: ClientOptions) -> Result<Self, ClientError> {
        let call_timeout = options.call_timeout;
        let endpoint = endpoint(address, &options)?;
        let connected = match options.certificates {
            Some(certificates) => {
                let dial = Dial {
                    certificates,
                    task: options.task,
                };
                endpoint.connect_with_connector(dial).await
            }
            None => endpoint.connect().await,
        };
        let channel = connected.map_err(|error| not_connected(address, &error))?;
        Ok(Self {
            address: address.to_owned(),
            call_timeout,
            authority: None,
            worker: WorkerServiceClient::new(channel.clone())
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
            master: MasterServiceClient::new(channel.clone())
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
            inspector: InspectorClient::new(channel.clone())
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            health: HealthClient::new(channel),
        })
    }

    /// Proves the token of this authority with each call, if it has one.
    #[must_use]
    pub fn proving(mut self, authority: Arc<Authority>) -> Self {
        self.authority = Some(authority);
        self
    }

    /// The address as it was given.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The devices of the task.
    ///
    /// # Errors
    /// The call failed.
    pub async fn get_status(&self) -> Result<GetStatusResponse, ClientError> {
        let mut client = self.worker.clone();
        let request = self.request("/tensorflow.WorkerService/GetStatus", GetStatusRequest {});
        self.call("GetStatus", client.get_status(request))
            .await
            .map(Response::into_inner)
    }

    /// The devices of the whole cluster.
    ///
    /// # Errors
    /// The call failed; a task of the cluster that does not answer is no failure.
    pub async fn list_devices(&self) -> Result<DeviceList, ClientError> {
        let mut client = self.master.clone();
        let request = self.request(
            "/tensorflow.MasterService/ListDevices",
            ListDevicesRequest::default(),
        );
        let response = self
            .call("ListDevices", client.list_devices(request))
            .await?;
        let unreachable = response
            .metadata()
            .get_all_bin(UNREACHABLE_TASK)
            .iter()
            .filter_map(|remark| remark.to_bytes().ok())
            .map(|remark| String::from_utf8_lossy(&remark).into_owned())
            .collect();
        let devices = response.into_inner();
        Ok(DeviceList {
            local: devices.local_device,
            remote: devices.remote_device,
            unreachable,
        })
    }

    /// What the task waits for.
    ///
    /// # Errors
    /// The call failed, or needs a right that this client has not proven.
    pub async fn inspect(&self) -> Result<InspectReply, ClientError> {
        let mut client = self.inspector.clone();
        let request = self.request("/grpcxx.v1.Inspector/Inspect", InspectRequest {});
        self.call("Inspect", client.inspect(request))
            .await
            .map(Response::into_inner)
    }

    /// Whether the endpoint takes calls.
    ///
    /// # Errors
    /// The call failed.
    pub async fn health(&self) -> Result<Health, ClientError> {
        let mut client = self.health.clone();
        let request = self.request(
            "/grpc.health.v1.Health/Check",
            HealthCheckRequest::default(),
        );
        let response = self.call("Health.Check", client.check(request)).await?;
        Ok(match response.get_ref().status() {
            ServingStatus::Serving => Health::Serving,
            ServingStatus::NotServing => Health::NotServing,
            ServingStatus::Unknown | ServingStatus::ServiceUnknown => Health::Unknown,
        })
    }

    /// The tensor of a step under a rendezvous key, as soon as it is there.
    ///
    /// # Errors
    /// The call failed, or the answer holds no readable tensor.
    pub async fn recv_tensor(
        &self,
        step_id: i64,
        rendezvous_key: &str,
    ) -> Result<Tensor, ClientError> {
        let mut client = self.worker.clone();
        let request = self.request(
            "/tensorflow.WorkerService/RecvTensor",
            RecvTensorRequest {
                step_id,
                rendezvous_key: rendezvous_key.to_owned(),
                ..Default::default()
            },
        );
        let response = self
            .call(RECV_TENSOR, client.recv_tensor(request))
            .await?
            .into_inner();
        tensor_proto::decode(response.tensor.unwrap_or_default(), response.is_dead)
            .map_err(|status| self.failed(RECV_TENSOR, status))
    }

    /// Forgets the tensors of a step on the task.
    ///
    /// # Errors
    /// The call failed.
    pub async fn cleanup_graph(&self, step_id: i64) -> Result<(), ClientError> {
        let mut client = self.worker.clone();
        let request = self.request(
            "/tensorflow.WorkerService/CleanupGraph",
            CleanupGraphRequest { step_id },
        );
        self.call("CleanupGraph", client.cleanup_graph(request))
            .await
            .map(|_| ())
    }

    /// Forgets the resources in these containers on all tasks of the cluster; none named: those in
    /// the default container.
    ///
    /// # Errors
    /// The call failed.
    pub async fn reset(&self, containers: Vec<String>) -> Result<(), ClientError> {
        let mut client = self.master.clone();
        let request = self.request(
            "/tensorflow.MasterService/Reset",
            ResetRequest {
                container: containers,
                device_filters: Vec::new(),
            },
        );
        self.call("Reset", client.reset(request)).await.map(|_| ())
    }

    /// A request of the method at `path`, with a proof of the token if there is one.
    fn request<T>(&self, path: &str, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.call_timeout);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let proof = (self.authority.as_ref()).and_then(|authority| authority.prove_call(path, now));
        if let Some(proof) = proof.and_then(|proof| MetadataValue::try_from(proof).ok()) {
            request.metadata_mut().insert(AUTHORIZATION, proof);
        }
        request
    }

    async fn call<T>(
        &self,
        method: &'static str,
        call: impl Future<Output = Result<Response<T>, tonic::Status>>,
    ) -> Result<Response<T>, ClientError> {
        let started = Instant::now();
        call.await.map_err(|status| {
            // A connection that was lost is made again by the next call.
            if let Some(other) = other_task(&status) {
                let address = self.address.clone();
                return ClientError::Unproven { address, other };
            }
            let mut status = from_grpc(&status);
            // The library answers its own timeout with CANCELLED.
            if status.code == Code::Cancelled && started.elapsed() >= self.call_timeout {
                status = Status::new(
                    Code::DeadlineExceeded,
                    format!("no answer within {:?}", self.call_timeout),
                )
                .because(Reason::Deadline);
            }
            self.failed(method, status)
        })
    }

    fn failed(&self, method: &'static str, status: Status) -> ClientError {
        ClientError::Call {
            address: self.address.clone(),
            method,
            status,
        }
    }
}

/// A [`ControlClient`] for programs without an event loop. Its methods must not be called within
/// one.
#[derive(Debug)]
pub struct BlockingControlClient {
    client: ControlClient,
    runtime: tokio::runtime::Runtime,
}

impl BlockingControlClient {
    /// Connects to `host:port`; see [`ControlClient::connect`].
    ///
    /// # Errors
    /// Also if no event loop can be had.
    pub fn connect(address: &str, options: ClientOptions) -> Result<Self, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ClientError::EventLoop)?;
        let client = runtime.block_on(ControlClient::connect(address, options))?;
        Ok(Self { client, runtime })
    }

    /// See [`ControlClient::proving`].
    #[must_use]
    pub fn proving(self, authority: Arc<Authority>) -> Self {
        let client = self.client.proving(authority);
        Self { client, ..self }
    }

    /// See [`ControlClient::inspect`].
    ///
    /// # Errors
    /// The call failed, or needs a right that this client has not proven.
    pub fn inspect(&self) -> Result<InspectReply, ClientError> {
        self.runtime.block_on(self.client.inspect())
    }

    /// See [`ControlClient::get_status`].
    ///
    /// # Errors
    /// The call failed.
    pub fn get_status(&self) -> Result<GetStatusResponse, ClientError> {
        self.runtime.block_on(self.client.get_status())
    }

    /// See [`ControlClient::list_devices`].
    ///
    /// # Errors
    /// The call failed.
    pub fn list_devices(&self) -> Result<DeviceList, ClientError> {
        self.runtime.block_on(self.client.list_devices())
    }

    /// See [`ControlClient::health`].
    ///
    /// # Errors
    /// The call failed.
    pub fn health(&self) -> Result<Health, ClientError> {
        self.runtime.block_on(self.client.health())
    }

    /// See [`ControlClient::recv_tensor`].
    ///
    /// # Errors
    /// The call failed, or the answer holds no readable tensor.
    pub fn recv_tensor(&self, step_id: i64, rendezvous_key: &str) -> Result<Tensor, ClientError> {
        self.runtime
            .block_on(self.client.recv_tensor(step_id, rendezvous_key))
    }

    /// See [`ControlClient::cleanup_graph`].
    ///
    /// # Errors
    /// The call failed.
    pub fn cleanup_graph(&self, step_id: i64) -> Result<(), ClientError> {
        self.runtime.block_on(self.client.cleanup_graph(step_id))
    }

    /// See [`ControlClient::reset`].
    ///
    /// # Errors
    /// The call failed.
    pub fn reset(&self, containers: Vec<String>) -> Result<(), ClientError> {
        self.runtime.block_on(self.client.reset(containers))
    }
}

fn endpoint(address: &str, options: &ClientOptions) -> Result<Endpoint, ClientError> {
    let bad = || ClientError::Address {
        address: address.to_owned(),
    };
    let authority: http::uri::Authority = address.parse().map_err(|_| bad())?;
    if authority.port_u16().is_none() || authority.host().is_empty() || address.contains('@') {
        return Err(bad());
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| bad())?;
    Ok(endpoint
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES))
}

fn not_connected(address: &str, error: &(dyn Error + 'static)) -> ClientError {
    let address = address.to_owned();
    match other_task(error) {
        Some(other) => ClientError::Unproven { address, other },
        None => ClientError::Connect {
            address,
            reason: innermost(error),
        },
    }
}

/// What a dial has found instead of the task that was called.
fn other_task(error: &(dyn Error + 'static)) -> Option<Box<OtherTask>> {
    let mut error = Some(error);
    while let Some(next) = error {
        let inner = next
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        if let Some(other) = inner.and_then(|inner| inner.downcast_ref::<Box<OtherTask>>()) {
            return Some(other.clone());
        }
        error = next.source();
    }
    None
}

/// The text of the error that began it; those around it say less.
fn innermost(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// What to do about a failure that says little by itself.
fn hint(status: &Status) -> &'static str {
    match status.code {
        Code::Unavailable => {
            "; check that the server runs, is not stopping, and does not ask for TLS (GRPCXX_TLS)"
        }
        Code::Unknown | Code::Internal => {
            "; if nothing else explains it, check that this is the address in the cluster spec and not a star port"
        }
        Code::DeadlineExceeded => "; ask again with a longer timeout, or look at the server's log",
        _ => "",
    }
}

const RECV_TENSOR: &str = "RecvTensor";

/// What a server may send on one call before it is read: enough to fill a fast network.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;

/// What a server may send on all calls before it is read.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// The metadata that proves the token.
const AUTHORIZATION: &str = "authorization";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_host_and_port_are_dialled() {
        let options = ClientOptions::default();
        for good in ["localhost:1", "10.0.0.1:65535", "[::1]:2222"] {
            endpoint(good, &options).unwrap();
        }
        for bad in [
            "",
            "host",
            "host:",
            ":1",
            "host:65536",
            "http://host:1",
            "host:1/x",
            "a b:1",
            "u@h:1",
        ] {
            let text = endpoint(bad, &options).unwrap_err().to_string();
            assert!(text.contains("host:port"), "{bad}: {text}");
        }
    }
}
