//! A client of gRPC C++ with generated stubs, built below the target directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::python::text;

/// The program, or why it cannot be built here.
pub(crate) fn client() -> Result<PathBuf, String> {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop-cpp");
    std::fs::create_dir_all(&home).map_err(|error| error.to_string())?;
    let plugin = run("sh", |command| {
        command.args(["-c", "command -v grpc_cpp_plugin"])
    })?;
    let flags = run("pkg-config", |command| {
        command.args(["--cflags", "--libs", "grpc++", "protobuf"])
    })?;
    run("protoc", |command| {
        command
            .arg("-I")
            .arg(crate_folder.join("proto"))
            .arg(format!("--plugin=protoc-gen-grpc={}", plugin.trim()))
            .arg(format!("--cpp_out={}", home.display()))
            .arg(format!("--grpc_out={}", home.display()))
            .args(["helloworld.proto", "probe.proto"])
    })?;
    let program = home.join("client");
    let built = Command::new("g++")
        .args(["-std=c++17", "-O1", "-I"])
        .arg(&home)
        .arg(crate_folder.join("tests/interop/client.cc"))
        .args(["helloworld", "probe"].map(|name| home.join(format!("{name}.pb.cc"))))
        .args(["helloworld", "probe"].map(|name| home.join(format!("{name}.grpc.pb.cc"))))
        .args(flags.split_whitespace())
        .arg("-o")
        .arg(&program)
        .output();
    let built = built.map_err(|error| format!("g++: {error}"))?;
    // All that it needs is here, so it must compile.
    assert!(built.status.success(), "{}", text(&built));
    Ok(program)
}

fn run(
    program: &str,
    arguments: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<String, String> {
    let output = arguments(&mut Command::new(program)).output();
    let output = output.map_err(|error| format!("{program}: {error}; {PACKAGES}"))?;
    match output.status.success() {
        true => Ok(text(&output)),
        false => Err(format!("{program}: {}; {PACKAGES}", text(&output).trim())),
    }
}

const PACKAGES: &str = "apt-get install g++ pkg-config libgrpc++-dev protobuf-compiler-grpc";
