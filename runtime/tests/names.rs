//! Peers whose hosts have names: they are looked up before each dial, away from whoever calls and
//! from the shards.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Method, Request, Status};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{Client, Engine, EngineOptions, Peer, Resolve};

use crate::ports::held_port;

/// A name service that the test writes.
#[derive(Default)]
struct Names {
    addresses: Mutex<Vec<Ipv4Addr>>,
    lookups: AtomicUsize,
    takes: Duration,
}

impl Resolve for Names {
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        thread::sleep(self.takes);
        if host != "ps-0.training" {
            return Err(io::Error::other("the test knows no such name"));
        }
        let addresses = self.addresses.lock().unwrap();
        Ok(addresses
            .iter()
            .map(|ip| SocketAddr::from((*ip, port)))
            .collect())
    }
}

impl Names {
    fn point_to(&self, addresses: &[Ipv4Addr]) {
        *self.addresses.lock().unwrap() = addresses.to_vec();
    }
}

fn server(address: SocketAddr) -> Engine {
    Engine::start(EngineOptions::default().with(|options| {
        options.task = TaskId::new("ps", 0);
        options.listen = Some(address);
    }))
    .unwrap()
}

fn caller(names: &Arc<Names>) -> Engine {
    let mut options = EngineOptions::default().with(|options| options.resolver = names.clone());
    options.channel.redial_delay = Duration::from_millis(20);
    Engine::start(options).unwrap()
}

fn status_of(client: &Client, peer: &Peer, timeout: Duration) -> Result<(), Status> {
    let request = Request::Message {
        method: Method::GetStatus,
        body: Buffer::new(),
    };
    client.call(peer, request, Some(timeout)).wait().map(drop)
}

#[test]
fn a_task_that_moves_is_found_again_under_its_name() {
    let names = Arc::new(Names::default());
    names.point_to(&[FIRST_HOST]);
    let port = held_port();
    let first = server((FIRST_HOST, port).into());
    let worker = caller(&names);
    let client = worker.client();
    let peer = client.peer(&format!("ps-0.training:{port}")).unwrap();
    assert_eq!(peer.socket_address(), None);
    status_of(&client, &peer, LONG).unwrap();

    drop(first);
    let second = server((SECOND_HOST, port).into());
    names.point_to(&[SECOND_HOST]);
    let deadline = Instant::now() + LONG;
    // Calls made before the loss is noticed may end with it.
    while let Err(status) = status_of(&client, &peer, LONG) {
        assert_eq!(status.code, Code::Unavailable, "{status}");
        assert!(Instant::now() < deadline, "{status}");
    }
    assert_eq!(names.lookups.load(Ordering::SeqCst), 2);
    drop(second);
}

#[test]
fn all_addresses_of_a_name_are_tried_in_one_dial() {
    let names = Arc::new(Names::default());
    names.point_to(&[FIRST_HOST, SECOND_HOST]);
    let server = server((SECOND_HOST, 0).into());
    let port = server.local_addr().unwrap().port();
    let worker = caller(&names);
    let client = worker.client();
    let peer = client.peer(&format!("ps-0.training:{port}")).unwrap();
    status_of(&client, &peer, LONG).unwrap();
    assert_eq!(names.lookups.load(Ordering::SeqCst), 1);
}

#[test]
fn a_slow_look_up_holds_up_neither_the_caller_nor_the_shard() {
    let names = Arc::new(Names {
        takes: Duration::from_millis(500),
        ..Names::default()
    });
    names.point_to(&[SECOND_HOST]);
    let server = server((SECOND_HOST, 0).into());
    let port = server.local_addr().unwrap().port();
    let worker = caller(&names);
    let client = worker.client();
    let begin = Instant::now();
    let named = client.peer(&format!("ps-0.training:{port}")).unwrap();
    let request = Request::Message {
        method: Method::GetStatus,
        body: Buffer::new(),
    };
    let slow = client.call(&named, request, Some(LONG));
    let direct = client
        .peer(&SocketAddr::from((SECOND_HOST, port)).to_string())
        .unwrap();
    status_of(&client, &direct, LONG).unwrap();
    assert!(begin.elapsed() < names.takes, "{:?}", begin.elapsed());
    slow.wait().unwrap();
    assert!(begin.elapsed() >= names.takes);
}

#[test]
fn a_name_that_is_not_known_ends_calls_with_that_reason_in_their_time() {
    let names = Arc::new(Names::default());
    let worker = caller(&names);
    let client = worker.client();
    let peer = client.peer("nowhere.training:7777").unwrap();
    let status = status_of(&client, &peer, Duration::from_millis(200)).unwrap_err();
    let text = status.to_string();
    assert!(text.contains("the test knows no such name"), "{text}");
    assert!(text.contains("nowhere.training:7777"), "{text}");
    assert!(names.lookups.load(Ordering::SeqCst) > 1);
}

#[test]
fn the_system_knows_localhost() {
    let server = server((IpAddr::from(Ipv4Addr::LOCALHOST), 0).into());
    let port = server.local_addr().unwrap().port();
    let worker = Engine::start(EngineOptions::default()).unwrap();
    let client = worker.client();
    let peer = client.peer(&format!("localhost:{port}")).unwrap();
    status_of(&client, &peer, LONG).unwrap();
}

/// Two hosts of this machine.
const FIRST_HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
const SECOND_HOST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(10);
