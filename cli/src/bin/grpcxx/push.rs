use grpcxx::model::{Entry, Model, shard};
use grpcxx::store::{Remote, TransferLimits, push};
use grpcxx_runtime::Peer;
use grpcxx_runtime::config::Config;
use serde::Serialize;

use crate::arguments::PushArguments;
use crate::cluster::Cluster;
use crate::output::{Output, size};
use crate::progress::Progress;
use crate::select::Patterns;
use crate::terminal::{Exit, Failure, Outcome, open_model};

#[derive(Serialize)]
struct Report {
    tensors: usize,
    bytes: u64,
    calls: usize,
    seconds: f64,
    gigabytes_per_second: f64,
    driver: String,
    tasks: Vec<TaskShare>,
}

#[derive(Serialize)]
struct TaskShare {
    task: String,
    bytes: u64,
}

/// Pushes the tensors of files.
pub(crate) fn run(arguments: &PushArguments, config: &Config, output: Output) -> Outcome {
    let model = open_model(&arguments.files)?;
    let patterns = Patterns::new(&arguments.patterns);
    let chosen = choose(&model, &patterns)?;
    let cluster = Cluster::connect(&arguments.target, config)?;
    let targets = match &arguments.task {
        Some(name) => vec![cluster.task(name)?],
        None => cluster.holders(),
    };
    let peers: Vec<Peer> = targets
        .iter()
        .map(|index| cluster.peer(&cluster.tasks()[*index]))
        .collect::<Outcome<_>>()?;
    let sizes: Vec<(&str, u64)> = chosen
        .iter()
        .map(|entry| (entry.name.as_str(), entry.meta.data_bytes))
        .collect();
    let shards = shard(&sizes, peers.len());
    let remotes: Vec<Remote<'_>> = chosen
        .iter()
        .zip(&shards.task_of)
        .map(|(entry, owner)| Remote {
            peer: &peers[*owner],
            name: &entry.name,
            meta: &entry.meta,
        })
        .collect();

    let mut progress = Progress::new("pushing", shards.load_bytes.iter().sum());
    let limits = TransferLimits {
        timeout: cluster.timeout(),
        ..TransferLimits::default()
    };
    let transferred = push(
        &cluster.client(),
        &remotes,
        &limits,
        |index| model.read(chosen[index]).map_err(Failure::from),
        |bytes| progress.add(bytes),
    )?;
    drop(progress);
    let tasks = targets
        .iter()
        .zip(&shards.load_bytes)
        .map(|(index, bytes)| TaskShare {
            task: cluster.tasks()[*index].name.clone(),
            bytes: *bytes,
        });
    let report = Report {
        tensors: transferred.tensors,
        bytes: transferred.bytes,
        calls: transferred.calls,
        seconds: transferred.elapsed.as_secs_f64(),
        gigabytes_per_second: transferred.gigabytes_per_second(),
        driver: cluster.driver(),
        tasks: tasks.collect(),
    };
    output.print(&report, || {
        let shares: Vec<String> = report
            .tasks
            .iter()
            .map(|share| format!("{} {}", share.task, size(share.bytes)))
            .collect();
        format!(
            "pushed {} tensors, {}, in {:.3} s ({:.2} GB/s, {} calls, {}): {}",
            report.tensors,
            size(report.bytes),
            report.seconds,
            report.gigabytes_per_second,
            report.calls,
            report.driver,
            shares.join(", ")
        )
    })
}

fn choose<'a>(model: &'a Model, patterns: &Patterns) -> Outcome<Vec<&'a Entry>> {
    let names: Vec<&str> = model
        .entries()
        .iter()
        .map(|entry| entry.name.as_str())
        .collect();
    match patterns.without_match(&names).as_slice() {
        [] => Ok(model
            .entries()
            .iter()
            .filter(|entry| patterns.matches(&entry.name))
            .collect()),
        missing => Err(Failure::new(
            Exit::NoInput,
            format!("no tensor of the files matches {}", missing.join(", ")),
        )),
    }
}
