//! Star ports that the system may give to outgoing connections.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

use grpcxx_cli::local::{HeldPort, held_ports};

use super::ports::held_port;
use super::{SERVER, TOOL, text};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const CURE: &str = "net.ipv4.ip_local_reserved_ports";

fn other_ports(count: usize) -> Vec<u16> {
    let held = held_ports(count, LOOPBACK).unwrap();
    held.iter().map(HeldPort::number).collect()
}

/// What a server whose star port is this one writes to standard error.
fn log_of_server(star: u16) -> String {
    let folder = tempfile::tempdir().unwrap();
    let grpc = format!("127.0.0.1:{}", other_ports(2)[0]);
    let map = format!("{grpc}=127.0.0.1:{star}\n");
    std::fs::write(folder.path().join(".endpoint_map"), map).unwrap();
    let mut server = Command::new(SERVER)
        .args(["--cluster-spec", &format!("ps|{grpc}")])
        .args(["--job-name", "ps", "--task-index", "0"])
        .arg("--until-stdin-closes")
        .current_dir(folder.path())
        .env("GRPCXX_SHARDS", "2")
        .env("GRPCXX_ARENA_BYTES", "64MiB")
        .env_remove("GRPCXX_LOG")
        .env_remove("TF_CONFIG")
        .env_remove("TF_SEASTAR_ENDPOINT_MAP_PATH")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let mut out = BufReader::new(server.stdout.take().unwrap());
    out.read_line(&mut ready).unwrap();
    let output = server.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stderr)
}

#[test]
fn a_server_tells_once_that_its_port_may_be_taken() {
    let star = held_port();
    let log = log_of_server(star);
    assert_eq!(log.matches(CURE).count(), 1, "{log}");
    assert!(log.contains(&format!("the star port {star} lies")), "{log}");
    let log = log_of_server(other_ports(1)[0]);
    assert_eq!(log.matches(CURE).count(), 0, "{log}");
}

#[test]
fn the_check_of_a_map_tells_such_ports() {
    let folder = tempfile::tempdir().unwrap();
    let star = held_port();
    let map = format!("localhost:2222=localhost:{star}\n");
    std::fs::write(folder.path().join(".endpoint_map"), map).unwrap();
    let output = Command::new(TOOL)
        .args([
            "endpoint-map",
            "check",
            "--cluster-spec",
            "ps|localhost:2222",
        ])
        .current_dir(folder.path())
        .env_remove("TF_CONFIG")
        .env_remove("TF_SEASTAR_ENDPOINT_MAP_PATH")
        .output()
        .unwrap();
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    assert!(out.contains("odd: ") && out.contains(CURE), "{out}");
}
