use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{process, thread};

use grpcxx::server::PS_JOB;
use grpcxx::store::{Listed, Stored, list_all};
use grpcxx::topology::{MapSource, Topology};
use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::cluster::{ClusterSpec, TOOL_JOB, TaskId, TfConfig};
use grpcxx_runtime::config::Config;
use grpcxx_runtime::policy::Authority;
use grpcxx_runtime::{Certificates, Client, Engine, EngineOptions, Peer};

use crate::arguments::Target;
use crate::select::Patterns;
use crate::terminal::{Exit, Failure, OrExit, Outcome, Signals, read_cluster};

/// The tasks that the tool was pointed at, and an engine that only calls.
///
/// Dropping it leaves the tasks as they want to be left, and so does a signal that ends the
/// program.
pub(crate) struct Cluster {
    engine: Arc<EngineSlot>,
    /// Leaves the tasks at a signal.
    leaving: Option<JoinHandle<()>>,
    client: Client,
    certificates: Option<Arc<Certificates>>,
    authority: Arc<Authority>,
    driver: String,
    tasks: Vec<Task>,
    source: Option<MapSource>,
    timeout: Duration,
}

/// A task that can be called.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// `ps:0`, or the star address if no cluster was given.
    pub(crate) name: String,
    /// Its job, if known.
    pub(crate) job: Option<String>,
    /// Where it speaks gRPC, if known.
    pub(crate) grpc: Option<String>,
    /// Where it speaks star.
    pub(crate) star: String,
}

impl Task {
    /// Which task it is, if a cluster was given.
    pub(crate) fn id(&self) -> Option<TaskId> {
        let job = self.job.as_ref()?;
        let index = self.name.strip_prefix(job)?.strip_prefix(':')?;
        Some(TaskId::new(job, index.parse().ok()?))
    }
}

/// A tensor and the task that keeps it.
#[derive(Debug)]
pub(crate) struct Found {
    /// Index of the task in [`Cluster::tasks`].
    pub(crate) task: usize,
    /// The task, to be called.
    pub(crate) peer: Peer,
    /// The tensor.
    pub(crate) stored: Stored,
}

impl Cluster {
    /// Finds the tasks and starts the engine.
    pub(crate) fn connect(target: &Target, config: &Config) -> Outcome<Self> {
        let (tasks, source) = if target.star.is_empty() {
            let cluster = cluster_spec(target.cluster_spec.as_deref(), config)?;
            let topology = Topology::find(
                &cluster,
                target.endpoint_map.as_deref(),
                config.endpoint_map_directory.as_deref(),
                config.star_port_offset,
            )
            .map_err(|error| Failure::new(Exit::of_map(&error), error.to_string()))?;
            let tasks = topology.tasks().iter().map(|known| Task {
                name: format!("{}:{}", known.task.job, known.task.index),
                job: Some(known.task.job.clone()),
                grpc: Some(known.grpc.clone()),
                star: known.star.clone(),
            });
            (tasks.collect(), Some(topology.source().clone()))
        } else {
            let tasks = target.star.iter().map(|address| Task {
                name: address.clone(),
                job: None,
                grpc: None,
                star: address.clone(),
            });
            (tasks.collect(), None)
        };
        Self::new(tasks, source, config, target.timeout)
    }

    fn new(
        tasks: Vec<Task>,
        source: Option<MapSource>,
        config: &Config,
        timeout: Duration,
    ) -> Outcome<Self> {
        let mut options = EngineOptions::from_config(config, TaskId::new(TOOL_JOB, 0), 1);
        // A person waits: a task that is up answers a dial within a few tries.
        options.channel.connection_timeout_max = CONNECTION_TIMEOUT_MAX;
        // Nor does leaving a task that stands still take longer than its calls.
        options.drain = (options.drain).with(|limits| limits.time = limits.time.min(timeout));
        let engine = Engine::start(options).map_err(|error| {
            Failure::from(error).at("cannot start the engine that makes the calls")
        })?;
        let (client, driver) = (engine.client(), engine.start_report().driver.to_string());
        for task in &tasks {
            if let Some(id) = task.id() {
                client.expect_task(&task.star, id)?;
            }
        }
        let (certificates, authority) = (engine.certificates(), engine.authority());
        let engine = Arc::new(EngineSlot::new(Some(engine)));
        let leaving = leave_at_signal(Arc::clone(&engine))?;
        Ok(Self {
            engine,
            leaving: Some(leaving),
            client,
            certificates,
            authority,
            driver,
            tasks,
            source,
            timeout,
        })
    }

