//! `grpcxx launch` where `TF_CONFIG` says which task a process is.

use std::path::Path;

use super::launch::launch;
use super::text;

/// Launches a program that prints its `TF_CONFIG`; standard output, standard error, exit code.
fn told(tf_config: &str, arguments: &[&str]) -> (String, String, Option<i32>) {
    let mut all = arguments.to_vec();
    all.extend(["--", "sh", "-c", "echo \"$TF_CONFIG\""]);
    let output = launch(Path::new("."), &all)
        .env("TF_CONFIG", tf_config)
        .output()
        .unwrap();
    (
        text(&output.stdout),
        text(&output.stderr),
        output.status.code(),
    )
}

#[test]
fn evaluators_and_parts_of_a_cluster_run_as_they_are_told() {
    for (task, tf_config) in [
        (
            "evaluator:0",
            r#"{"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}"#,
        ),
        (
            "worker:3",
            r#"{"cluster": {"worker": {"3": "w:1"}}, "task": {"type": "worker", "index": 3}}"#,
        ),
    ] {
        let (out, err, code) = told(tf_config, &[]);
        assert_eq!(code, Some(0), "{err}");
        assert_eq!(out, format!("{task} | {tf_config}\n"));
        assert_eq!(err, "");
    }
}

#[test]
fn what_tf_config_lacks_and_programs_read_is_added() {
    let (out, err, code) = told(r#"{"cluster": {"worker": ["a:1"]}}"#, &[]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains(r#""task":{"index":0,"type":"worker"}"#),
        "{out}"
    );
    let ps = r#"{"cluster":{"worker":{},"ps":["p1:1"]},"task":{"type":"ps","index":1}}"#;
    let (out, err, code) = told(ps, &[]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains(r#""ps":{"1":"p1:1"}"#), "{out}");
}

#[test]
fn a_program_without_a_cluster_runs_alone_and_that_is_said() {
    for (tf_config, name) in [
        (
            r#"{"task": {"type": "worker", "index": 0}}"#,
            "worker:0 runs alone",
        ),
        ("{}", "program runs alone"),
    ] {
        let (out, err, code) = told(tf_config, &[]);
        assert_eq!(code, Some(0), "{err}");
        assert!(out.ends_with(&format!(" | {tf_config}\n")), "{out}");
        assert_eq!(err.matches(name).count(), 1, "{err}");
    }
    let (_, err, code) = told("{}", &["-n", "2"]);
    assert_eq!(code, Some(78), "{err}");
    assert!(
        err.contains("-n is 2") && err.contains("--launcher local"),
        "{err}"
    );
}

#[test]
fn ranks_of_others_count_where_tf_config_has_no_cluster() {
    let output = launch(Path::new("."), &["--timeout", "20", "--", "true"])
        .env("TF_CONFIG", "{}")
        .env("PRTE_LAUNCHED", "1")
        .env("PMIX_RANK", "0")
        .env("PMIX_NAMESPACE", "prterun-localhost-17@1")
        .output()
        .unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{err}");
    assert!(err.contains("PRRTE does not say how many"), "{err}");
    let line = "PRRTE (rank 0) says which process this is; set and not used: TF_CONFIG";
    assert_eq!(err.matches(line).count(), 1, "{err}");
}
