use std::io::IsTerminal;
use std::time::{Duration, Instant};

use grpcxx_cli::local::{LocalCluster, LocalError, LocalOptions, LogLine, Stream};
use serde::Serialize;

use crate::arguments::{self, LocalArguments};
use crate::cluster::server_program;
use crate::output::Output;
use crate::terminal::log::Log;
use crate::terminal::{Exit, Failure, Outcome, Signals};

#[derive(Serialize)]
struct Started {
    cluster_spec: String,
    endpoint_map: String,
    tasks: Vec<StartedTask>,
}

#[derive(Serialize)]
struct StartedTask {
    task: String,
    grpc: String,
    star: String,
    process: Option<u32>,
}

/// Runs a cluster until Ctrl-C.
pub(crate) fn run(arguments: &LocalArguments, output: Output) -> Outcome {
    let signals = Signals::watch()?;
    let mut options = options(&arguments.cluster)?;
    options.arguments.clone_from(&arguments.arguments);
    // Standard error may be a pipe that nobody reads, and must not keep the cluster from its end.
    let log = Log::start()?;
    let mut asked = None;
    let started = LocalCluster::start_unless(options, follow(log.clone()), || {
        asked = signals.wait(Some(Duration::ZERO));
        asked.is_some()
    });
    if let Some(signal) = asked {
        signal.ends_program();
        return Ok(());
    }
    let mut cluster = started.map_err(failure)?;
    let started = Started {
        cluster_spec: cluster.cluster_spec().to_owned(),
        endpoint_map: cluster.endpoint_map().display().to_string(),
        tasks: cluster
            .tasks()
            .into_iter()
            .map(|task| describe(&cluster, task))
            .collect(),
    };
    output.print(&started, || {
        format!(
            "{} tasks are ready. In another terminal:\n  grpcxx status --cluster-spec '{}' --endpoint-map {}\nCtrl-C stops them.",
            started.tasks.len(),
            started.cluster_spec,
            started.endpoint_map
        )
    })?;
    let end = arguments
        .run_for
        .and_then(|time| Instant::now().checked_add(time));
    loop {
        let left = end.map_or(WATCH_INTERVAL, |end| {
            end.saturating_duration_since(Instant::now())
        });
        if signals.wait(Some(left.min(WATCH_INTERVAL))).is_some() || left.is_zero() {
            break;
        }
        cluster.check().map_err(failure)?;
    }
    cluster.stop(STOP_TIMEOUT).map_err(failure)
}

/// What a cluster on this machine is started with.
pub(crate) fn options(arguments: &arguments::LocalCluster) -> Outcome<LocalOptions> {
    // What is wrong with a file is told once, here, instead of by each task.
    grpcxx::model::Model::open(&arguments.load)?;
    Ok(LocalOptions {
        server: server_program(arguments.server.as_deref())?,
        ps: arguments.ps,
        workers: arguments.worker,
        load: arguments.load.clone(),
        ..LocalOptions::default()
    })
}

/// A failure of a cluster on this machine.
pub(crate) fn failure(error: LocalError) -> Failure {
    let exit = match &error {
        LocalError::NoTasks => Exit::Usage,
        LocalError::System { cause, .. } => match cause.kind() {
            std::io::ErrorKind::NotFound => Exit::NoInput,
            std::io::ErrorKind::PermissionDenied => Exit::NoPermission,
            _ => Exit::System,
        },
        LocalError::Ended { .. } => Exit::Software,
        LocalError::NotReady { .. } | LocalError::GivenUp => Exit::Unavailable,
    };
    Failure::new(exit, error.to_string())
}

/// Prints each line of each task under its name.
fn follow(log: Log) -> impl Fn(LogLine) + Send + Sync + 'static {
    let is_colourful = std::io::stderr().is_terminal();
    move |line| {
        if line.stream == Stream::Output {
            return;
        }
        log.line(if is_colourful {
            let colour = 31
                + line
                    .task
                    .bytes()
                    .fold(0u32, |sum, byte| sum + u32::from(byte))
                    % 6;
            format!("\x1b[{colour}m{:>10}\x1b[0m | {}", line.task, line.text)
        } else {
            format!("{:>10} | {}", line.task, line.text)
        });
    }
}

fn describe(cluster: &LocalCluster, task: String) -> StartedTask {
    let text = |address: Option<&str>| address.unwrap_or_default().to_owned();
    StartedTask {
        grpc: text(cluster.grpc_address(&task)),
        star: text(cluster.star_address(&task)),
        process: cluster.process_id(&task),
        task,
    }
}

const WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// More than a task takes until it has given up on calls in flight.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(5);