    /// The star ports of a cluster on this machine.
    pub(crate) fn of_addresses(
        tasks: impl IntoIterator<Item = (String, String)>,
        config: &Config,
        timeout: Duration,
    ) -> Outcome<Self> {
        let tasks = tasks.into_iter().map(|(name, star)| Task {
            job: name.split(':').next().map(str::to_owned),
            name,
            grpc: None,
            star,
        });
        Self::new(tasks.collect(), None, config, timeout)
    }

    /// All tasks.
    pub(crate) fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// What joined the addresses of the tasks.
    pub(crate) fn source(&self) -> Option<&MapSource> {
        self.source.as_ref()
    }

    /// Index of the task that a person calls `name`: `ps:0`, `/job:ps/replica:0/task:0`, or its
    /// star address.
    pub(crate) fn task(&self, name: &str) -> Outcome<usize> {
        let short = name.parse::<TaskId>().map_or_else(
            |_| name.to_owned(),
            |task| format!("{}:{}", task.job, task.index),
        );
        let found = self
            .tasks
            .iter()
            .position(|task| task.name == short || task.star == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.tasks.iter().map(|task| task.name.as_str()).collect();
            Failure::new(
                Exit::Usage,
                format!("there is no task {name:?}; there are {}", names.join(", ")),
            )
        })
    }

    /// The tasks that hold models: those of job ps; all, if there is no such job or jobs are not
    /// known.
    pub(crate) fn holders(&self) -> Vec<usize> {
        let is_ps = |task: &Task| task.job.as_deref() == Some(PS_JOB);
        let has_ps = self.tasks.iter().any(is_ps);
        (0..self.tasks.len())
            .filter(|index| !has_ps || is_ps(&self.tasks[*index]))
            .collect()
    }

    /// Makes calls.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// What gRPC endpoints are dialled with, if some are by TLS.
    pub(crate) fn certificates(&self) -> Option<Arc<Certificates>> {
        self.certificates.clone()
    }

    /// What proves the token to gRPC endpoints.
    pub(crate) fn authority(&self) -> Arc<Authority> {
        Arc::clone(&self.authority)
    }

    /// The other end of calls to `task`.
    pub(crate) fn peer(&self, task: &Task) -> Outcome<Peer> {
        let peer = self.client.peer(&task.star);
        let is_argument = task.name == task.star;
        match peer.as_ref().map_err(|status| status.code) {
            Err(Code::InvalidArgument) if is_argument => peer.or_exit(Exit::Usage),
            Err(Code::InvalidArgument) => peer.or_exit(Exit::Config),
            _ => Ok(peer?),
        }
    }

    /// What moves the bytes on this side.
    pub(crate) fn driver(&self) -> String {
        self.driver.clone()
    }

    /// How long each call may take.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        Some(self.timeout)
    }

    /// The tensors that match `patterns`, of the tasks that hold models or of the one called
    /// `only`. Tensors come by task, then by name.
    pub(crate) fn find(&self, patterns: &Patterns, only: Option<&str>) -> Outcome<Vec<Found>> {
        let mut found = Vec::new();
        for (task, peer, listed) in self.list(only)? {
            for unknown in &listed.unknown {
                if patterns.matches(&unknown.name) {
                    tracing::warn!(
                        "tensor {:?} is left out: its type {} is not known here",
                        unknown.name,
                        unknown.dtype
                    );
                }
            }
            let stored = listed.stored.into_iter();
            let chosen = stored.filter(|stored| patterns.matches(&stored.name));
            found.extend(chosen.map(|stored| Found {
                task,
                peer: peer.clone(),
                stored,
            }));
        }
        Ok(found)
    }

    /// That two tasks keep tensors of one name.
    pub(crate) fn kept_twice(&self, name: &str, one: usize, other: usize) -> Failure {
        let (one, other) = (&self.tasks[one].name, &self.tasks[other].name);
        let text = format!("both {one} and {other} keep a tensor {name:?}; choose one with --task");
        Failure::new(Exit::Data, text)
    }

    /// What the tasks hold that hold models, or the one called `only`.
    pub(crate) fn list(&self, only: Option<&str>) -> Outcome<Vec<(usize, Peer, Listed)>> {
        let asked = match only {
            Some(name) => vec![self.task(name)?],
            None => self.holders(),
        };
        let mut all = Vec::with_capacity(asked.len());
        for index in asked {
            let task = &self.tasks[index];
            let peer = self.peer(task)?;
            let listed = list_all(&self.client(), &peer, self.timeout());
            all.push((index, peer, listed.map_err(|status| at(task, status))?));
        }
        Ok(all)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let is_left_by_signal = take(&self.engine).is_none();
        if is_left_by_signal && let Some(leaving) = self.leaving.take() {
            // The program ends when the tasks have been left, and not before. A panic there has
            // been logged.
            let _ = leaving.join();
        }
    }
}

