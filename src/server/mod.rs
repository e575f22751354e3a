//! One task of a cluster as a program runs it: an engine, its gRPC endpoint, and a share of a
//! model.

mod ask;
mod backend;
mod engine_slot;
mod error;
mod info;
mod inspection;
mod latencies;
mod link;
mod metrics;
mod model_pull;
mod scrapes;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use grpcxx_control::{BadAddress, Control, ControlLimits, ControlOptions};
use grpcxx_rpc::wire::{ShapeForms, encode_record};
use grpcxx_rpc::{Status, Tensor, Text};
use grpcxx_runtime::cluster::{ClusterSpec, Protocol, TaskId, host_of, listen_ip};
use grpcxx_runtime::config::Config;
use grpcxx_runtime::host::HostError;
use grpcxx_runtime::policy::Authority;
use grpcxx_runtime::service::TypedService;
use grpcxx_runtime::{Client, DescriptorParts, Engine, EngineOptions, Function, StartReport};

use crate::model::Model;
use crate::topology::Topology;
use backend::EngineBackend;
use engine_slot::EngineSlot;
pub use error::ServerError;
use error::explain;
pub use info::{SERVER_INFO, ServerInfo, server_info};
pub use inspection::{Inspector, describe};
pub use latencies::{CallSummary, SERVER_LATENCIES, server_latencies};
pub use link::settled_link;
pub use metrics::{SERVER_INSPECT, SERVER_METRICS, server_inspect, server_metrics};
pub use model_pull::{MODEL_PULL, PullReport, pull_model};

/// Which task to run, in which cluster, and how.
#[derive(Debug)]
pub struct ServerOptions {
    /// Settings of the process.
    pub config: Config,
    /// All tasks.
    pub cluster: ClusterSpec,
    /// The task to run.
    pub task: TaskId,
    /// How the tasks speak with each other.
    pub protocol: Protocol,
    /// Where all tasks are; not used if the protocol does not speak star.
    pub topology: Option<Topology>,
    /// Where metrics are served over HTTP, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// The model that the ps tasks share; other tasks leave it.
    pub model: Option<Model>,
}

/// A running task.
pub struct Server {
    engine: Arc<EngineSlot>,
    control: Control,
    client: Client,
    authority: Arc<Authority>,
    report: StartReport,
    loaded: Loaded,
}

/// The share of a model that a task holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of their data.
    pub bytes: u64,
}

/// How a task stopped.
#[derive(Debug)]
pub struct Stopped {
    /// gRPC calls that did not get an answer of their own in time.
    pub unanswered_calls: usize,
    /// What a shard had failed with, if one did.
    pub failure: Option<String>,
}

impl Server {
    /// Reads the task's share of the model, starts its engine and opens its ports, in this order:
    /// whom the ports let in finds the share in the store.
    ///
    /// # Errors
    /// What is wrong, or what could not be had; nothing runs then.
    pub fn start(options: ServerOptions) -> Result<Self, ServerError> {
        Self::start_with(options, |_| ())
    }

