use std::time::Duration;

use grpcxx_benches::BenchServer;
use grpcxx_runtime::config::Config;
use serde::Serialize;

use super::arguments::ServeArguments;
use super::{check_transport, engine_options};
use crate::output::Output;
use crate::terminal::{Failure, Outcome, Signals};

#[derive(Serialize)]
struct Ready {
    star: String,
    driver: String,
    shards: usize,
}

/// Answers benches until it is told to stop.
pub(super) fn run(arguments: &ServeArguments, config: &Config, output: Output) -> Outcome {
    let signals = Signals::watch()?;
    if arguments.until_stdin_closes {
        signals.watch_stdin()?;
    }
    let mut options = engine_options(&arguments.engine, config, "ps")?;
    options.listen = Some(arguments.listen);
    let server = BenchServer::start(options).map_err(Failure::from)?;
    let report = server.start_report();
    tracing::info!("{report}");
    check_transport(arguments.engine.transport, report)?;
    let ready = Ready {
        star: server.address().unwrap_or(arguments.listen).to_string(),
        driver: report.driver.driver.to_string(),
        shards: report.shards,
    };
    output.print(&ready, || {
        format!(
            "grpcxx bench ready star={} driver={} shards={}",
            ready.star, ready.driver, ready.shards
        )
    })?;
    signals.wait(arguments.run_for);
    server.shutdown(GRACE);
    Ok(())
}

/// Benches in flight end within this time.
const GRACE: Duration = Duration::from_millis(500);