/// The engine, until somebody stops it.
type EngineSlot = Mutex<Option<Engine>>;

fn take(engine: &EngineSlot) -> Option<Engine> {
    engine.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Lets SIGINT and SIGTERM stop the engine, which ends all calls, before they end the program: an
/// original that is reset while it sends may never send again. A second signal ends the program at
/// once.
fn leave_at_signal(engine: Arc<EngineSlot>) -> Outcome<JoinHandle<()>> {
    let signals = Signals::watch()?;
    let leave = move || {
        let Some(signal) = signals.wait(None) else {
            return;
        };
        signal.ends_program();
        if signals
            .then(|signal| process::exit(signal.exit_code()))
            .is_err()
        {
            process::exit(signal.exit_code());
        }
        tracing::info!(%signal, "leaving the tasks");
        if let Some(engine) = take(&engine)
            && let Err(error) = engine.shutdown(Duration::ZERO)
        {
            tracing::error!(%error, "a shard had failed");
        }
    };
    thread::Builder::new()
        .name("leave".to_owned())
        .spawn(leave)
        .or_exit_at(Exit::System, || {
            "cannot start a thread for signals".to_owned()
        })
}

/// A failure of a call to `task`.
pub(crate) fn at(task: &Task, status: Status) -> Failure {
    if task.name == task.star {
        return Failure::from(status).at(format!("task at {}", task.star));
    }
    Failure::from(status).at(format!("task {} at {}", task.name, task.star))
}

/// The cluster from the command line, else from `TF_CONFIG`.
pub(crate) fn cluster_spec(spec: Option<&str>, config: &Config) -> Outcome<ClusterSpec> {
    match (spec, &config.tf_config) {
        (Some(spec), _) => read_cluster(spec),
        (None, Some(text)) => TfConfig::parse(text)
            .and_then(TfConfig::into_cluster)
            .or_exit_at(Exit::Config, || {
                "the variable TF_CONFIG is wrong".to_owned()
            }),
        (None, None) => Err(Failure::new(
            Exit::Usage,
            "which cluster? Give --cluster-spec 'ps|host:port,worker|host:port', name tasks with --star HOST:PORT, or set TF_CONFIG",
        )),
    }
}

/// The program `grpcxx-server` that lies beside this one.
pub(crate) fn server_program(explicit: Option<&Path>) -> Outcome<std::path::PathBuf> {
    if let Some(path) = explicit {
        return Ok(path.to_owned());
    }
    let own = std::env::current_exe().or_exit_at(Exit::System, || {
        "cannot find out where this program lies".to_owned()
    })?;
    let beside = own.with_file_name("grpcxx-server");
    if beside.is_file() {
        return Ok(beside);
    }
    Err(Failure::new(
        Exit::NoInput,
        format!(
            "there is no {}; build it with `cargo build --release --bins`, or name it with --server",
            beside.display()
        ),
    ))
}

/// How long a call of this tool waits for a connection.
const CONNECTION_TIMEOUT_MAX: Duration = Duration::from_secs(5);
