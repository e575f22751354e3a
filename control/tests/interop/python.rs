//! A python with gRPC's own client, below the target directory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::fs::{FlockOperation, flock};

/// A python that has the packages, or why there is none. Several tests may ask for it at a time.
pub(crate) fn grpcio_python() -> Result<PathBuf, String> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop-python");
    let lock = File::create(home.with_extension("lock")).map_err(|error| error.to_string())?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| error.to_string())?;
    let python = home.join("bin/python");
    let complete = Command::new(&python)
        .args(["-c", "import grpc, grpc_health.v1, grpc_reflection.v1alpha"])
        .output();
    if complete.is_ok_and(|output| output.status.success()) {
        return Ok(python);
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&home))?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet"])
        .args(["--retries", "1", "--timeout", "15"])
        .args(["--disable-pip-version-check", "--only-binary", ":all:"])
        .args(REQUIREMENTS))?;
    Ok(python)
}

/// Says what was not tested, and why.
#[expect(clippy::print_stderr, reason = "what is skipped says so")]
pub(crate) fn skip(what: &str, reason: &str) {
    assert!(
        std::env::var_os("GRPCXX_INTEROP").is_none_or(|value| value != "require"),
        "{what}: {reason}"
    );
    eprintln!("SKIPPED: no call from {what}: {reason}");
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", text(&output)))
}

pub(crate) fn text(output: &Output) -> String {
    let part = String::from_utf8_lossy;
    format!("{}{}", part(&output.stdout), part(&output.stderr))
}

const REQUIREMENTS: [&str; 3] = [
    "grpcio>=1.60,<2",
    "grpcio-health-checking>=1.60,<2",
    "grpcio-reflection>=1.60,<2",
];
