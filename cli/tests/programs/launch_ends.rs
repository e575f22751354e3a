//! What `grpcxx launch` leaves behind when the processes that it has started end: nothing.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::launch::{as_rank, launch};
use super::ports::held_port;
use super::text;

/// The numbers of the processes of a group that have not ended.
fn living(group: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = processes.filter_map(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let words: Vec<String> = stat
            .rsplit_once(')')?
            .1
            .split(' ')
            .map(str::to_owned)
            .collect();
        (words[1] != "Z" && words[3] == group).then(|| entry.file_name().into_string().unwrap())
    });
    stats.collect()
}

/// The text of a file of this folder, once it has a line.
fn line_of(folder: &Path, name: &str) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let text = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        if let Some(line) = text.strip_suffix('\n') {
            return line.to_owned();
        }
        assert!(Instant::now() < end, "{name} was not written");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A script that writes its group, starts `other` in it, waits until that has written a line to
/// `begun`, and goes on with `rest`.
fn with_another(other: &str, rest: &str) -> String {
    format!("echo $$ >group; ({other}) & until [ -s begun ]; do sleep 0.01; done; {rest}")
}

const DEAF: &str = "trap '' TERM; echo >begun; exec sleep 300";
const SAVES: &str = "trap 'sleep 2; echo saved >saved; exit' TERM; echo >begun; sleep 300 & wait";

fn begin(folder: &Path, arguments: &[&str], script: &str) -> Child {
    // Who runs tests in the background may have signals ignored, which programs inherit.
    let launcher = launch(folder, &[arguments, &["--", "sh", "-c", script]].concat());
    let mut command = Command::new("env");
    command
        .args(["--default-signal=HUP,INT,TERM"])
        .arg(launcher.get_program())
        .args(launcher.get_args())
        .current_dir(folder);
    for (name, value) in launcher.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn what_a_process_has_started_ends_with_it() {
    for (rest, code) in [("exit 3", 70), ("exit 0", 0)] {
        let folder = tempfile::tempdir().unwrap();
        let script = with_another(DEAF, rest);
        let output = begin(folder.path(), &[], &script)
            .wait_with_output()
            .unwrap();
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{err}");
        assert_eq!(living(&line_of(folder.path(), "group")), [""; 0], "{err}");
    }
}

#[test]
fn what_a_process_has_started_ends_while_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let first = with_another(DEAF, "exit 0");
    let script = format!(
        "case $TF_CONFIG in *'\"index\":1'*) until [ -s over ]; do sleep 0.01; done;; *) {first};; esac"
    );
    let launcher = begin(folder.path(), &["-n", "2"], &script);
    let group = line_of(folder.path(), "group");
    let end = Instant::now() + PATIENCE;
    while !living(&group).is_empty() {
        assert!(Instant::now() < end, "{:?} live", living(&group));
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::write(folder.path().join("over"), "\n").unwrap();
    assert!(launcher.wait_with_output().unwrap().status.success());
}

#[test]
fn a_launcher_that_is_stopped_waits_for_all_that_save_what_they_have() {
    let folder = tempfile::tempdir().unwrap();
    let launcher = begin(folder.path(), &[], &with_another(SAVES, "sleep 300 & wait"));
    let group = line_of(folder.path(), "group");
    line_of(folder.path(), "begun");
    kill_process(Pid::from_child(&launcher), Signal::TERM).unwrap();
    let output = launcher.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{}", text(&output.stderr));
    assert_eq!(living(&group), [""; 0]);
    assert!(folder.path().join("saved").exists());
}

/// The old ones would still have their ports, and write what the new ones read.
#[test]
fn a_job_starts_again_when_all_that_it_had_started_have_ended() {
    let folder = tempfile::tempdir().unwrap();
    let first = with_another(SAVES, "exit 3");
    let script = format!("if [ -e group ]; then [ -e saved ]; else {first}; fi");
    let launcher = begin(folder.path(), &["--restarts", "1"], &script);
    let output = launcher.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// One that starts again would meet those at their ports that have not stopped yet.
#[test]
fn ranks_start_again_when_those_of_all_launchers_have_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let port = held_port();
    let script = "if [ -e first-$RANK ]; then echo begins >>runs; exit; fi
        [ $RANK -eq 2 ] && long=1 || long=0
        trap 'sleep $long; echo ended >>runs; exit' TERM
        echo >first-$RANK
        if [ $RANK -eq 1 ]; then
            until [ -e first-0 ] && [ -e first-2 ]; do sleep 0.01; done; exit 3
        fi
        sleep 300 & wait";
    let rank = |rank: &str| {
        let mut launcher = launch(folder.path(), &["--ps", "0", "--restarts", "1"]);
        launcher.args(["--timeout", "60", "--", "sh", "-c", script]);
        as_rank(&mut launcher, (rank, 3), port)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    for launcher in ["0", "1", "2"].map(rank) {
        let output = launcher.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let runs = std::fs::read_to_string(folder.path().join("runs")).unwrap();
    let runs: Vec<&str> = runs.lines().collect();
    assert_eq!(runs, ["ended", "ended", "begins", "begins", "begins"]);
}

const PATIENCE: Duration = Duration::from_secs(30);
