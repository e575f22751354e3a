//! Signals that reach the programs before what they start is there.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::launch::{NAMESPACE, as_rank, launch, may_have_a_namespace};
use super::ports::held_port;
use super::{SERVER, TOOL, text};

/// Waits until `is_so`, which `what` says.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not yet: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn until_listens(port: u16) {
    until("the rendezvous listens", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
}

/// What a program says that ends within the patience.
fn output_in_time(mut program: Child) -> Output {
    until("the program has ended", || {
        program.try_wait().unwrap().is_some()
    });
    program.wait_with_output().unwrap()
}

fn of_two(command: &mut Command, rank: &str, port: u16) -> Child {
    as_rank(command, (rank, 2), port)
        .env_remove("TF_CONFIG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_launcher_ends_by_a_signal_while_it_waits_for_ranks() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let port = held_port();
        let mut command = launch(Path::new("/"), &["--", "true"]);
        let launcher = of_two(&mut command, "0", port);
        until_listens(port);
        kill_process(Pid::from_child(&launcher), signal).unwrap();
        let output = output_in_time(launcher);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{err}");
    }
}

/// The kernel keeps signals from the first process of a container that has no handler for them.
#[test]
fn a_server_that_is_the_first_process_ends_by_a_signal_before_it_is_ready() {
    if !may_have_a_namespace() {
        return;
    }
    let port = held_port();
    let mut command = Command::new("unshare");
    command.args(NAMESPACE).args([SERVER, "--ps", "1"]);
    let unshare = of_two(&mut command, "0", port);
    until_listens(port);
    let number = unshare.id();
    let path = format!("/proc/{number}/task/{number}/children");
    let server: i32 = std::fs::read_to_string(path)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    kill_process(Pid::from_raw(server).unwrap(), Signal::TERM).unwrap();
    let output = output_in_time(unshare);
    let log = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(log.contains("stopped before it was ready"), "{log}");
}

/// As [`super::LocalCluster`] wants it of a program that was started and then lost.
#[test]
fn a_server_ends_with_its_input_before_it_is_ready() {
    let port = held_port();
    let mut command = Command::new(SERVER);
    command.args(["--ps", "1", "--until-stdin-closes"]);
    let output = output_in_time(of_two(&mut command, "0", port));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_cluster_on_this_machine_leaves_nothing_when_a_signal_comes_before_it_is_ready() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let temporary = folder.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let server = folder.path().join("never-ready");
    let began = folder.path().join("began");
    let script = format!("#!/bin/sh\necho >{}\nexec sleep 300\n", began.display());
    std::fs::write(&server, script).unwrap();
    std::fs::set_permissions(&server, std::fs::Permissions::from_mode(0o755)).unwrap();
    // Who runs tests in the background may have SIGINT ignored, which programs inherit.
    let local = Command::new("env")
        .args([
            "--default-signal=INT",
            TOOL,
            "local",
            "--ps",
            "1",
            "--worker",
            "0",
            "--server",
        ])
        .arg(&server)
        .env("TMPDIR", &temporary)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the task has begun", || began.exists());
    kill_process(Pid::from_child(&local), Signal::INT).unwrap();
    let output = output_in_time(local);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
}

/// Less than a cluster or a rendezvous takes that gives up by itself.
const PATIENCE: Duration = Duration::from_secs(20);