    /// As [`Server::start`]; the ports let nobody in before `prepare` is done, so functions and
    /// services that it registers are there for the first caller. `prepare` must wait for nothing
    /// that shards do, which may not turn yet.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_with(
        options: ServerOptions,
        prepare: impl FnOnce(&Engine),
    ) -> Result<Self, ServerError> {
        let ServerOptions {
            config,
            cluster,
            task,
            protocol,
            topology,
            metrics,
            model,
        } = options;
        let grpc_address = cluster.require(&task)?.to_owned();
        let topology = topology.filter(|_| protocol.speaks_star());
        if model.is_some() && !protocol.speaks_star() {
            return Err(ServerError::Contradiction(format!(
                "protocol {protocol} does not serve models; use grpc++, or load none"
            )));
        }
        let share = match &model {
            Some(model) => read_share(model, &cluster, &task)?,
            None => Vec::new(),
        };
        let loaded = Loaded {
            tensors: share.len(),
            bytes: share
                .iter()
                .map(|(_, tensor)| tensor.data.len() as u64)
                .sum(),
        };
        let mut engine_options =
            EngineOptions::from_config(&config, task.clone(), cluster.total_tasks());
        engine_options.listen = topology
            .as_ref()
            .and_then(|topology| topology.task(&task))
            .map(|own| {
                let ip = config.bind_address.unwrap_or_else(|| listen_ip(&own.star));
                SocketAddr::new(ip, own.star_port)
            });
        let stars = topology.iter().flat_map(Topology::tasks);
        let stars = stars.filter_map(|known| host_of(&known.star));
        let hosts = cluster.hosts().chain(stars).map(str::to_owned);
        engine_options.policy.tasks = hosts.collect();
        let listen = engine_options.listen;
        let (mut stored, mut told) = (Ok(()), Ok(()));
        let engine = Engine::start_with(engine_options, |engine| {
            stored = engine.store_put(share);
            if let Some(topology) = &topology {
                told = tell_of_cluster(engine, topology);
            }
            prepare(engine);
        });
        let engine = engine.map_err(|error| explain(error, listen))?;
        stored.map_err(ServerError::Store)?;
        told.map_err(ServerError::Peer)?;
        let client = engine.client();
        let report = engine.start_report().clone();
        let authority = engine.authority();
        let certificates = engine.certificates();
        let engine = Arc::new(EngineSlot::new(engine));
        let backend = EngineBackend::new(
            Arc::clone(&engine),
            client.clone(),
            &cluster,
            task,
            topology,
            certificates.clone(),
        );
        let grpc_ip = config
            .bind_address
            .unwrap_or_else(|| listen_ip(&grpc_address));
        let control_options = control_options(&grpc_address, grpc_ip, metrics)?
            .with_limits(control_limits(&config))
            .guarded_by(Arc::clone(&authority))
            .secured_by(certificates);
        let control = Control::start(control_options, Arc::new(backend))?;
        let alarm = control.alarm();
        engine
            .with(|engine| engine.on_death(move |_| alarm.raise()))
            .expect("nobody else can have stopped the engine yet");
        Ok(Self {
            engine,
            control,
            client,
            authority,
            report,
            loaded,
        })
    }

    /// Makes calls to peers.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Tells what the task waits for.
    pub fn inspector(&self) -> Inspector {
        Inspector::new(self.client.clone())
    }

    /// What the engine chose at its start; its text is one line for the log.
    pub fn start_report(&self) -> &StartReport {
        &self.report
    }

    /// What decides who may do what on the task.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Where the gRPC endpoint listens.
    pub fn grpc_address(&self) -> SocketAddr {
        self.control.local_addr()
    }

    /// Where the star port listens, unless the protocol does not speak star.
    pub fn star_address(&self) -> Option<SocketAddr> {
        self.report.star_address
    }

    /// Where metrics are served, if anywhere.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.control.metrics_addr()
    }

    /// The share of the model.
    pub fn loaded(&self) -> Loaded {
        self.loaded
    }

    /// Lets peers call `function` by `name`.
    ///
    /// # Errors
    /// `UNAVAILABLE` while the task stops.
    pub fn register(
        &self,
        name: impl Into<Text>,
        function: Arc<dyn Function>,
    ) -> Result<(), Status> {
        self.engine.with(|engine| engine.register(name, function))
    }

    /// Serves a service that `grpcxx-build` made, over star and at the gRPC endpoint; one of that
    /// name is replaced.
    ///
    /// # Errors
    /// `UNAVAILABLE` while the task stops.
    pub fn add_service(&self, service: impl TypedService) -> Result<(), Status> {
        self.engine.with(|engine| engine.add_service(service))
    }

    /// Tells `witness` once if the task's engine dies, which shows in its health at once. What is
    /// left is [`Server::shutdown`].
    ///
    /// # Errors
    /// `UNAVAILABLE` while the task stops.
    pub fn on_death(
        &self,
        witness: impl FnOnce(&HostError) + Send + 'static,
    ) -> Result<(), Status> {
        self.engine.with(|engine| engine.on_death(witness))
    }

    /// Stops: no new connections and calls; those under way have `grace` to end, over gRPC and star
    /// alike.
    pub fn shutdown(self, grace: Duration) -> Stopped {
        let Self {
            engine, control, ..
        } = self;
        std::thread::scope(|scope| {
            let endpoint = scope.spawn(move || control.shutdown(grace));
            let failure = engine
                .take()
                .and_then(|engine| engine.shutdown(grace).err())
                .map(|error| error.to_string());
            // A thread that panicked has counted nothing.
            let unanswered_calls = endpoint
                .join()
                .map_or(0, |stopped| stopped.unanswered_calls);
            Stopped {
                unanswered_calls,
                failure,
            }
        })
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.report)
    }
}

