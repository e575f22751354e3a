//! What a program that embeds the engine builds with it.

use std::collections::BTreeSet;
use std::process::Command;

/// Crates that only the programs, or a server with a gRPC endpoint, may bring.
const FOR_SERVERS: &[&str] = &[
    "clap",
    "grpcxx-control",
    "h2",
    "http",
    "hyper",
    "prometheus",
    "tokio",
    "tonic",
    "tower",
    "tracing-subscriber",
];

#[test]
fn the_facade_brings_no_grpc_and_no_terminal() {
    let built = built_with_the_facade(&[]);
    let found: Vec<_> = FOR_SERVERS
        .iter()
        .filter(|name| built.contains(**name))
        .collect();
    assert!(
        found.is_empty(),
        "the facade without its feature `server` brings {found:?}"
    );
}

#[test]
fn the_feature_server_brings_grpc_and_no_terminal() {
    let built = built_with_the_facade(&["--features", "server"]);
    for name in ["grpcxx-control", "hyper", "tokio", "tonic"] {
        assert!(built.contains(name), "the feature `server` lacks {name}");
    }
    for name in ["clap", "indicatif", "tracing-subscriber"] {
        assert!(!built.contains(name), "the feature `server` brings {name}");
    }
}

/// Names of the crates that become part of a program with the facade.
fn built_with_the_facade(features: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "-p", "grpcxx"])
        .args(["-e", "normal", "--prefix", "none", "--format", "{p}"])
        .args(features)
        .current_dir(super::root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "cargo tree: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect()
}
