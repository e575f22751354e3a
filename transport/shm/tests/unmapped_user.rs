//! A process whose user has no number in its namespace: the kernel shows all such as one.
#![allow(clippy::print_stderr, reason = "says what was left out")]

use std::process::Command;

use grpcxx_shm::{ShmMedium, ShmOptions};

#[test]
fn a_user_without_a_number_proves_nothing() {
    let probe = Command::new("unshare")
        .args(["--user", "id", "-u"])
        .output();
    if !probe.is_ok_and(|probe| probe.status.success() && probe.stdout == b"65534\n") {
        eprintln!("SKIPPED: this process may not have a namespace of users");
        return;
    }
    let ran = Command::new("unshare")
        .arg("--user")
        .arg(std::env::current_exe().unwrap())
        .args(["unmapped", "--exact", "--nocapture"])
        .env(ROLE, "unmapped")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success() && output.contains("1 passed"),
        "{output}"
    );
}

/// Not a test of its own: what the process does that the test above starts.
#[test]
fn unmapped() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let refused = ShmMedium::open(ShmOptions::default()).err();
    let text = refused.expect("it shares memory with anybody").to_string();
    for part in ["user 65534", "proves nothing", "run it as another user"] {
        assert!(text.contains(part), "{text}");
    }
}

const ROLE: &str = "GRPCXX_TEST_ROLE";
