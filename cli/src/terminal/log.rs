use std::io::{self, IsTerminal};

use grpcxx_runtime::config::LogFormat;
use tracing_subscriber::EnvFilter;

use super::{Exit, Failure, Outcome};

/// Sends log lines that pass `filter` to standard error.
pub(crate) fn start_log(filter: &str, format: LogFormat) -> Outcome {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::new(
            Exit::Config,
            format!(
                "GRPCXX_LOG is {filter:?}: {error}; write error, warn, info, debug or trace, or filters such as info,grpcxx_rpc=debug"
            ),
        )
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_target(false);
    let started = match format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| Failure::new(Exit::Software, format!("cannot start the log: {error}")))
}