/// Tells an engine which tasks there are, and lets peers ask it to pull the model from them.
fn tell_of_cluster(engine: &Engine, topology: &Topology) -> Result<(), Status> {
    let client = engine.client();
    for known in topology.tasks() {
        client.expect_task(&known.star, known.task.clone())?;
    }
    let sources = topology.job(PS_JOB).map(|ps| ps.star.clone()).collect();
    let driver = engine.start_report().driver.to_string();
    let function = model_pull::ModelPull::new(client, sources, driver);
    engine.register(MODEL_PULL, Arc::new(function));
    Ok(())
}

/// The tensors of `model` that `task` holds, in memory; none if it is not a ps.
fn read_share(
    model: &Model,
    cluster: &ClusterSpec,
    task: &TaskId,
) -> Result<Vec<(Text, Tensor)>, ServerError> {
    let Some(job) = cluster.job(PS_JOB) else {
        return Err(ServerError::Contradiction(
            "a model is to be loaded, but the cluster has no job ps to hold it; add one to the cluster spec".to_owned(),
        ));
    };
    if task.job != PS_JOB {
        return Ok(Vec::new());
    }
    let tasks = job.tasks().count();
    let position = job
        .tasks()
        .take_while(|(index, _)| *index != task.index)
        .count();
    model
        .share(position, tasks)
        .into_iter()
        .map(|entry| {
            let tensor = model.read(entry)?;
            // What cannot be sent is told now, not to whoever asks for it later.
            encode_record(&tensor, ShapeForms::Packed).map_err(|status| {
                let text = format!("tensor {:?}: {}", entry.name, status.message);
                ServerError::Store(status.with_message(text))
            })?;
            Ok((Text::from(entry.name.as_str()), tensor))
        })
        .collect()
}

fn control_options(
    grpc_address: &str,
    bind_address: IpAddr,
    metrics: Option<SocketAddr>,
) -> Result<ControlOptions, BadAddress> {
    let options = ControlOptions::for_task(grpc_address)?.bind_to(bind_address);
    Ok(match metrics {
        Some(metrics) => options.metrics_on(metrics),
        None => options,
    })
}

fn control_limits(config: &Config) -> ControlLimits {
    let mut limits = ControlLimits::default();
    let files = DescriptorParts::of_process();
    limits.connections = (config.grpc_connections as usize).min(files.grpc);
    limits.page_connections = limits.page_connections.min(files.metrics);
    limits.sessions = config.grpc_sessions as usize;
    limits.share_percent = config.grpc_share_percent;
    limits.connection_idle = config.grpc_idle;
    limits.session_idle = config.grpc_session_idle;
    limits.request_time = config.grpc_request_time;
    limits.peer_unsent_bytes = config.peer_unsent_bytes;
    limits
}

/// The job whose tasks hold models.
pub const PS_JOB: &str = "ps";
