use std::path::Path;

use grpcxx::model::{Fingerprint, Model, ModelFingerprint, SafetensorsWriter, write_npy};
use grpcxx::store::{Remote, TransferLimits, Transferred, pull};
use grpcxx_rpc::{Tensor, TensorMeta};
use grpcxx_runtime::config::Config;
use serde::Serialize;

use crate::arguments::PullArguments;
use crate::cluster::{Cluster, Found};
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
    fingerprint: String,
    output: Option<String>,
    /// What was found and has no place in the file.
    left_out: Vec<String>,
    /// Absent if nothing was compared; else the names of what differs.
    different: Option<Vec<String>>,
}

/// Where pulled tensors go.
pub(crate) enum Sink<'a> {
    /// Nowhere.
    Nothing,
    /// A safetensors file, as they come.
    Safetensors(Box<SafetensorsWriter>),
    /// A NumPy file for the only one.
    Npy(&'a Path),
}

/// Pulls tensors.
pub(crate) fn run(arguments: &PullArguments, config: &Config, output: Output) -> Outcome {
    if let Some(path) = &arguments.output {
        check_ending(path)?;
    }
    let reference = open_model(&arguments.verify)?;
    let cluster = Cluster::connect(&arguments.target, config)?;
    let patterns = Patterns::new(&arguments.patterns);
    let mut found = cluster.find(&patterns, arguments.task.as_deref())?;
    check_names(&cluster, &found, &patterns)?;
    // The files to compare with have no place for them either.
    let file = arguments.output.as_ref().or(arguments.verify.first());
    let left_out = match file {
        Some(path) if matches!(check_ending(path), Ok(Ending::Safetensors)) => {
            leave_out(path, &mut found, &patterns)?
        }
        _ => Vec::new(),
    };
    let described = found
        .iter()
        .map(|found| (found.stored.name.as_str(), &found.stored.meta));
    let mut sink = match &arguments.output {
        Some(path) => Sink::create(path, described, &arguments.metadata)?,
        None => Sink::Nothing,
    };

    let pulled = transfer(&cluster, &found, &mut sink)?;
    sink.finish()?;
    let different = if arguments.verify.is_empty() {
        None
    } else {
        Some(compare(&reference, &pulled.fingerprints, arguments.all)?)
    };
    let report = Report {
        tensors: pulled.transferred.tensors,
        bytes: pulled.transferred.bytes,
        calls: pulled.transferred.calls,
        seconds: pulled.transferred.elapsed.as_secs_f64(),
        gigabytes_per_second: pulled.transferred.gigabytes_per_second(),
        driver: cluster.driver(),
        fingerprint: ModelFingerprint::of(pulled.fingerprints.iter().copied()).to_string(),
        output: arguments
            .output
            .as_ref()
            .map(|path| path.display().to_string()),
        left_out,
        different,
    };
    output.print(&report, || text(&report))?;
    match report.different {
        Some(different) if !different.is_empty() => Err(Failure::new(
            Exit::Different,
            format!(
                "{} tensors differ: {}",
                different.len(),
                different.join(", ")
            ),
        )),
        _ => Ok(()),
    }
}

struct Pulled<'a> {
    transferred: Transferred,
    fingerprints: Vec<(&'a str, Fingerprint)>,
}

fn transfer<'a>(cluster: &Cluster, found: &'a [Found], sink: &mut Sink<'_>) -> Outcome<Pulled<'a>> {
    let remotes: Vec<Remote<'a>> = found
        .iter()
        .map(|found| Remote {
            peer: &found.peer,
            name: &found.stored.name,
            meta: &found.stored.meta,
        })
        .collect();
    let bytes = remotes.iter().map(|remote| remote.meta.data_bytes).sum();
    let mut progress = Progress::new("pulling", bytes);
    let mut fingerprints = Vec::with_capacity(remotes.len());
    let limits = TransferLimits {
        timeout: cluster.timeout(),
        ..TransferLimits::default()
    };
    let transferred = pull(&cluster.client(), &remotes, &limits, |index, tensor| {
        let name = remotes[index].name;
        fingerprints.push((name, Fingerprint::of(name, &tensor)));
        sink.take(name, &tensor)?;
        progress.add(tensor.data.len() as u64);
        Ok::<(), Failure>(())
    })?;
    Ok(Pulled {
        transferred,
        fingerprints,
    })
}

