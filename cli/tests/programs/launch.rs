//! `grpcxx launch` on one host, and as two ranks that find each other.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::ports::held_port;
use super::{SERVER, TOOL, text};

/// `grpcxx launch` without what a launcher around the tests may have set.
pub(super) fn launch(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(TOOL);
    command.arg("launch").args(arguments).current_dir(folder);
    let prefixes = ["OMPI_", "PMI", "PRTE_", "SLURM_", "LWS_", "JOB_COMPLETION_"];
    let whole = [
        "TF_CONFIG",
        "TF_SEASTAR_ENDPOINT_MAP_PATH",
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
    ];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if whole.contains(&&*text) || prefixes.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Tells a program by the variables of PyTorch which rank of `size` it is, with rank 0 at `port`.
pub(super) fn as_rank<'a>(
    command: &'a mut Command,
    (rank, size): (&str, u32),
    port: u16,
) -> &'a mut Command {
    command
        .env("RANK", rank)
        .env("WORLD_SIZE", size.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", (port - 1).to_string())
}

fn run(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    launch(folder.path(), arguments).output().unwrap()
}

#[test]
fn each_process_is_told_its_task_and_ends_with_the_others() {
    // Parameter servers run for ever, and end when the workers are done.
    let script = "case $TF_CONFIG in *'\"type\":\"ps\"'*) exec sleep 600;; esac
                  cat $TF_SEASTAR_ENDPOINT_MAP_PATH/.endpoint_map | wc -l; wc -c <$GRPCXX_TOKEN_FILE; echo $TF_CONFIG";
    let started = Instant::now();
    let output = run(&["-n", "3", "--ps", "1", "--token", "--", "sh", "-c", script]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    for line in ["worker:0 | 3\n", "worker:1 | 3\n", "worker:0 | 64\n"] {
        assert!(out.contains(line), "{line:?} in {out}");
    }
    assert!(
        out.contains("\"task\":{\"index\":1,\"type\":\"worker\"}"),
        "{out}"
    );
    assert!(!out.contains("ps:0"), "{out}");
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn rank_0_reads_what_the_launcher_is_given_and_the_others_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = launch(
        folder.path(),
        &["-n", "2", "--", "sh", "-c", "cat; echo end"],
    );
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut launcher = command.spawn().unwrap();
    launcher
        .stdin
        .take()
        .unwrap()
        .write_all(b"a line\n")
        .unwrap();
    let output = launcher.wait_with_output().unwrap();
    let out = text(&output.stdout);
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    let expected = ["worker:0 | a line", "worker:0 | end", "worker:1 | end"];
    assert_eq!(lines, expected);
}

#[test]
fn tasks_reach_each_other_without_the_proxy_for_the_web() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo list=$no_proxy";
    let mut command = launch(folder.path(), &["-n", "2", "--", "sh", "-c", script]);
    for name in ["grpc_proxy", "https_proxy", "no_grpc_proxy"] {
        command.env_remove(name);
    }
    command.env("http_proxy", "http://127.0.0.1:9");
    command.env("no_proxy", "localhost");
    let output = command.output().unwrap();
    let out = text(&output.stdout);
    assert_eq!(
        out.matches("list=localhost,127.0.0.1\n").count(),
        2,
        "{out}"
    );
}

#[test]
fn the_first_failure_ends_all_and_its_last_lines_are_told() {
    let script =
        "case $TF_CONFIG in *'\"index\":1'*) echo 'out of luck' >&2; exit 3;; esac; exec sleep 600";
    let output = run(&["-n", "2", "--", "sh", "-c", script]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(70), "{err}");
    let words = err
        .split_once("grpcxx: rank 1 (worker:1) ended (exit status: 3)")
        .unwrap()
        .1;
    assert!(words.contains("out of luck"), "{err}");
}

#[test]
fn a_job_is_started_again_as_often_as_asked() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo run >>runs; [ $(wc -l <runs) -ge 3 ]";
    let output = launch(
        folder.path(),
        &["--restarts", "2", "--", "sh", "-c", script],
    )
    .output()
    .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(
        std::fs::read_to_string(folder.path().join("runs")).unwrap(),
        "run\n".repeat(3)
    );
}

#[test]
fn lines_go_to_files_if_asked() {
    let folder = tempfile::tempdir().unwrap();
    let output = launch(
        folder.path(),
        &[
            "-n",
            "2",
            "--output",
            "logs",
            "--",
            "sh",
            "-c",
            "echo out; echo err >&2",
        ],
    )
    .output()
    .unwrap();
    assert!(output.status.success() && output.stdout.is_empty());
    for name in ["worker-0", "worker-1"] {
        let log = std::fs::read_to_string(folder.path().join(format!("logs/{name}.log"))).unwrap();
        assert!(log.contains("out\n") && log.contains("err\n"), "{log}");
    }
}

