use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grpcxx::model::{Model, ModelFingerprint};
use grpcxx::server::{PullReport, pull_model};
use grpcxx_cli::local::{LocalCluster, LocalOptions, LogLine, Stream};
use grpcxx_runtime::config::Config;
use serde::Serialize;

use crate::arguments::DemoArguments;
use crate::cluster::{Cluster, at};
use crate::local::{self, STOP_TIMEOUT};
use crate::output::{Output, Table, size};
use crate::terminal::{Exit, Failure, Outcome, open_model};
use crate::{demo_model, terminal::OrExit};

#[derive(Serialize)]
struct Report {
    model: String,
    is_generated: bool,
    bytes: u64,
    fingerprint: String,
    shares: Vec<Share>,
    workers: Vec<Worker>,
}

#[derive(Serialize)]
struct Share {
    task: String,
    tensors: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Worker {
    task: String,
    tensors: usize,
    bytes: u64,
    calls: usize,
    first_seconds: f64,
    best_seconds: f64,
    gigabytes_per_second: f64,
    transport: String,
    link: String,
    is_equal: bool,
}

/// Runs a cluster whose workers pull a model from its ps tasks, and compares what came.
pub(crate) fn run(arguments: &DemoArguments, config: &Config, output: Output) -> Outcome {
    if arguments.cluster.ps == 0 || arguments.cluster.worker == 0 {
        return Err(Failure::new(
            Exit::Usage,
            "the demo needs at least one ps and one worker",
        ));
    }
    let folder = tempfile::Builder::new()
        .prefix("grpcxx-demo-")
        .tempdir()
        .or_exit_at(Exit::System, || {
            "cannot make a folder for temporary files".to_owned()
        })?;
    let mut local = local::options(&arguments.cluster)?;
    let is_generated = local.load.is_empty();
    if is_generated {
        let path = folder.path().join("generated.safetensors");
        demo_model::generate(&path)?;
        local.load.push(path);
    }
    let model = open_model(&local.load)?;
    let expected = model.fingerprint()?;
    let shares = shares(&model, local.ps);
    let name = model_name(&local.load, is_generated);
    tell(
        output,
        &format!(
            "model: {name}, {} tensors, {}",
            model.entries().len(),
            size(model.data_bytes())
        ),
    );

    let (cluster, last_lines) = start(local)?;
    tell(output, &format!("cluster: {}", cluster.cluster_spec()));
    let workers = pull_everywhere(&cluster, arguments.rounds, config, expected);
    let stopped = cluster.stop(STOP_TIMEOUT).map_err(local::failure);
    let workers = workers.inspect_err(|_| {
        for line in last_lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            tell(output, &format!("{} | {}", line.task, line.text));
        }
    })?;
    stopped?;

    let report = Report {
        model: name,
        is_generated,
        bytes: model.data_bytes(),
        fingerprint: expected.to_string(),
        shares,
        workers,
    };
    output.print(&report, || text(&report))?;
    let different: Vec<&str> = report
        .workers
        .iter()
        .filter(|worker| !worker.is_equal)
        .map(|worker| worker.task.as_str())
        .collect();
    if different.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Different,
        format!("what {} pulled differs from the file", different.join(", ")),
    ))
}

type LastLines = Arc<Mutex<VecDeque<LogLine>>>;

