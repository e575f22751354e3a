//! What a user is told whom the system refuses something. Root, whom it refuses little, takes the
//! rights of another user for that.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use super::{TOOL, text};

/// A user that nobody is, so that only the processes of these tests count for it.
const USER: &str = "61184";

/// Runs a script, whose `$0` is `program`, without the rights of root. `None`, loudly, where this
/// user cannot give them up, or the other one cannot run the programs.
fn unprivileged(folder: &Path, script: &str, program: &str) -> Option<Output> {
    let mut command = match rustix::process::geteuid().is_root() {
        false => Command::new("sh"),
        true => {
            // The folders of tests are their user's own.
            fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
            let mut command = Command::new("setpriv");
            command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "sh"]);
            command
        }
    };
    command.current_dir(folder).env_remove("TF_CONFIG");
    let script = format!("\"$0\" --version >/dev/null || exit 99; {script}");
    let output = command.args(["-c", &script, program]).output();
    let output = output
        .ok()
        .filter(|output| output.status.code() != Some(99));
    if output.is_none() {
        println!("SKIPPED: another user cannot run {program} here");
    }
    output
}

#[test]
fn threads_that_are_not_to_be_had_are_the_system_s_refusal() {
    let folder = tempfile::tempdir().unwrap();
    for limit in 5..=8 {
        let script = format!("exec prlimit --nproc={limit} \"$0\" list --star 127.0.0.1:1");
        let Some(output) = unprivileged(folder.path(), &script, TOOL) else {
            return;
        };
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(71), "{limit}: {err}");
    }
}

#[test]
fn files_of_each_kind_that_may_not_be_read_are_a_lack_of_permission() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let closed = path("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("file"), "{}").unwrap();
    fs::write(path("secret"), "{}").unwrap();
    for name in ["closed", "secret"] {
        fs::set_permissions(path(name), Permissions::from_mode(0o000)).unwrap();
    }
    let mut faults = Vec::new();
    for file in ["secret", "closed/file"] {
        for arguments in [
            format!("list --cluster-spec {file}"),
            format!("list --cluster-spec 'ps|h:1' --endpoint-map {file}"),
            format!("endpoint-map check {file} --cluster-spec 'ps|h:1'"),
            format!("push {file} --star h:1"),
        ] {
            let script = format!("exec \"$0\" {arguments}");
            let Some(output) = unprivileged(folder.path(), &script, TOOL) else {
                return;
            };
            let err = text(&output.stderr);
            if output.status.code() != Some(77) || !err.contains(file) {
                faults.push(format!("{arguments}: {:?}, {err}", output.status.code()));
            }
        }
    }
    // Else the folder could not be removed.
    fs::set_permissions(closed, Permissions::from_mode(0o700)).unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