#[test]
fn ranks_of_a_launcher_find_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let port = held_port();
    let rank = |rank: &str, script: &str| {
        let mut launcher = launch(
            folder.path(),
            &["--ps", "1", "--timeout", "60", "--", "sh", "-c", script],
        );
        as_rank(&mut launcher, (rank, 2), port)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let worker = rank("1", "echo $TF_CONFIG");
    let ps = rank("0", "exec sleep 600");
    let worker = worker.wait_with_output().unwrap();
    let ps = ps.wait_with_output().unwrap();
    assert!(worker.status.success(), "{}", text(&worker.stderr));
    assert!(ps.status.success(), "{}", text(&ps.stderr));
    assert!(text(&worker.stdout).contains("worker:0 | {\"cluster\":{\"ps\":[\"127.0.0.1:"));

    let failing = rank("1", "echo no luck >&2; exit 3");
    let ps = rank("0", "exec sleep 600").wait_with_output().unwrap();
    assert_eq!(failing.wait_with_output().unwrap().status.code(), Some(70));
    assert_eq!(ps.status.code(), Some(70));
    let err = text(&ps.stderr);
    assert!(
        err.contains("rank 1 (worker:0)") && err.contains("no luck"),
        "{err}"
    );
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let port = held_port();
    let mut launcher = launch(folder.path(), &["--timeout", "0.5", "--", "true"]);
    let output = as_rank(&mut launcher, ("0", 3), port).output().unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{err}");
    assert!(err.contains("ranks 1-2 of 3"), "{err}");
}

#[test]
fn what_cannot_be_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let half = launch(folder.path(), &["--", "true"])
        .env("PMI_RANK", "1")
        .output()
        .unwrap();
    assert_eq!(half.status.code(), Some(78));
    assert!(text(&half.stderr).contains("PMI_SIZE"));
    let many = run(&["-n", "1", "--ps", "2", "--", "true"]);
    assert_eq!(many.status.code(), Some(78));
    let none = run(&["--", "no-such-program"]);
    assert_eq!(none.status.code(), Some(66));
    assert!(text(&none.stderr).contains("no-such-program"));
    assert_eq!(run(&["-n", "2"]).status.code(), Some(64));
}

#[test]
fn servers_find_their_cluster() {
    let map = "$TF_SEASTAR_ENDPOINT_MAP_PATH/.endpoint_map";
    let script = format!(
        "case $TF_CONFIG in *'\"type\":\"ps\"'*) exec {SERVER};; esac
         exec {TOOL} status --star $(sed -n '1s/.*=//p' {map})"
    );
    let folder = tempfile::tempdir().unwrap();
    let output = launch(
        folder.path(),
        &["-n", "2", "--ps", "1", "--", "sh", "-c", &script],
    )
    .env("GRPCXX_SHARDS", "1")
    .env("GRPCXX_ARENA_BYTES", "64MiB")
    .output()
    .unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(
        out.contains("ps:0     | grpcxx-server ready job=ps task=0"),
        "{out}"
    );
}

#[test]
fn servers_of_an_allocation_meet_by_themselves() {
    let port = held_port();
    let server = |rank: &str| {
        Command::new(SERVER)
            .args(["--ps", "1", "--until-stdin-closes"])
            .args(["--rendezvous", &format!("127.0.0.1:{port}")])
            .env_remove("TF_CONFIG")
            .env("RANK", rank)
            .env("WORLD_SIZE", "2")
            .env("GRPCXX_SHARDS", "1")
            .env("GRPCXX_ARENA_BYTES", "64MiB")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut servers = ["0", "1"].map(server);
    let mut star = Vec::new();
    for (server, task) in servers.iter_mut().zip(["ps task=0", "worker task=0"]) {
        let mut ready = String::new();
        let output = server.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut ready).unwrap();
        let begin = format!("grpcxx-server ready job={task} ");
        assert!(ready.starts_with(&begin), "{ready}");
        star.extend(
            ready
                .split(' ')
                .find_map(|word| word.strip_prefix("star="))
                .map(str::to_owned),
        );
    }
    for address in star {
        let output = Command::new(TOOL)
            .args(["status", "--star", address.trim()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    for mut server in servers {
        drop(server.stdin.take());
        assert!(server.wait().unwrap().success());
    }
}

#[test]
fn a_server_of_an_allocation_is_told_its_task_by_the_launcher_only() {
    let output = Command::new(SERVER)
        .args(["--job-name", "ps", "--task-index", "0"])
        .env_remove("TF_CONFIG")
        .env("RANK", "0")
        .env("WORLD_SIZE", "2")
        .output()
        .unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{err}");
    assert!(err.contains("--job-name"), "{err}");
}

/// What makes a program the first process of a namespace of processes.
pub(super) const NAMESPACE: [&str; 6] = [
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--mount-proc",
    "--kill-child",
];

pub(super) fn may_have_a_namespace() -> bool {
    let probe = Command::new("unshare").args(NAMESPACE).arg("true").output();
    let may = probe.is_ok_and(|probe| probe.status.success());
    if !may {
        println!("SKIPPED: this process may not have a namespace of processes");
    }
    may
}

/// In a container it is the first process, and what programs leave behind becomes its children.
#[test]
fn the_first_process_collects_what_programs_leave_behind() {
    if !may_have_a_namespace() {
        return;
    }
    let script = "for _ in 1 2 3; do (sleep 0.1 &); done; left=3
                  for _ in $(seq 200); do
                      [ $left -gt 0 ] || break
                      sleep 0.1; left=$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c '(sleep) Z')
                  done
                  echo \"left: $left\"";
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(NAMESPACE)
        .args([TOOL, "launch", "-n", "1", "--", "sh", "-c", script])
        .current_dir(folder.path())
        .env_remove("TF_CONFIG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && out.contains("left: 0"),
        "{out}{err}"
    );
}