/// Starts the tasks and keeps the last lines of their logs, for the case that something fails.
fn start(options: LocalOptions) -> Outcome<(LocalCluster, LastLines)> {
    let last_lines = LastLines::default();
    let keep = Arc::clone(&last_lines);
    let cluster = LocalCluster::start(options, move |line| {
        if line.stream == Stream::Error {
            let mut lines = keep.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == LOG_LINES {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    });
    Ok((cluster.map_err(local::failure)?, last_lines))
}

/// All workers pull at the same time, `rounds` times.
fn pull_everywhere(
    local: &LocalCluster,
    rounds: u32,
    config: &Config,
    expected: ModelFingerprint,
) -> Outcome<Vec<Worker>> {
    let workers = local
        .tasks()
        .into_iter()
        .filter(|task| task.starts_with("worker:"));
    let addresses = workers.map(|task| {
        let star = local.star_address(&task).unwrap_or_default().to_owned();
        (task, star)
    });
    let cluster = Cluster::of_addresses(addresses, config, PULL_TIMEOUT)?;
    let client = cluster.client();
    let mut reports: Vec<Vec<PullReport>> = vec![Vec::new(); cluster.tasks().len()];
    for _ in 0..rounds {
        let round: Vec<Outcome<PullReport>> = std::thread::scope(|scope| {
            let pulls: Vec<_> = cluster
                .tasks()
                .iter()
                .map(|task| {
                    scope.spawn(|| {
                        let peer = client.peer(&task.star)?;
                        pull_model(&client, &peer, Some(PULL_TIMEOUT))
                            .map_err(|status| at(task, status))
                    })
                })
                .collect();
            let lost = || Err(Failure::new(Exit::Software, "a thread of the demo failed"));
            pulls
                .into_iter()
                .map(|pull| pull.join().unwrap_or_else(|_| lost()))
                .collect()
        });
        for (reports, report) in reports.iter_mut().zip(round) {
            reports.push(report?);
        }
    }
    let workers = cluster.tasks().iter().zip(reports);
    Ok(workers
        .filter_map(|(task, reports)| worker(&task.name, &reports, expected))
        .collect())
}

fn worker(task: &str, reports: &[PullReport], expected: ModelFingerprint) -> Option<Worker> {
    let first = reports.first()?;
    let best = reports
        .iter()
        .min_by_key(|report| report.transferred.elapsed)?;
    Some(Worker {
        task: task.to_owned(),
        tensors: best.transferred.tensors,
        bytes: best.transferred.bytes,
        calls: best.transferred.calls,
        first_seconds: first.transferred.elapsed.as_secs_f64(),
        best_seconds: best.transferred.elapsed.as_secs_f64(),
        gigabytes_per_second: best.transferred.gigabytes_per_second(),
        transport: best.driver.clone(),
        link: best.link.clone(),
        is_equal: reports.iter().all(|report| report.fingerprint == expected),
    })
}

fn shares(model: &Model, ps: usize) -> Vec<Share> {
    (0..ps)
        .map(|index| {
            let share = model.share(index, ps);
            Share {
                task: format!("ps:{index}"),
                tensors: share.len(),
                bytes: share.iter().map(|entry| entry.meta.data_bytes).sum(),
            }
        })
        .collect()
}

fn model_name(files: &[PathBuf], is_generated: bool) -> String {
    if is_generated {
        return "generated, with the tensor sizes of all-MiniLM-L6-v2".to_owned();
    }
    let names: Vec<_> = files
        .iter()
        .map(|file| Path::display(file).to_string())
        .collect();
    names.join(", ")
}

fn text(report: &Report) -> String {
    let shares: Vec<String> = report
        .shares
        .iter()
        .map(|share| {
            format!(
                "{} {} tensors, {}",
                share.task,
                share.tensors,
                size(share.bytes)
            )
        })
        .collect();
    let mut table = Table::new(&[
        "worker", "tensors#", "size#", "first s#", "best s#", "GB/s#", "calls#", "checksum", "link",
    ]);
    for worker in &report.workers {
        table.row([
            worker.task.clone(),
            worker.tensors.to_string(),
            size(worker.bytes),
            format!("{:.3}", worker.first_seconds),
            format!("{:.3}", worker.best_seconds),
            format!("{:.2}", worker.gigabytes_per_second),
            worker.calls.to_string(),
            if worker.is_equal {
                "equal"
            } else {
                "DIFFERENT"
            }
            .to_owned(),
            worker.link.clone(),
        ]);
    }
    let verdict = if report.workers.iter().all(|worker| worker.is_equal) {
        "every byte that the workers pulled equals the file"
    } else {
        "NOT every byte that the workers pulled equals the file"
    };
    format!(
        "shares: {}\nfingerprint: {}\n\n{table}\n{verdict}",
        shares.join("; "),
        report.fingerprint
    )
}

fn tell(output: Output, text: &str) {
    if output.is_json() {
        // If standard error is closed nobody listens.
        let _ = writeln!(std::io::stderr(), "{text}");
    } else {
        let _ = writeln!(std::io::stdout(), "{text}");
    }
}

const PULL_TIMEOUT: Duration = Duration::from_secs(120);
/// Lines of the tasks' logs that are shown if something fails.
const LOG_LINES: usize = 40;
