use std::io;
use std::net::SocketAddr;
use std::process;

use grpcxx::server::{Inspector, PS_JOB, Server, ServerError, ServerOptions, describe};
use grpcxx::topology::Topology;
use grpcxx_cli::local::HeldPort;
use grpcxx_runtime::cluster::{ClusterSpec, Protocol, TaskId, TfConfig};
use grpcxx_runtime::config::Config;

use crate::allocation::{self, Allocated};
use crate::arguments::Arguments;
use crate::supervisor;
use crate::terminal::log::Log;
use crate::terminal::output::write_in_time;
use crate::terminal::{
    Exit, Failure, OrExit, Outcome, Signals, open_model, raise_open_files, read_cluster,
    read_config, start_log, start_telemetry,
};

/// Runs the task until it is asked to stop, or one of its shards dies. `prepare` sees it before it
/// is announced.
pub(crate) fn run(arguments: &Arguments, prepare: impl FnOnce(&Server)) -> Outcome {
    let (config, mut warnings) = read_config()?;
    let telemetry = start_telemetry("grpcxx-server", &mut warnings);
    let (log, _telemetry) = start_log(&config.log, config.log_format, telemetry)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    raise_open_files();
    let grace = config.shutdown_grace;
    let signals = Signals::watch()?;
    if arguments.until_stdin_closes {
        signals.watch_stdin()?;
    }
    let (task, server) = start(arguments, config, &signals, &log)?;
    let inspector = server.inspector();
    Signals::at_user_signal(move || log_what_waits(&inspector))?;
    // The task's health shows the death by itself, and the stop below tells what died.
    server
        .on_death(signals.request(DEATH))
        .or_exit(Exit::Software)?;
    prepare(&server);
    tracing::info!("{}", server.start_report());
    if server.loaded().tensors > 0 {
        let loaded = server.loaded();
        tracing::info!(
            tensors = loaded.tensors,
            bytes = loaded.bytes,
            "holds its share of the model"
        );
    }
    warn_of_open_ports(&server);
    if let Err(error) = announce(&task, &server) {
        tracing::warn!(%error, "the ready notice could not be written to standard output");
    }

    let reason = signals.wait(None).map(|request| request.to_string());
    let reason = reason.as_deref().unwrap_or("lost signals");
    supervisor::tell_stopping(reason, grace);
    tracing::info!(reason, grace_ms = grace.as_millis() as u64, "stopping");
    let exit = if reason == DEATH {
        Exit::Software as i32
    } else {
        0
    };
    // Whoever asks twice does not want to wait.
    let last_log = log.clone();
    signals.then(move |reason| {
        tracing::warn!(%reason, "stopping at once");
        last_log.flush();
        process::exit(exit);
    })?;
    let stopped = server.shutdown(grace);
    if stopped.unanswered_calls > 0 {
        tracing::warn!(
            calls = stopped.unanswered_calls,
            "stopped before all calls had their answer"
        );
    }
    match stopped.failure {
        None => {
            tracing::info!("stopped");
            Ok(())
        }
        Some(failure) => Err(Failure::new(Exit::Software, failure)),
    }
}

/// Starts the task, unless it is asked to stop meanwhile. The first process of a container gets no
/// signal that it does not watch for.
fn start(
    arguments: &Arguments,
    config: Config,
    signals: &Signals,
    log: &Log,
) -> Outcome<(TaskId, Server)> {
    let log = log.clone();
    signals.ending_at_once(
        move |reason| {
            tracing::info!(%reason, "stopped before it was ready");
            log.flush();
            process::exit(0);
        },
        || {
            let (options, _held) = options(arguments, config)?;
            let task = options.task.clone();
            let server = Server::start(options).map_err(failure)?;
            Ok((task, server))
        },
    )
}

/// Writes to the log what the task waits for.
fn log_what_waits(inspector: &Inspector) {
    for line in describe(&inspector.inspect(), LOGGED_ROWS_MAX) {
        tracing::info!("waits: {line}");
    }
}

/// Most lines of each kind that go to the log, which limits those of one place in the code.
const LOGGED_ROWS_MAX: usize = 10;

/// What asks the task to stop whose engine has died.
const DEATH: &str = "a shard died";

