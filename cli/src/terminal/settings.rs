use std::io::Read;
use std::path::Path;

use grpcxx_runtime::cluster::{ClusterSpec, TEXT_BYTES_MAX};
use grpcxx_runtime::config::Config;
use grpcxx_runtime::open_regular_file;
use grpcxx_telemetry::{Settings as TelemetrySettings, Telemetry};

use super::{Exit, Failure, OrExit, Outcome};

/// Reads all settings from the environment, and what is odd about it.
pub(crate) fn read_config() -> Outcome<(Config, Vec<String>)> {
    let (config, warnings) = Config::from_env().or_exit(Exit::Config)?;
    let warnings = warnings.into_iter().map(|warning| warning.message);
    Ok((config, warnings.collect()))
}

/// Begins to export the spans of this program's calls, if OpenTelemetry's variables name a
/// collector. Those variables are often set for other programs, or for those that this one starts,
/// so what is not supported of them stops nothing: it is one more of the `warnings`.
pub(crate) fn start_telemetry(program: &str, warnings: &mut Vec<String>) -> Option<Telemetry> {
    let lookup = |name: &str| std::env::var(name).ok();
    let started = match TelemetrySettings::from_lookup(lookup, program) {
        Ok(None) => return None,
        Ok(Some(settings)) => Telemetry::start(&settings).map_err(|error| error.to_string()),
        Err(bad) => Err(bad.to_string()),
    };
    started
        .map_err(|problem| warnings.push(format!("no spans are sent: {problem}")))
        .ok()
}

/// Reads a cluster: TensorFlow's syntax if there is a `|` in it, else the name of a JSON file.
pub(crate) fn read_cluster(spec: &str) -> Outcome<ClusterSpec> {
    if spec.contains('|') {
        return ClusterSpec::parse(spec).or_exit(Exit::Config);
    }
    let mut text = String::new();
    let read = open_regular_file(Path::new(spec)).and_then(|file| {
        file.take(TEXT_BYTES_MAX as u64 + 1)
            .read_to_string(&mut text)
    });
    if let Err(error) = read {
        return match Exit::of_file(error.kind(), Exit::Config) {
            Exit::NoInput => Err(Failure::new(
                Exit::NoInput,
                format!(
                    "--cluster-spec is {spec:?}, which is no file and has no `|`; write 'job|host:port;host:port,job2|host:port' or name a JSON file"
                ),
            )),
            exit => Err(error).or_exit_at(exit, || format!("cannot read the cluster spec {spec}")),
        };
    }
    ClusterSpec::from_json(&text).or_exit_at(Exit::Config, || spec.to_owned())
}
