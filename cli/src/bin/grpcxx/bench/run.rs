use std::time::Duration;

use grpcxx_benches::{BenchClient, Floor, Measured, Op, PayloadSpec, Report, RunOptions};
use grpcxx_fusion::PlanLimits;
use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::config::Config;

use super::arguments::RunArguments;
use super::plot::{self, Curve};
use super::{check_transport, engine_options};
use crate::output::{Output, Table};
use crate::terminal::{Exit, Failure, Outcome};

/// Loads a server and prints what it did.
pub(super) fn run(arguments: &RunArguments, config: &Config, output: Output) -> Outcome {
    let options = run_options(arguments, output);
    options
        .check()
        .map_err(|text| Failure::new(Exit::Usage, text))?;
    let engine = engine_options(&arguments.engine, config, "worker")?;
    let client = BenchClient::start(engine, arguments.connect.clone()).map_err(Failure::from)?;
    check_transport(arguments.engine.transport, client.start_report())?;
    if let Some(medium) = arguments.engine.transport.medium() {
        client
            .connect_over(options.connections, medium, MOVE_TIME)
            .map_err(failure)?;
    }
    let mut floors = Vec::new();
    if arguments.limit {
        floors = measure_floors(&client, &options)?;
    }
    let outcome = client.run(&options).map_err(failure)?;
    if arguments.limit {
        for (best, again) in floors.iter_mut().zip(measure_floors(&client, &options)?) {
            if is_better(&again.measured, &best.measured) {
                *best = again;
            }
        }
    }
    let driver = client.start_report().driver.driver.to_string();
    let medium = client.medium().map_err(failure)?;
    if (arguments.engine.transport.medium()).is_some_and(|asked| asked != medium) {
        return Err(Failure::new(
            Exit::Unavailable,
            format!("the connection fell back to {medium} under the bench"),
        ));
    }
    let report = outcome.measured.report(&options, medium.name(), &driver);
    let limits: Vec<Report> = floors
        .iter()
        .map(|floor| floor.measured.report(&options, floor.medium, NO_DRIVER))
        .collect();
    output.print(&report, || {
        let mut text = report.to_string();
        text.push_str(&connections(&outcome.p99_us_by_connection));
        if !limits.is_empty() {
            text.push_str(&distance(&report, &limits));
        }
        text
    })?;
    if output.is_json() {
        for limit in &limits {
            output.print(limit, String::new)?;
        }
    }
    if let Some(path) = &arguments.plot {
        let mut curves = vec![Curve {
            name: format!("{medium} ({driver})"),
            latency: &outcome.measured.latency,
        }];
        curves.extend(floors.iter().map(|floor| Curve {
            name: floor.medium.to_owned(),
            latency: &floor.measured.latency,
        }));
        plot::write(path, &title(&report), &curves)?;
    }
    Ok(())
}

fn run_options(arguments: &RunArguments, output: Output) -> RunOptions {
    RunOptions {
        op: arguments.op,
        api: arguments.api,
        payload: PayloadSpec {
            size_bytes: arguments.size,
            count: arguments.count,
            mix: arguments.mix,
            serialized: arguments.serialized,
            seed: arguments.seed,
        },
        connections: arguments.connections,
        depth: arguments.depth,
        duration: arguments.seconds,
        rate: arguments.rate,
        fusion: arguments.fuse.is_on().then(PlanLimits::between_grpcxx),
        verify: arguments.verify,
        by_connection: arguments.connections > 1 && !output.is_json(),
        ..RunOptions::default()
    }
}

fn measure_floors(client: &BenchClient, options: &RunOptions) -> Outcome<Vec<Floor>> {
    let duration = (options.duration / 4).clamp(FLOOR_TIME_MIN, FLOOR_TIME_MAX);
    client.floors(options, duration).map_err(failure)
}

/// A limit is the best that was seen.
fn is_better(new: &Measured, old: &Measured) -> bool {
    let rate =
        |measured: &Measured| measured.steps as f64 / measured.elapsed.as_secs_f64().max(1e-9);
    rate(new) > rate(old)
}

/// How evenly the connections were served.
fn connections(p99_us: &[Option<f64>]) -> String {
    let mut known: Vec<f64> = p99_us.iter().copied().flatten().collect();
    known.sort_by(f64::total_cmp);
    let (Some(median), Some(worst)) = (known.get(known.len() / 2), known.last()) else {
        return String::new();
    };
    let silent = p99_us.len() - known.len();
    format!(
        "{:<22}p99 of the median connection {median:.1} us   of the worst {worst:.1} us   without a step {silent}\n",
        "connections"
    )
}

/// Ours beside each limit; a ratio of 1 is the limit itself.
fn distance(ours: &Report, limits: &[Report]) -> String {
    let mut table = Table::new(&[
        "limit",
        "p50 us#",
        "ours / limit#",
        "steps/s#",
        "GB/s#",
        "ours / limit#",
    ]);
    for limit in limits {
        table.row([
            limit.transport.clone(),
            format!("{:.2}", limit.p50_us),
            format!("{:.2}", ours.p50_us / limit.p50_us.max(1e-9)),
            format!("{:.0}", limit.steps_per_s),
            format!("{:.3}", limit.gb_per_s),
            format!("{:.2}", ours.steps_per_s / limit.steps_per_s.max(1e-9)),
        ]);
    }
    format!("\n{table}")
}

fn title(report: &Report) -> String {
    let what = if report.op == Op::Latency.name() {
        "call"
    } else {
        "step"
    };
    format!(
        "{}: time of a {what}, {} x {} bytes, {} connections x {}",
        report.op, report.count, report.size, report.conns, report.depth
    )
}

fn failure(status: Status) -> Failure {
    match status.code {
        Code::DataLoss => Failure::new(Exit::Different, status.message.into_owned()),
        Code::InvalidArgument => Failure::new(Exit::Usage, status.message.into_owned()),
        _ => Failure::from(status),
    }
}

/// How long connections may take to move to what was asked for.
const MOVE_TIME: Duration = Duration::from_secs(10);
/// A limit has no driver of ours.
const NO_DRIVER: &str = "none";
const FLOOR_TIME_MIN: Duration = Duration::from_millis(50);
const FLOOR_TIME_MAX: Duration = Duration::from_secs(3);
