use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{TOOL, grpcxx, text};

/// A server of benches, killed when it is dropped.
struct Server {
    child: Child,
    star: String,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new(TOOL)
            .args(["--json", "bench", "serve", "--listen", "127.0.0.1:0"])
            .args(["--run-for", "120", "--until-stdin-closes"])
            .env("GRPCXX_ARENA_BYTES", "256MiB")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        Self {
            child,
            star: ready["star"].as_str().unwrap().to_owned(),
        }
    }

    fn bench(&self, folder: &Path, arguments: &str) -> std::process::Output {
        let mut all = vec!["bench", "run", "--connect", &self.star, "--seconds", "0.1"];
        all.extend(arguments.split_whitespace());
        grpcxx(folder, &all)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn benches_print_one_object_with_the_documented_keys() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start();
    for op in ["latency", "rate", "pull", "push", "ps"] {
        let arguments = format!(
            "--op {op} --size 4KiB --count 20 --connections 2 --depth 3 --transport tcp --driver epoll --fuse on --polling off --verify --json"
        );
        let output = server.bench(folder.path(), &arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let lines: Vec<Value> = text(&output.stdout)
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 1);
        let run = lines[0].as_object().unwrap();
        assert_eq!(run.len(), 15, "{run:?}");
        assert_eq!((&run["op"], &run["driver"]), (&op.into(), &"epoll".into()));
        assert_eq!((&run["size"], &run["count"]), (&4096.into(), &20.into()));
        assert_eq!((&run["conns"], &run["depth"]), (&2.into(), &3.into()));
        for rate in [
            "p50_us",
            "p99_us",
            "p999_us",
            "req_per_s",
            "gb_per_s",
            "steps_per_s",
        ] {
            assert!(run[rate].as_f64().unwrap() > 0.0, "{rate} of {op}");
        }
    }
}

#[test]
fn functions_and_methods_are_measured_from_shards_threads_and_tokio() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start();
    for op in ["call", "unary", "stream"] {
        for api in ["shard", "thread", "tokio"] {
            let arguments =
                format!("--op {op} --api {api} --connections 2 --depth 3 --verify --limit --json");
            let output = server.bench(folder.path(), &arguments);
            assert!(output.status.success(), "{}", text(&output.stderr));
            let line = text(&output.stdout).lines().next().unwrap().to_owned();
            let run: Value = serde_json::from_str(&line).unwrap();
            assert_eq!((&run["op"], &run["size"]), (&op.into(), &64.into()));
            assert!(run["steps_per_s"].as_f64().unwrap() > 0.0, "{line}");
        }
    }
}

#[test]
fn people_get_a_table_the_distance_to_the_limit_and_a_plot() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start();
    let output = server.bench(
        folder.path(),
        "--op pull --count 30 --mix skewed --connections 2 --limit --plot times.svg",
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for words in [
        "time of a step",
        "steps/s",
        "spinning sockets",
        "memcpy",
        "ours / limit",
        "of the worst",
    ] {
        assert!(table.contains(words), "{words:?} is not in\n{table}");
    }
    let plot = std::fs::read_to_string(folder.path().join("times.svg")).unwrap();
    assert!(plot.contains("spinning sockets") && plot.contains("</svg>"));

    // A limited rate, and a second run on the same server after one with plain sockets.
    let paced = server.bench(folder.path(), "--rate 100 --json --limit --transport tcp");
    let lines: Vec<Value> = text(&paced.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let links: Vec<&str> = lines
        .iter()
        .map(|line| line["transport"].as_str().unwrap())
        .collect();
    assert_eq!(links, ["tcp", "spinning sockets", "shared-memory ring"]);
}

#[test]
fn what_cannot_be_measured_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &str, exit: i32, says: &str| {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let output = grpcxx(folder.path(), &arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {message}");
        assert!(message.contains(says), "{arguments:?}: {message}");
    };
    let run = "bench run --connect 127.0.0.1:1 --seconds 0.1";
    refused("bench run", 64, "--connect");
    refused("bench serve", 64, "--listen");
    refused(
        &format!("{run} --op ping"),
        64,
        "latency, rate, pull, push or ps",
    );
    refused(&format!("{run} --size 1KB"), 64, "4KiB");
    refused(
        &format!("{run} --size 1GiB --count 1000"),
        64,
        "smaller or fewer",
    );
    refused(&format!("{run} --api fiber"), 64, "shard, thread or tokio");
    refused(&format!("{run} --api tokio"), 64, "call, unary or stream");
    refused(&format!("{run} --count 0"), 64, "count is 0");
    refused(&format!("{run} --depth 0"), 64, "depth is 0");
    refused(&format!("{run} --rate 0"), 64, "0 steps a second");
    refused(&format!("{run} --mix odd"), 64, "uniform");
    refused(&format!("{run} --driver dpdk"), 64, "io_uring");
    refused("bench run --connect nowhere", 64, "host:port");
    refused("bench serve --listen nowhere", 64, "nowhere");
}

/// No machine has a device of this name.
#[test]
fn a_transport_that_cannot_be_had_is_an_error_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(TOOL)
        .args([
            "bench",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--run-for",
            "1",
        ])
        .args(["--transport", "rdma"])
        .env("GRPCXX_RDMA_DEVICE", "nonesuch0")
        .current_dir(folder.path())
        .output()
        .unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{message}");
    assert!(message.contains("--transport rdma"), "{message}");
    assert!(
        message.contains("nonesuch0")
            || message.contains("libibverbs")
            || message.contains("device"),
        "{message}"
    );
}