/// What the task starts with, and its ports where it has chosen them itself.
fn options(arguments: &Arguments, config: Config) -> Outcome<(ServerOptions, Vec<HeldPort>)> {
    let protocol: Protocol = arguments.protocol.parse().or_exit(Exit::Usage)?;
    // What is wrong with TF_CONFIG is told below.
    let has_cluster =
        |text: &String| TfConfig::parse(text).map_or(true, |told| told.cluster.is_some());
    let is_told =
        arguments.cluster_spec.is_some() || config.tf_config.as_ref().is_some_and(has_cluster);
    let allocated = match is_told {
        true => None,
        false => allocation::find(arguments)?,
    };
    let (cluster, task, told, held) = match allocated {
        Some(Allocated {
            cluster,
            task,
            topology,
            held,
        }) => (cluster, task, Some(topology), held),
        None => {
            let (cluster, task) = cluster_and_task(arguments, &config)?;
            (cluster, task, None, Vec::new())
        }
    };
    cluster.require(&task).or_exit(Exit::Config)?;
    let topology = if !protocol.speaks_star() {
        None
    } else if told.is_some() {
        told
    } else {
        let topology = Topology::find(
            &cluster,
            arguments.endpoint_map.as_deref(),
            config.endpoint_map_directory.as_deref(),
            config.star_port_offset,
        );
        Some(topology.map_err(|error| failure(error.into()))?)
    };
    let model = if arguments.load.is_empty() {
        None
    } else {
        if task.job != PS_JOB {
            tracing::info!("--load has no effect here: the tasks of job {PS_JOB} hold the model");
        }
        Some(open_model(&arguments.load)?)
    };
    let options = ServerOptions {
        metrics: arguments.metrics_addr.or(config.metrics_address),
        config,
        cluster,
        task,
        protocol,
        topology,
        model,
    };
    Ok((options, held))
}

/// Flags go before `TF_CONFIG`, which goes before `TASK_INDEX`.
fn cluster_and_task(arguments: &Arguments, config: &Config) -> Outcome<(ClusterSpec, TaskId)> {
    let tf_config = match &config.tf_config {
        Some(text) => Some(TfConfig::parse(text).or_exit_at(Exit::Config, || {
            "the variable TF_CONFIG is wrong".to_owned()
        })?),
        None => None,
    };
    let told_task = tf_config.as_ref().and_then(|told| told.task.clone());
    let cluster = match (&arguments.cluster_spec, tf_config) {
        (Some(spec), _) => read_cluster(spec)?,
        (None, Some(told)) => told.into_cluster().or_exit_at(Exit::Config, || {
            "the variable TF_CONFIG is wrong".to_owned()
        })?,
        (None, None) => {
            return Err(Failure::new(
                Exit::Usage,
                "which cluster? Give --cluster-spec 'ps|host:port,worker|host:port', or set TF_CONFIG, or start this by a launcher; see --help",
            ));
        }
    };
    let job = arguments
        .job_name
        .clone()
        .or_else(|| told_task.as_ref().map(|task| task.job.clone()));
    let index = arguments
        .task_index
        .or_else(|| told_task.as_ref().map(|task| task.index))
        .or(config.task_index);
    match (job, index) {
        (Some(job), Some(index)) => Ok((cluster, TaskId::new(job, index))),
        (None, _) => Err(Failure::new(
            Exit::Usage,
            "which task? Give --job-name, such as ps or worker, or set the task in TF_CONFIG",
        )),
        (_, None) => Err(Failure::new(
            Exit::Usage,
            "which task of the job? Give --task-index, counted from 0, or set the task in TF_CONFIG",
        )),
    }
}

/// Says, to systemd and in the line that scripts wait for, that the task can be used: what it is,
/// and what is open.
/// Who starts tasks may not listen; the task runs all the same.
fn announce(task: &TaskId, server: &Server) -> io::Result<()> {
    let TaskId { job, index } = task;
    let grpc = server.grpc_address();
    let mut line = format!("job={job} task={index} grpc={grpc}");
    if let Some(star) = server.star_address() {
        line.push_str(&format!(" star={star}"));
    }
    if let Some(metrics) = server.metrics_address() {
        line.push_str(&format!(" metrics={metrics}"));
    }
    supervisor::tell_ready(&line);
    write_in_time(io::stdout(), format!("grpcxx-server ready {line}\n"))
}

/// Says once that ports are open to all who reach this machine, if nothing asks them who they are.
fn warn_of_open_ports(server: &Server) {
    if !server.authority().is_open() {
        return;
    }
    let (grpc, star) = (server.grpc_address(), server.star_address());
    let is_open = |address: SocketAddr| address.ip().is_unspecified();
    if is_open(grpc) || star.is_some_and(is_open) {
        tracing::warn!(
            %grpc,
            star = star.map(tracing::field::display),
            "whoever reaches this machine may read what this task holds and take part in its steps; \
             set GRPCXX_TOKEN_FILE, GRPCXX_ALLOW or GRPCXX_MEMBERS, or name the address of the \
             cluster's network in GRPCXX_BIND_ADDRESS"
        );
    }
}

fn failure(error: ServerError) -> Failure {
    if let ServerError::Model(error) = error {
        return Failure::from(error);
    }
    let exit = error
        .system_error()
        .and_then(Exit::of_system)
        .unwrap_or(match &error {
            ServerError::EndpointMap(error) => Exit::of_map(error),
            ServerError::Cluster(_)
            | ServerError::Address(_)
            | ServerError::Peer(_)
            | ServerError::Contradiction(_) => Exit::Config,
            ServerError::Model(_) | ServerError::Store(_) => Exit::Data,
            ServerError::Engine(error) => Exit::of_engine(error),
            ServerError::StarPort { .. } | ServerError::Control(_) => Exit::System,
        });
    Err::<(), _>(error)
        .or_exit(exit)
        .expect_err("an error stays one")
}
