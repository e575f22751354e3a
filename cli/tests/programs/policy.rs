//! Who may do what in a cluster, as variables alone say it.

use std::path::Path;
use std::process::Output;

use grpcxx_cli::local::LocalCluster;
use serde_json::Value;

use super::authority::Authority;
use super::{SERVER, TOOL, options, run, start, text, write_model};

/// Runs `grpcxx --json` against `cluster` with these variables.
fn ask(
    cluster: &LocalCluster,
    folder: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Output {
    let map = cluster.endpoint_map();
    let mut all = vec!["--json"];
    all.extend(arguments);
    all.extend(["--cluster-spec", cluster.cluster_spec()]);
    all.extend(["--endpoint-map", map.to_str().unwrap()]);
    run(TOOL, folder, &all, variables)
}

#[test]
fn a_cluster_with_a_token_serves_those_who_have_it() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.safetensors");
    write_model(&model);
    let file = folder.path().join("token");
    std::fs::write(&file, "the key of this cluster alone\n").unwrap();
    let file = file.to_str().unwrap();
    let mut options = options(2, 1, std::slice::from_ref(&model));
    let variable = ("GRPCXX_TOKEN_FILE".to_owned(), file.to_owned());
    options.environment.push(variable);
    let cluster = start(options);
    let ask = |arguments: &[&str], variables: &[(&str, &str)]| {
        ask(&cluster, folder.path(), arguments, variables)
    };

    let strangers = [
        &[][..],
        &[("GRPCXX_TOKEN", "the key of another cluster")][..],
    ];
    for variables in strangers {
        for arguments in [&["list"][..], &["push", "model.safetensors"][..]] {
            let refused = ask(arguments, variables);
            let said = text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(77), "{arguments:?}: {said}");
            assert!(said.contains("GRPCXX_TOKEN_FILE"), "{said}");
        }
    }
    let token = [("GRPCXX_TOKEN_FILE", file)];
    for arguments in [&["push", "model.safetensors"][..], &["list"][..]] {
        let done = ask(arguments, &token);
        assert!(done.status.success(), "{}", text(&done.stderr));
    }
    let status = ask(&["status"], &token);
    assert!(status.status.success(), "{}", text(&status.stderr));
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let policy = status["tasks"][0]["policy"].as_str().unwrap();
    let wanted = "allow=all token=set admin=none members=none others=nothing";
    assert_eq!(policy, wanted);
}

#[test]
fn a_token_that_is_none_ends_the_start_and_is_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = ["--cluster-spec", "ps|127.0.0.1:1,worker|127.0.0.1:2"];
    let task = ["--job-name", "ps", "--task-index", "0"];
    let arguments: Vec<&str> = cluster.into_iter().chain(task).collect();
    let cases = [
        (
            "GRPCXX_TOKEN",
            "too short",
            "GRPCXX_TOKEN holds a token of 9 bytes",
        ),
        (
            "GRPCXX_TOKEN_FILE",
            "/nowhere/token",
            "/nowhere/token cannot be read",
        ),
        ("GRPCXX_ALLOW", "10.0.0.0/33", "names no addresses"),
    ];
    for (name, value, wanted) in cases {
        let ended = run(super::SERVER, folder.path(), &arguments, &[(name, value)]);
        let said = text(&ended.stderr);
        assert!(!ended.status.success(), "{name}");
        assert!(said.contains(wanted), "{name}: {said}");
        assert!(!said.contains("too short"), "{said}");
    }
}

#[test]
fn the_tool_works_with_the_certificate_of_a_task() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.safetensors");
    write_model(&model);
    let authority = Authority::new();
    authority.sign("ps", "grpcxx://c/ps/0");
    let file = |name: &str| authority.folder.path().join(name).display().to_string();
    let files = [
        ("GRPCXX_TLS_CERT", file("ps.pem")),
        ("GRPCXX_TLS_KEY", file("ps.key")),
        ("GRPCXX_TLS_CA", file("ca.pem")),
    ];
    let mut options = options(1, 0, std::slice::from_ref(&model));
    let of_task = files
        .iter()
        .map(|(name, file)| ((*name).to_owned(), file.clone()));
    options.environment.extend(of_task);
    let cluster = start(options);
    let variables: Vec<(&str, &str)> = files.iter().map(|(name, file)| (*name, &**file)).collect();
    for arguments in [&["list"][..], &["push", "model.safetensors"][..]] {
        let done = ask(&cluster, folder.path(), arguments, &variables);
        assert!(
            done.status.success(),
            "{arguments:?}: {}",
            text(&done.stderr)
        );
    }
}

#[test]
fn variables_that_say_nothing_sensible_are_told_apart_from_a_system_that_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = [
        ("GRPCXX_TOKEN_FILE", "/nowhere/token"),
        ("GRPCXX_TOKEN", "short"),
        ("GRPCXX_TLS", "require"),
    ];
    for variable in wrong {
        let list = ["list", "--star", "127.0.0.1:1"];
        let serve = ["--cluster-spec", "ps|127.0.0.1:1", "--protocol", "grpc"];
        let serve = [&serve[..], &["--job-name", "ps", "--task-index", "0"]].concat();
        for (program, arguments) in [(TOOL, &list[..]), (SERVER, &serve[..])] {
            let ended = run(program, folder.path(), arguments, &[variable]);
            let said = text(&ended.stderr);
            assert_eq!(ended.status.code(), Some(78), "{variable:?}: {said}");
            assert!(said.contains(variable.0), "{said}");
        }
    }
}
