use std::collections::HashMap;
use std::path::Path;
use std::{fs, io};

use grpcxx_runtime::config::Config;
use grpcxx_runtime::endpoint_map::{EndpointMap, Problem, search, star_port};
use grpcxx_runtime::outgoing_ports_warning;
use serde::Serialize;

use crate::arguments::{CheckArguments, GenerateArguments};
use crate::cluster::cluster_spec;
use crate::output::Output;
use crate::terminal::{Exit, Failure, OrExit, Outcome};

#[derive(Serialize)]
struct Entry<'a> {
    grpc: &'a str,
    star: &'a str,
}

#[derive(Serialize)]
struct Verdict {
    path: String,
    wrong: Vec<String>,
    clashes: Vec<String>,
    odd: Vec<String>,
}

/// Makes a map by a port rule.
pub(crate) fn generate(arguments: &GenerateArguments, config: &Config, output: Output) -> Outcome {
    let cluster = cluster_spec(arguments.cluster_spec.as_deref(), config)?;
    let offset = arguments
        .star_port_offset
        .unwrap_or(config.star_port_offset);
    let mut next_ports: HashMap<String, u16> = HashMap::new();
    let map = EndpointMap::generate(&cluster, |_, host, grpc_port| {
        let Some(first) = arguments.first_star_port else {
            return star_port(grpc_port, offset);
        };
        let next = next_ports.entry(host.to_owned()).or_insert(first);
        let port = *next;
        *next = port.checked_add(1).ok_or_else(|| {
            format!("the ports from {first} on are used up on host {host}; begin lower")
        })?;
        Ok(port)
    })
    .or_exit(Exit::Config)?;
    let entries: Vec<Entry<'_>> = map
        .entries()
        .iter()
        .map(|entry| Entry {
            grpc: &entry.key,
            star: &entry.value,
        })
        .collect();
    let Some(path) = &arguments.output else {
        return output.print(&entries, || map.to_string());
    };
    let attempt = || format!("cannot write {}", path.display());
    write(path, &map.to_string()).or_exit_at(Exit::CannotCreate, attempt)?;
    output.print(&entries, || {
        format!("wrote {} entries to {}", entries.len(), path.display())
    })
}

/// Replaces a file, or that which a link leads to, if there is one, at once; a device or a pipe
/// gets the text.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let target = path.canonicalize();
    let path = target.as_deref().unwrap_or(path);
    if path.exists() && !path.is_file() {
        return fs::write(path, text);
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let file = tempfile::NamedTempFile::new_in(folder.unwrap_or_else(|| ".".as_ref()))?;
    fs::write(file.path(), text)?;
    readable_by_all(&file)?;
    file.persist(path)?;
    Ok(())
}

/// Holds a map against a cluster.
pub(crate) fn check(arguments: &CheckArguments, config: &Config, output: Output) -> Outcome {
    let cluster = cluster_spec(arguments.cluster_spec.as_deref(), config)?;
    let path = search(
        arguments.file.as_deref(),
        config.endpoint_map_directory.as_deref(),
    );
    let map = EndpointMap::read(&path)
        .map_err(|error| Failure::new(Exit::of_map(&error), error.to_string()))?;
    let report = map.check(&cluster);
    let texts = |problems: &[Problem]| problems.iter().map(Problem::to_string).collect();
    let star_ports = map.entries().iter().filter_map(|entry| {
        let (_, port) = entry.value.rsplit_once(':')?;
        port.parse().ok()
    });
    let mut odd: Vec<String> = texts(&report.odd);
    odd.extend(outgoing_ports_warning(&star_ports.collect::<Vec<u16>>()));
    let verdict = Verdict {
        path: path.display().to_string(),
        wrong: texts(&report.wrong),
        clashes: texts(&report.clashes),
        odd,
    };
    output.print(&verdict, || {
        let mut text = String::new();
        for (kind, problems) in [
            ("wrong", &verdict.wrong),
            ("clash", &verdict.clashes),
            ("odd", &verdict.odd),
        ] {
            for problem in problems {
                text.push_str(&format!("{kind}: {}: {problem}\n", verdict.path));
            }
        }
        if text.is_empty() {
            text = format!(
                "{} serves all {} tasks\n",
                verdict.path,
                cluster.total_tasks()
            );
        }
        text
    })?;
    match verdict.wrong.len() + verdict.clashes.len() {
        0 => Ok(()),
        count => Err(Failure::new(
            Exit::Config,
            format!(
                "{} does not serve this cluster: {count} problems",
                verdict.path
            ),
        )),
    }
}

fn readable_by_all(file: &tempfile::NamedTempFile) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644))
}
