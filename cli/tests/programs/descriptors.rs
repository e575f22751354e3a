//! Tasks that may open few files, and connections that say nothing at each of their doors.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use grpcxx_cli::local::held_ports;
use grpcxx_control::{BlockingControlClient, ClientOptions};
use grpcxx_runtime::{Client, LinkMedium, Peer, PeerState};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use super::SERVER;
use super::cluster::{caller, device};

/// Files that the task may open. The test opens less than 1000, which each process may.
const FILES: usize = 512;

/// A task that is ended when the test ends, and its doors.
struct Server {
    child: Child,
    grpc: String,
    star: String,
    metrics: String,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let held = held_ports(3, Ipv4Addr::LOCALHOST.into()).unwrap();
        let [grpc, star, metrics] = [0, 1, 2].map(|at| format!("127.0.0.1:{}", held[at].number()));
        drop(held);
        std::fs::write(folder.join(".endpoint_map"), format!("{grpc}={star}\n")).unwrap();
        let limited = format!("ulimit -n {FILES}; exec \"$0\" \"$@\"");
        let mut child = Command::new("sh")
            .args(["-c", &limited, SERVER])
            .current_dir(folder)
            .args(["--cluster-spec", &format!("ps|{grpc}")])
            .args(["--job-name", "ps", "--task-index", "0"])
            .args(["--metrics-addr", &metrics])
            .env("GRPCXX_SHARDS", "1")
            .env("GRPCXX_ARENA_BYTES", "16MiB")
            .env_remove("TF_CONFIG")
            .env_remove("TF_SEASTAR_ENDPOINT_MAP_PATH")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let server = Self {
            child,
            grpc,
            star,
            metrics,
        };
        // By then it has opened all files that it opens for itself.
        let is_ready = |line: io::Result<String>| line.unwrap().contains("grpcxx-server ready");
        assert!(said.lines().any(is_ready), "the task has ended");
        server
    }

    /// The name of the socket where processes of this host meet the task.
    fn rendezvous(&self) -> String {
        let begin = format!("@grpcxx-link-{}-", self.child.id());
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let name = sockets
            .split_whitespace()
            .find(|word| word.starts_with(&begin));
        name.expect("the task shares memory")[1..].to_owned()
    }

    /// Files that the task has open.
    fn open_files(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(folder).unwrap().count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already where all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connections of this host that say nothing, more than the task takes of one.
fn silent(host: u8, door: &str, count: usize) -> Vec<TcpStream> {
    let door: SocketAddr = door.parse().unwrap();
    let dial = || {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        bind(&socket, &SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
        // Whoever is not accepted yet waits with the others.
        assert!(matches!(
            connect(&socket, &door),
            Ok(()) | Err(Errno::INPROGRESS)
        ));
        TcpStream::from(socket)
    };
    (0..count).map(|_| dial()).collect()
}

/// Connections to the rendezvous socket that say nothing.
fn silent_meetings(name: &str) -> Vec<UnixStream> {
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for _ in 0..FILES / 8 {
            let socket = UnixStream::connect_addr(&address);
            if socket.is_err() || sender.send(socket.unwrap()).is_err() {
                return;
            }
        }
    });
    let mut meetings = Vec::new();
    while let Ok(socket) = receiver.recv_timeout(Duration::from_millis(500)) {
        meetings.push(socket);
    }
    meetings
}

/// Runs `ask`, which has to end soon.
fn soon<R: Send + 'static>(door: &str, ask: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(ask()));
    let answer = receiver.recv_timeout(SOON);
    answer.unwrap_or_else(|_| panic!("no answer at the {door} within {SOON:?}"))
}

fn page(address: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address)?;
    connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")?;
    let mut page = String::new();
    connection.read_to_string(&mut page)?;
    Ok(page)
}

fn state(client: &Client, peer: &Peer) -> PeerState {
    let (sender, receiver) = channel();
    client.inspect(peer, move |state| {
        let _ = sender.send(state);
    });
    receiver.recv_timeout(PATIENCE).unwrap()
}

/// A client at the star port that moves to shared memory.
fn meet(star: &str) {
    let engine = caller();
    let client = engine.client();
    let peer = client.peer(star).unwrap();
    device(&client, &peer).unwrap();
    while state(&client, &peer).medium != LinkMedium::SharedMemory {
        thread::sleep(Duration::from_millis(20));
    }
    device(&client, &peer).unwrap();
}

#[test]
fn each_door_answers_while_silent_connections_fill_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let before = server.open_files();
    let doors = [
        (&server.star, FILES * 13 / 32),
        (&server.grpc, FILES * 3 / 32),
        (&server.metrics, FILES * 2 / 32),
    ];
    let _silent = doors.map(|(door, count)| silent(1, door, count));
    let _meetings = silent_meetings(&server.rendezvous());
    thread::sleep(Duration::from_millis(500));
    let taken = server.open_files() - before;
    assert_answers(&server);
    assert!(taken <= FILES / 2, "{taken} files besides {before}");
    let _others = [2, 3].map(|host| doors.map(|(door, count)| silent(host, door, count)));
    thread::sleep(Duration::from_millis(500));
    assert_answers(&server);
}

/// Each door answers an honest client soon.
fn assert_answers(server: &Server) {
    let star = server.star.clone();
    soon("star port and the rendezvous socket", move || meet(&star));
    let grpc = server.grpc.clone();
    soon("gRPC port", move || {
        let client = BlockingControlClient::connect(&grpc, ClientOptions::default()).unwrap();
        client.list_devices().unwrap();
    });
    let metrics = server.metrics.clone();
    let page = soon("metrics page", move || page(&metrics)).unwrap();
    assert!(page.contains("200 OK"), "{page}");
}

/// Within this an honest client has its answer.
const SOON: Duration = Duration::from_secs(5);

const PATIENCE: Duration = Duration::from_secs(60);
