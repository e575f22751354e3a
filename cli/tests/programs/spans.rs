//! OpenTelemetry's variables, which may be meant for other programs: they keep no program of these
//! from its work.

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use super::launch::launch;
use super::ports::held_port;
use super::{SERVER, TOOL, options, run, start, text};

/// Each is set for programs that can follow it.
const FOR_OTHERS: [&[(&str, &str)]; 5] = [
    &[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4317")],
    &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317")],
    &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://")],
    &[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
    ],
    &[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
    ],
];

fn write_map(folder: &Path, variables: &[(&str, &str)]) -> Output {
    let arguments = "endpoint-map generate --cluster-spec ps|h:2222 -o map";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    run(TOOL, folder, &arguments, variables)
}

fn warnings(output: &Output) -> usize {
    text(&output.stderr).matches("no spans are sent").count()
}

#[test]
fn variables_for_other_programs_cost_one_warning() {
    let folder = tempfile::tempdir().unwrap();
    for variables in FOR_OTHERS {
        let output = write_map(folder.path(), variables);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{variables:?}: {said}");
        assert_eq!(warnings(&output), 1, "{variables:?}: {said}");
        std::fs::remove_file(folder.path().join("map")).unwrap();
    }
    let none = [FOR_OTHERS[0][0], ("OTEL_TRACES_EXPORTER", "none")];
    let output = write_map(folder.path(), &none);
    assert_eq!(
        (text(&output.stderr), output.status.code()),
        (String::new(), Some(0))
    );
}

#[test]
fn a_launcher_starts_programs_that_follow_other_variables() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo to=$OTEL_EXPORTER_OTLP_ENDPOINT";
    let mut command = launch(folder.path(), &["-n", "1", "--", "sh", "-c", script]);
    let output = command
        .envs(FOR_OTHERS[3].iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("to=http://collector:4318"));
    assert_eq!(warnings(&output), 1, "{}", text(&output.stderr));
}

#[test]
fn variables_of_our_own_are_followed_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(SERVER, folder.path(), &[], &[("GRPCXX_LOG_FORMAT", "xml")]);
    assert_eq!(output.status.code(), Some(78), "{}", text(&output.stderr));
}

#[test]
fn a_collector_that_is_away_costs_the_spans_and_two_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = start(options(1, 0, &[]));
    // It is held and nobody listens there.
    let collector = format!("http://127.0.0.1:{}", held_port());
    let map = cluster.endpoint_map();
    let map = map.to_str().unwrap();
    let arguments = [
        "list",
        "--cluster-spec",
        cluster.cluster_spec(),
        "--endpoint-map",
        map,
    ];
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", &collector[..])];
    let begun = Instant::now();
    let output = run(TOOL, folder.path(), &arguments, &variables);
    let (took, said) = (begun.elapsed(), text(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(said.contains("telemetry data will be lost"), "{said}");
    // Two seconds for the collector, and much for a busy machine.
    assert!(took < Duration::from_secs(20), "{took:?}: {said}");
    cluster.stop(Duration::from_secs(10)).unwrap();
}
