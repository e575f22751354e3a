//! Clients of other implementations of gRPC call the endpoint.
//!
//! Needs `python3` with `venv` and the packages of `interop/requirements.txt`, which are installed below the target
//! directory once. Where that cannot be, the test says why and passes; with `GRPCXX_INTEROP=require` it fails.

#![allow(clippy::print_stderr, reason = "what is skipped says so")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use grpcxx_rpc::{DType, Shape, Tensor};
use support::{Fake, start};

const REQUIRE: &str = "GRPCXX_INTEROP";

#[test]
fn grpcio_finds_everything_through_reflection() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop");
    let python = match python(&here.join("requirements.txt")) {
        Ok(python) => python,
        Err(reason) if std::env::var_os(REQUIRE).is_some_and(|value| value == "require") => {
            panic!("{reason}")
        }
        Err(reason) => {
            eprintln!("SKIPPED: no client of another implementation: {reason}");
            return;
        }
    };

    let fake = Fake::new();
    let data: Vec<u8> = (0..LARGE_BYTES).map(|i| (i % 251) as u8).collect();
    let shape = Shape::new(&[LARGE_BYTES as u64]).unwrap();
    fake.put(1, "large", Tensor::new(DType::UInt8, shape, data).unwrap());
    let control = start(&fake);
    let output = Command::new(python)
        .arg(here.join("clients.py"))
        .arg(control.local_addr().to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let passed = text(&output).matches("passed ").count();
    assert_eq!(passed, 9, "{}", text(&output));
}

/// A python that has the packages, or why there is none.
fn python(requirements: &Path) -> Result<PathBuf, String> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop-python");
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
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--retries",
            "1",
            "--timeout",
            "15",
        ])
        .args([
            "--disable-pip-version-check",
            "--only-binary",
            ":all:",
            "-r",
        ])
        .arg(requirements))?;
    Ok(python)
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

fn text(output: &Output) -> String {
    let part = String::from_utf8_lossy;
    format!("{}{}", part(&output.stdout), part(&output.stderr))
}

/// Known to `clients.py`.
const LARGE_BYTES: usize = 64 << 20;
