use std::collections::HashMap;

use grpcxx::model::{Entry, Model};
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
    let places = places(&model, &chosen, &cluster, &targets)?;
    let mut load_bytes = vec![0_u64; targets.len()];
    for (entry, place) in chosen.iter().zip(&places) {
        load_bytes[*place] += entry.meta.data_bytes;
    }
    let remotes: Vec<Remote<'_>> = chosen
        .iter()
        .zip(&places)
        .map(|(entry, owner)| Remote {
            peer: &peers[*owner],
            name: &entry.name,
            meta: &entry.meta,
        })
        .collect();

    let mut progress = Progress::new("pushing", load_bytes.iter().sum());
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
        .zip(&load_bytes)
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

/// Where each tensor goes, by its index among the targets: to the task that keeps it, or else its
/// former value would stay there; if none does, to where the rule puts it among all tensors of the
/// files.
fn places(
    model: &Model,
    chosen: &[&Entry],
    cluster: &Cluster,
    targets: &[usize],
) -> Outcome<Vec<usize>> {
    if let [_] = targets {
        return Ok(vec![0; chosen.len()]);
    }
    let names = model.entries().iter().map(|entry| entry.name.as_str());
    let shards = model.shards(targets.len());
    let by_rule: HashMap<&str, usize> = names.zip(shards.task_of).collect();
    let kept = keepers(cluster, targets)?;
    let place = |entry: &&Entry| {
        let name = entry.name.as_str();
        match kept.get(name).map(Vec::as_slice) {
            None | Some([]) => Ok(by_rule[name]),
            Some([keeper]) => Ok(*keeper),
            Some([one, other, ..]) => Err(cluster.kept_twice(name, targets[*one], targets[*other])),
        }
    };
    chosen.iter().map(place).collect()
}

/// Which of the targets keep which tensors. Nothing is known of them without the right to pull.
fn keepers(cluster: &Cluster, targets: &[usize]) -> Outcome<HashMap<String, Vec<usize>>> {
    let mut kept = HashMap::<String, Vec<usize>>::new();
    let listed = match cluster.list(None) {
        Err(failure) if failure.exit() == Exit::NoPermission => {
            tracing::warn!(
                why = failure.message(),
                "which task keeps which tensor is not told, so each goes where the rule puts it"
            );
            return Ok(kept);
        }
        listed => listed?,
    };
    for (task, _, listed) in listed {
        let place = targets.iter().position(|target| *target == task);
        let unknown = listed.unknown.into_iter().map(|unknown| unknown.name);
        let names = listed.stored.into_iter().map(|stored| stored.name);
        for name in names.chain(unknown) {
            kept.entry(name.to_string()).or_default().extend(place);
        }
    }
    Ok(kept)
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
