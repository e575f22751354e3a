//! `grpcxx bench`: the two sides of a bench as processes.

pub(crate) mod arguments;
mod plot;
mod run;
mod serve;

use grpcxx_runtime::cluster::{TOOL_JOB, TaskId};
use grpcxx_runtime::config::{Config, DriverSetting, RdmaSetting, ShmSetting};
use grpcxx_runtime::{EngineOptions, Rdma, SharedMemory, StartReport};

use self::arguments::{BenchCommand, DriverName, EngineArguments, TransportName};
use crate::output::Output;
use crate::terminal::{Exit, Failure, Outcome};

/// Runs one side of a bench.
pub(crate) fn run(command: &BenchCommand, config: &Config, output: Output) -> Outcome {
    match command {
        BenchCommand::Serve(arguments) => serve::run(arguments, config, output),
        BenchCommand::Run(arguments) => run::run(arguments, config, output),
    }
}

/// The engine of one side: flags go before the environment.
fn engine_options(
    arguments: &EngineArguments,
    config: &Config,
    job: &str,
) -> Outcome<EngineOptions> {
    let mut config = config.clone();
    match arguments.driver {
        None => {}
        Some(DriverName::Auto) => config.driver = DriverSetting::Auto,
        Some(DriverName::IoUring) => config.driver = DriverSetting::IoUring,
        Some(DriverName::Epoll) => config.driver = DriverSetting::Epoll,
    }
    if let Some(polling) = arguments.polling {
        config.ps_polling = polling.is_on();
        config.worker_polling = polling.is_on();
    }
    if let Some(shards) = arguments.shards {
        config.shards = Some(shards);
    }
    match arguments.transport {
        TransportName::Auto => {}
        TransportName::Tcp => (config.shm, config.rdma) = (ShmSetting::Off, RdmaSetting::Off),
        TransportName::Shm => (config.shm, config.rdma) = (ShmSetting::Auto, RdmaSetting::Off),
        TransportName::Rdma => (config.shm, config.rdma) = (ShmSetting::Off, RdmaSetting::Auto),
    }
    let mut options = EngineOptions::from_config(&config, TaskId::new(job, 0), 1);
    // It is no task of a cluster, whose settings it works with.
    options.task = TaskId::new(TOOL_JOB, 0);
    // Depth is what a bench is about; the limit of a connection shall not be what it finds.
    let limits = &mut options.connection_limits;
    limits.outstanding_calls = limits.outstanding_calls.max(OUTSTANDING_CALLS);
    Ok(options)
}

/// Whether this side has what the flag asks for.
fn check_transport(transport: TransportName, report: &StartReport) -> Outcome {
    let why = match (transport, &report.shared_memory, &report.rdma) {
        (TransportName::Shm, SharedMemory::Off { why }, _)
        | (TransportName::Rdma, _, Rdma::Off { why }) => why,
        _ => return Ok(()),
    };
    let name = transport.medium().unwrap_or_default();
    Err(Failure::new(
        Exit::Unavailable,
        format!("--transport {name}: it cannot be used here: {why}"),
    ))
}

/// As many as the deepest bench has on one connection.
const OUTSTANDING_CALLS: usize = 65_536;
