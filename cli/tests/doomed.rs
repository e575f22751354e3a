//! Servers in whose shard code panics: the main function of the program, with functions beside it
//! that no program has.

#[path = "../src/bin/grpcxx-server/allocation.rs"]
mod allocation;
#[path = "../src/bin/grpcxx-server/arguments.rs"]
mod arguments;
#[path = "../../runtime/tests/support/ports.rs"]
mod ports;
#[path = "../src/bin/grpcxx-server/start.rs"]
mod start;
#[path = "../src/bin/grpcxx-server/supervisor.rs"]
mod supervisor;
#[expect(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/terminal/mod.rs"]
mod terminal;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use arguments::Arguments;
use clap::Parser;
use grpcxx::server::{Server, ServerOptions};
use grpcxx::topology::Topology;
use grpcxx_memory::Buffer;
use grpcxx_rpc::{GraphCall, Method, NamedTensors, Reason, Request, Status, Text};
use grpcxx_runtime::cluster::{ClusterSpec, Protocol, TaskId};
use grpcxx_runtime::config::Config;
use grpcxx_runtime::{
    CallResult, CallSpec, Client, CompletionHandler, Engine, EngineOptions, Function, Responder,
    ShardContext,
};
use ports::held_address;

/// Takes the result of a call, and its shard with it.
struct Bad;

impl CompletionHandler for Bad {
    fn on_complete(self: Arc<Self>, _: u64, _: CallResult, _: &mut ShardContext<'_>) {
        panic!("asked to die");
    }
}

/// Panics on a shard.
struct Die {
    client: Client,
    star: String,
}

impl Function for Die {
    fn call(&self, _: GraphCall) -> Result<NamedTensors, Status> {
        let peer = self.client.peer(&self.star)?;
        let request = Request::Message {
            method: Method::GetStatus,
            body: Buffer::new(),
        };
        let begun = self
            .client
            .submit(CallSpec::new(&peer, request), Arc::new(Bad), 0);
        assert!(begun.is_ok(), "the shard takes a call");
        Ok(NamedTensors::new())
    }
}

/// Answers no call.
#[derive(Default)]
struct Never(Mutex<Vec<Responder>>);

impl Function for Never {
    fn call(&self, _: GraphCall) -> Result<NamedTensors, Status> {
        Ok(NamedTensors::new())
    }

    fn start(&self, _: GraphCall, responder: Responder) {
        self.0.lock().unwrap().push(responder);
    }
}

fn prepare(server: &Server) {
    let star = server.start_report().star_address.expect("a star port");
    let die = Die {
        client: server.client().clone(),
        star: format!("127.0.0.1:{}", star.port()),
    };
    server.register("die", Arc::new(die)).unwrap();
    server
        .register("never", Arc::new(Never::default()))
        .unwrap();
}

fn call(name: &str) -> Request {
    Request::StarRunGraph(Box::new(GraphCall {
        graph_handle: Text::from(name),
        ..GraphCall::default()
    }))
}

fn worker() -> Engine {
    Engine::start(EngineOptions::default().with(|options| options.task = TaskId::new("worker", 0)))
        .unwrap()
}

/// The first line of the answer to a request for `/healthz`, if the port is open.
fn health(metrics: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(metrics).ok()?;
    write!(stream, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.lines().next().map(str::to_owned)
}

/// The server as a process of its own; not a test unless one below starts it.
#[test]
#[ignore = "a test starts it"]
fn doomed_server() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let arguments = Arguments::parse_from(arguments.split(' '));
    let exit = match start::run(&arguments, prepare) {
        Ok(()) => 0,
        Err(failure) => {
            let _told = failure.report("grpcxx-server");
            failure.exit() as i32
        }
    };
    std::process::exit(exit);
}

#[test]
fn a_server_with_a_dead_shard_ends_with_70_and_says_what_panicked() {
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("map");
    let [grpc, star, metrics] = [(); 3].map(|()| held_address());
    std::fs::write(&map, format!("{grpc}={star}\n")).unwrap();
    let arguments = format!(
        "grpcxx-server --cluster-spec ps|{grpc} --job-name ps --task-index 0 --endpoint-map {} \
         --metrics-addr {metrics}",
        map.display()
    );
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "doomed_server"])
        .env(ARGUMENTS, arguments)
        .env("GRPCXX_SHARDS", "2")
        .env("GRPCXX_ARENA_BYTES", "256MiB")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let is_ready = lines.any(|line| line.unwrap().contains("grpcxx-server ready"));
    assert!(is_ready, "it ended: {:?}", server.wait());
    assert_eq!(health(metrics).unwrap(), "HTTP/1.1 200 OK");

    let engine = worker();
    let client = engine.client();
    let peer = client.peer(&star.to_string()).unwrap();
    let waiting = client.call(&peer, call("never"), None);
    // Its answer may be lost with the engine.
    let _ = client.call(&peer, call("die"), None).wait();
    let status = waiting.wait().unwrap_err();
    let is_lost = matches!(status.reason, Reason::ConnectionLost | Reason::Peer);
    assert!(is_lost, "{status:?}");
    assert_ne!(health(metrics), Some("HTTP/1.1 200 OK".to_owned()));

    let code = exit_code(&mut server);
    let mut log = String::new();
    server
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut log)
        .unwrap();
    assert_eq!(code, Some(70), "{log}");
    let last = log.lines().last().unwrap();
    assert!(last.starts_with("grpcxx-server: shard `grpcxx-"), "{log}");
    assert!(
        last.ends_with("panicked in the completion handler of a call: asked to die"),
        "{log}"
    );
    assert_eq!(health(metrics), None);
}

#[test]
fn the_health_of_a_server_fails_with_its_shard() {
    let [grpc, star, metrics] = [(); 3].map(|()| held_address());
    let (mut config, _) = Config::read(|_| None, [""; 0]).unwrap();
    config.shards = Some(2);
    let cluster = ClusterSpec::parse(&format!("ps|{grpc}")).unwrap();
    let topology = Topology::told(&cluster, &format!("{grpc}={star}\n")).unwrap();
    let server = Server::start(ServerOptions {
        config,
        cluster,
        task: TaskId::new("ps", 0),
        protocol: "grpc++".parse::<Protocol>().unwrap(),
        topology: Some(topology),
        metrics: Some(metrics),
        model: None,
    })
    .unwrap();
    prepare(&server);
    assert_eq!(health(metrics).unwrap(), "HTTP/1.1 200 OK");
    let engine = worker();
    let client = engine.client();
    let peer = client.peer(&star.to_string()).unwrap();
    let _ = client.call(&peer, call("die"), None).wait();
    let until = Instant::now() + PATIENCE;
    while health(metrics).unwrap() == "HTTP/1.1 200 OK" {
        assert!(Instant::now() < until, "health knows nothing");
        thread::sleep(Duration::from_millis(1));
    }
    // The endpoint goes on until the server is shut down, and says the same.
    assert_eq!(health(metrics).unwrap(), "HTTP/1.1 503 Service Unavailable");
    let stopped = server.shutdown(Duration::from_secs(600));
    assert!(stopped.failure.unwrap().contains("asked to die"));
}

/// The exit code of a process, which must end soon.
fn exit_code(process: &mut Child) -> Option<i32> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(status) = process.try_wait().unwrap() {
            return status.code();
        }
        thread::sleep(Duration::from_millis(10));
    }
    process.kill().unwrap();
    None
}

const ARGUMENTS: &str = "DOOMED_SERVER_ARGUMENTS";
const PATIENCE: Duration = Duration::from_secs(30);