impl<'a> Sink<'a> {
    /// A file at `path` for these tensors.
    pub(crate) fn create<'b>(
        path: &'a Path,
        tensors: impl IntoIterator<Item = (&'b str, &'b TensorMeta)>,
        metadata: &[(String, String)],
    ) -> Outcome<Self> {
        if check_ending(path)? == Ending::Safetensors {
            let writer = SafetensorsWriter::create(path, tensors, metadata)?;
            return Ok(Self::Safetensors(Box::new(writer)));
        }
        match tensors.into_iter().count() {
            1 => Ok(Self::Npy(path)),
            count => Err(Failure::new(
                Exit::Usage,
                format!(
                    "a .npy file holds one tensor, and {count} are meant; write to a .safetensors file"
                ),
            )),
        }
    }

    /// Writes one of the tensors.
    pub(crate) fn take(&mut self, name: &str, tensor: &Tensor) -> Outcome {
        match self {
            Self::Nothing => Ok(()),
            Self::Safetensors(writer) => Ok(writer.write(name, tensor)?),
            Self::Npy(path) => Ok(write_npy(path, name, tensor)?),
        }
    }

    /// Lets the file appear.
    pub(crate) fn finish(self) -> Outcome {
        match self {
            Self::Safetensors(writer) => Ok(writer.finish()?),
            Self::Nothing | Self::Npy(_) => Ok(()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Safetensors,
    Npy,
}

fn check_ending(path: &Path) -> Outcome<Ending> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("safetensors") => Ok(Ending::Safetensors),
        Some("npy") => Ok(Ending::Npy),
        _ => Err(Failure::new(
            Exit::Usage,
            format!(
                "{}: name a file that ends with .safetensors or .npy",
                path.display()
            ),
        )),
    }
}

/// Leaves out what the file has no place for, and names it. Something must be left of each pattern.
fn leave_out(path: &Path, found: &mut Vec<Found>, patterns: &Patterns) -> Outcome<Vec<String>> {
    let left_out = found.extract_if(.., |found| !is_held(path, found, patterns));
    let left_out: Vec<String> = left_out.map(|found| found.stored.name).collect();
    let names: Vec<&str> = found
        .iter()
        .map(|found| found.stored.name.as_str())
        .collect();
    let empty = patterns.without_match(&names);
    if !left_out.is_empty() && (names.is_empty() || !empty.is_empty()) {
        let of = match empty.is_empty() {
            true => String::new(),
            false => format!(" of {}", empty.join(", ")),
        };
        let text = format!("{}: nothing{of} is left to write", path.display());
        return Err(Failure::new(Exit::Data, text));
    }
    Ok(left_out)
}

/// Whether the file has a place for a tensor. What a pattern has found is left out otherwise; what
/// is spelt out is left to who refuses it.
fn is_held(path: &Path, found: &Found, patterns: &Patterns) -> bool {
    let name = &found.stored.name;
    let refusal = SafetensorsWriter::refusal(name, &found.stored.meta);
    match refusal.filter(|_| !patterns.spell_out(name)) {
        Some(why) => {
            tracing::warn!("tensor {name:?} is left out of {}: {why}", path.display());
            false
        }
        None => true,
    }
}

/// Something must be there, each pattern must match, and no name may be kept by two tasks.
fn check_names(cluster: &Cluster, found: &[Found], patterns: &Patterns) -> Outcome {
    let mut names: Vec<(&str, usize)> = found
        .iter()
        .map(|found| (found.stored.name.as_str(), found.task))
        .collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(cluster.kept_twice(twice[0].0, twice[0].1, twice[1].1));
    }
    let names: Vec<&str> = names.into_iter().map(|(name, _)| name).collect();
    match patterns.without_match(&names).as_slice() {
        [] if names.is_empty() => Err(Failure::new(
            Exit::NoInput,
            "no task keeps a tensor; a file of none would be no backup",
        )),
        [] => Ok(()),
        missing => Err(Failure::new(
            Exit::NoInput,
            format!(
                "no tensor matches {}; `grpcxx list` shows what there is",
                missing.join(", ")
            ),
        )),
    }
}

/// The names that differ; with `whole` also those that only the files have.
fn compare(reference: &Model, pulled: &[(&str, Fingerprint)], whole: bool) -> Outcome<Vec<String>> {
    let mut different = Vec::new();
    for (name, fingerprint) in pulled {
        let is_equal = match reference.entry(name) {
            Some(entry) => Fingerprint::of(name, &reference.read(entry)?) == *fingerprint,
            None => false,
        };
        if !is_equal {
            different.push((*name).to_owned());
        }
    }
    if whole {
        let mut names: Vec<&str> = pulled.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        let missing = reference
            .entries()
            .iter()
            .filter(|entry| names.binary_search(&entry.name.as_str()).is_err());
        different.extend(missing.map(|entry| entry.name.clone()));
    }
    different.sort_unstable();
    Ok(different)
}

fn text(report: &Report) -> String {
    let target = match &report.output {
        Some(path) => format!(" into {path}"),
        None => String::new(),
    };
    let left_out = match report.left_out.len() {
        0 => String::new(),
        count => format!(", without {count} for which it has no type"),
    };
    let verdict = match &report.different {
        Some(different) if different.is_empty() => ", equal to the files",
        Some(_) => ", NOT equal to the files",
        None => "",
    };
    format!(
        "pulled {} tensors, {}, in {:.3} s ({:.2} GB/s, {} calls, {}){target}{left_out}{verdict}\nfingerprint {}",
        report.tensors,
        size(report.bytes),
        report.seconds,
        report.gigabytes_per_second,
        report.calls,
        report.driver,
        report.fingerprint
    )
}
