//! Tasks whose outputs are gone, full, or read by nobody: they serve, and they end with the right
//! exit code.

use std::io::{BufRead, BufReader, Read, Write, pipe};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use grpcxx_cli::local::held_ports;
use rustix::process::{Pid, Signal, kill_process};

use super::cluster::{caller, device};
use super::{SERVER, TOOL};

/// A task that is ended at the latest when the test ends.
struct Server {
    child: Child,
    star: String,
}

impl Server {
    fn start(folder: &Path, log: &str, output: impl Into<Stdio>, error: impl Into<Stdio>) -> Self {
        Self::start_as(&[], folder, log, output, error)
    }

    /// Starts a task by another program, which gets the server and its arguments behind its own.
    fn start_as(
        starter: &[&str],
        folder: &Path,
        log: &str,
        output: impl Into<Stdio>,
        error: impl Into<Stdio>,
    ) -> Self {
        let [grpc, star] = addresses();
        Self::start_at([&grpc, &star], starter, folder, log, output, error)
    }

    fn start_at(
        [grpc, star]: [&str; 2],
        starter: &[&str],
        folder: &Path,
        log: &str,
        output: impl Into<Stdio>,
        error: impl Into<Stdio>,
    ) -> Self {
        std::fs::write(folder.join(".endpoint_map"), format!("{grpc}={star}\n")).unwrap();
        let mut program = starter.iter().copied().chain([SERVER]);
        let child = Command::new(program.next().unwrap())
            .args(program)
            .current_dir(folder)
            .args(["--cluster-spec", &format!("ps|{grpc}")])
            .args(["--job-name", "ps", "--task-index", "0"])
            .args(["--metrics-addr", "127.0.0.1:0"])
            .env("GRPCXX_SHARDS", "1")
            .env("GRPCXX_ARENA_BYTES", "16MiB")
            .env("GRPCXX_LOG", log)
            .env_remove("TF_CONFIG")
            .env_remove("TF_SEASTAR_ENDPOINT_MAP_PATH")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(error)
            .spawn()
            .unwrap();
        let server = Self {
            child,
            star: star.to_owned(),
        };
        server.await_port();
        server
    }

    fn await_port(&self) {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(&self.star).is_err() {
            assert!(Instant::now() < deadline, "the task does not listen");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Breaks the protocol on `count` connections, one after the other, each until it is closed.
    fn disturb(&self, count: usize) {
        for _ in 0..count {
            let mut connection = TcpStream::connect(&self.star).unwrap();
            connection.set_read_timeout(Some(PATIENCE)).unwrap();
            // A connection that is closed with bytes unread ends with a reset.
            let _ = connection.write_all(&[0x5a; 256]);
            let _ = connection.read_to_end(&mut Vec::new());
        }
    }

    fn assert_serves(&self) {
        let engine = caller();
        let client = engine.client();
        let peer = client.peer(&self.star).unwrap();
        device(&client, &peer).unwrap();
    }

    /// Asks the task to stop; it has less time than a supervisor usually gives.
    fn stop(mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the task does not stop");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already where all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two addresses that were free a moment ago, and that no outgoing connection gets.
fn addresses() -> [String; 2] {
    let held = held_ports(2, Ipv4Addr::LOCALHOST.into()).unwrap();
    [0, 1].map(|at| format!("127.0.0.1:{}", held[at].number()))
}

fn page(address: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    connection.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn outputs_that_nobody_holds_stop_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // Without their readers, writing to the pipes is an error.
    let (_, output) = pipe().unwrap();
    let (_, error) = pipe().unwrap();
    let server = Server::start(folder.path(), "debug", output, error);
    server.disturb(60);
    server.assert_serves();
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_signal_brings_what_the_task_waits_for_into_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (mut ready, output) = pipe().unwrap();
    let (log, error) = pipe().unwrap();
    let server = Server::start(folder.path(), "info", output, error);
    // The task watches for the signal before it says that it is ready.
    let mut line = [0; 1];
    ready.read_exact(&mut line).unwrap();
    kill_process(Pid::from_child(&server.child), Signal::USR1).unwrap();
    let mut lines = BufReader::new(log).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("waits: 0 receives wait")));
    server.assert_serves();
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (_reader, error) = pipe().unwrap();
    let server = Server::start(folder.path(), "debug", Stdio::null(), error);
    server.disturb(2000);
    server.assert_serves();
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_cluster_whose_log_nobody_reads_starts_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    let (_reader, mut error) = pipe().unwrap();
    error.write_all(&vec![b'x'; PIPE_BYTES]).unwrap();
    let mut cluster = Command::new(TOOL)
        .current_dir(folder.path())
        .args(["local", "--ps", "1", "--worker", "1", "--run-for", "1"])
        .env("GRPCXX_SHARDS", "1")
        .env("GRPCXX_ARENA_BYTES", "16MiB")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(error)
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = cluster.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            cluster.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_task_with_a_loopback_address_listens_there_only_and_says_so() {
    let has_ipv6 = TcpListener::bind("[::1]:0").is_ok();
    for (grpc, star) in [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "[::1]"),
        ("[::1]", "127.0.0.2"),
    ] {
        if !has_ipv6 && format!("{grpc}{star}").contains("::1") {
            println!("SKIPPED {grpc} and {star}: this machine has no IPv6");
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let [grpc_port, star_port] =
            addresses().map(|address| address.rsplit_once(':').unwrap().1.to_owned());
        let [grpc, star] = [format!("{grpc}:{grpc_port}"), format!("{star}:{star_port}")];
        let mut server = Server::start_at(
            [&grpc, &star],
            &[],
            folder.path(),
            "warn",
            Stdio::piped(),
            Stdio::piped(),
        );
        let mut ready = String::new();
        BufReader::new(server.child.stdout.take().unwrap())
            .read_line(&mut ready)
            .unwrap();
        let grpc = grpc.replace("localhost", "127.0.0.1");
        assert!(
            ready.contains(&format!(" grpc={grpc} star={star} ")),
            "{ready}"
        );
        server.assert_serves();
        let mut error = server.child.stderr.take().unwrap();
        assert_eq!(server.stop().code(), Some(0));
        let mut log = String::new();
        error.read_to_string(&mut log).unwrap();
        assert_eq!(log, "");
    }
}

#[test]
fn a_task_that_is_open_to_all_warns_once() {
    let folder = tempfile::tempdir().unwrap();
    let [grpc_port, star_port] =
        addresses().map(|address| address.rsplit_once(':').unwrap().1.to_owned());
    let hosts = [
        format!("ps0.example:{grpc_port}"),
        format!("127.0.0.1:{star_port}"),
    ];
    let mut server = Server::start_at(
        [&hosts[0], &hosts[1]],
        &[],
        folder.path(),
        "warn",
        Stdio::null(),
        Stdio::piped(),
    );
    server.assert_serves();
    let mut error = server.child.stderr.take().unwrap();
    assert_eq!(server.stop().code(), Some(0));
    let mut log = String::new();
    error.read_to_string(&mut log).unwrap();
    assert!(log.contains(&format!("grpc=0.0.0.0:{grpc_port}")), "{log}");
    assert_eq!(log.matches("GRPCXX_BIND_ADDRESS").count(), 1, "{log}");
}

#[test]
fn a_full_disk_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let full = || std::fs::File::create("/dev/full").unwrap();
    let server = Server::start(folder.path(), "debug", full(), full());
    server.disturb(60);
    server.assert_serves();
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_peer_that_breaks_the_protocol_often_fills_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let (log, error) = pipe().unwrap();
    let reader = thread::spawn(|| std::io::read_to_string(log).unwrap());
    let mut server = Server::start(folder.path(), "info", Stdio::piped(), error);
    let mut ready = String::new();
    let output = server.child.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut ready).unwrap();
    let (_, metrics) = ready.trim().split_once("metrics=").unwrap();
    server.disturb(200);
    let page = page(metrics);
    assert!(page.contains("grpcxx_violations_total 200"), "{page}");
    assert!(page.contains("grpcxx_log_lines_lost_total 0"), "{page}");
    let counted = page
        .lines()
        .find_map(|line| line.strip_prefix("grpcxx_log_lines_suppressed_total "));
    let counted: u64 = counted.unwrap().parse().unwrap();
    assert_eq!(server.stop().code(), Some(0));
    let log = reader.join().unwrap();
    let closing = "closing the connection of a peer that broke the protocol";
    let (summaries, lines): (Vec<&str>, Vec<&str>) = log
        .lines()
        .filter(|line| line.contains(closing))
        .partition(|line| line.contains("more like this"));
    assert!(
        lines.len() <= 100 && lines.len() as u64 + counted == 200,
        "{log}"
    );
    assert!(!summaries.is_empty(), "{log}");
    assert!(
        lines
            .iter()
            .chain(&summaries)
            .all(|line| line.contains("127.0.0.1")),
        "{log}"
    );
}

#[test]
fn a_limit_of_file_sizes_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    // 8 KiB, fewer than the log and the arena have.
    let limited = ["sh", "-c", "ulimit -f 16; exec \"$0\" \"$@\""];
    let server = Server::start_as(&limited, folder.path(), "debug", Stdio::null(), log);
    server.disturb(200);
    server.assert_serves();
    assert_eq!(server.stop().code(), Some(0));
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.len() <= 16 << 10 && log.contains("ulimit -f"), "{log}");
}

/// What a pipe holds that nobody reads, unless the system is told otherwise.
const PIPE_BYTES: usize = 64 << 10;
/// For machines that are busy with other things; a task stops within 2 seconds otherwise.
const PATIENCE: Duration = Duration::from_secs(30);
