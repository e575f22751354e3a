//! How long calls take, as both ends of them tell.

use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use grpcxx_rpc::{GraphCall, RendezvousKey, Request, Shape, Tensor, Text};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{CallLatency, CallSide, Engine, EngineOptions, Latency, STORE_LIST};

fn start(job: &str) -> Engine {
    let options = EngineOptions::default().with(|options| {
        options.task = TaskId::new(job, 0);
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.shards = 2;
    });
    Engine::start(options).unwrap()
}

fn all(engine: &Engine) -> Vec<CallLatency> {
    let (tell, told) = channel();
    let shards = engine.client().shard_calls(move |calls| {
        tell.send(calls.latencies).unwrap();
    });
    assert_eq!(shards, 2);
    told.into_iter().flatten().collect()
}

/// What an engine tells of a method, over all shards and media.
fn told(engine: &Engine, side: CallSide, method: &str) -> Latency {
    let mut sum = Latency::default();
    for call in all(engine) {
        if (call.side, call.method) == (side, method) {
            sum.add(&call.latency);
        }
    }
    sum
}

fn list() -> Request {
    Request::StarRunGraph(Box::new(GraphCall {
        graph_handle: Text::from(STORE_LIST),
        fetches: vec![Text::from("names")].into(),
        ..GraphCall::default()
    }))
}

#[test]
fn both_ends_tell_how_long_a_call_took() {
    let (server, worker) = (start("ps"), start("worker"));
    let client = worker.client();
    let peer = client
        .peer(&server.local_addr().unwrap().to_string())
        .unwrap();
    let key = RendezvousKey::new(
        &server.device_attributes().name,
        server.incarnation(),
        "/job:worker/replica:0/task:0/device:CPU:0",
        "late",
    )
    .unwrap()
    .to_text();
    for step_id in 1..=3 {
        let request = Request::RecvTensor {
            step_id,
            key: key.clone(),
        };
        let call = client.call(&peer, request, Some(PATIENCE));
        std::thread::sleep(LATE);
        server
            .send(step_id, key.clone(), Tensor::scalar(1f32))
            .unwrap();
        call.wait().unwrap();
    }
    client.call(&peer, list(), Some(PATIENCE)).wait().unwrap();

    for (engine, side) in [(&worker, CallSide::Client), (&server, CallSide::Server)] {
        let receives = told(engine, side, "RecvTensor");
        assert_eq!(receives.count(), 3, "{side:?}");
        // A shard counts from turn to turn, and begins its turn before it sees the call.
        let least_ns = LATE.as_nanos() as u64 / 2;
        assert!(receives.quantile_ns(0.5) > least_ns, "{receives:?}");
        assert_eq!(told(engine, side, "StarRunGraph").count(), 1, "{side:?}");
    }
    assert_eq!(told(&worker, CallSide::Server, "RecvTensor").count(), 0);
}

#[test]
fn tensors_that_wait_for_their_request_are_counted_at_both_ends() {
    let (server, worker) = (start("ps"), start("worker"));
    let client = worker.client();
    let peer = client
        .peer(&server.local_addr().unwrap().to_string())
        .unwrap();
    let key = |edge: &str| {
        let (name, incarnation) = (&server.device_attributes().name, server.incarnation());
        let receiver = "/job:worker/replica:0/task:0/device:CPU:0";
        RendezvousKey::new(name, incarnation, receiver, edge)
            .unwrap()
            .to_text()
    };
    // Behind the announcement of both ends, small receives take a way of their own.
    client.call(&peer, list(), Some(PATIENCE)).wait().unwrap();
    for edge in 0..100 {
        let key = key(&edge.to_string());
        server.send(1, key, Tensor::scalar(1f32)).unwrap();
    }
    let call = |edge: i32| {
        let key = key(&edge.to_string());
        let request = Request::RecvTensor { step_id: 1, key };
        client.call(&peer, request, Some(PATIENCE))
    };
    let calls: Vec<_> = (0..100).map(call).collect();
    for call in calls {
        call.wait().unwrap();
    }
    for (engine, side) in [(&worker, CallSide::Client), (&server, CallSide::Server)] {
        assert_eq!(told(engine, side, "RecvTensor").count(), 100, "{side:?}");
    }
}

/// Calls, and bytes received and sent, that an engine tells of one end with a peer.
fn with_peer(engine: &Engine, side: CallSide, peer: &str) -> (u64, u64, u64) {
    let (tell, told) = channel();
    let client = engine.client();
    client.shard_calls(move |calls| tell.send(calls).unwrap());
    let told: Vec<_> = told.into_iter().collect();
    let calls = told.iter().flat_map(|told| &told.latencies);
    let calls = calls.filter(|call| (call.side, call.peer.as_deref()) == (side, Some(peer)));
    let calls = calls.map(|call| call.latency.count()).sum();
    let links = told.iter().flat_map(|told| &told.traffic);
    let links = links.filter(|link| (link.side, link.peer.as_deref()) == (side, Some(peer)));
    let (mut received_bytes, mut sent_bytes) = (0, 0);
    for link in links {
        received_bytes += link.received_bytes;
        sent_bytes += link.sent_bytes;
    }
    (calls, received_bytes, sent_bytes)
}

#[test]
fn calls_and_bytes_are_counted_by_peer_at_both_ends() {
    const FLOATS: usize = 1 << 20;
    let (server, worker) = (start("ps"), start("worker"));
    let address = server.local_addr().unwrap().to_string();
    let client = worker.client();
    let peer = client.peer(&address).unwrap();
    let (name, incarnation) = (&server.device_attributes().name, server.incarnation());
    let receiver = "/job:worker/replica:0/task:0/device:CPU:0";
    let key = RendezvousKey::new(name, incarnation, receiver, "big").unwrap();
    let key = key.to_text();
    for step_id in 1..=3 {
        let tensor = Tensor::from_slice(Shape::vector(FLOATS), &vec![1f32; FLOATS]).unwrap();
        server.send(step_id, key.clone(), tensor).unwrap();
        let key = key.clone();
        let request = Request::RecvTensor { step_id, key };
        client.call(&peer, request, Some(PATIENCE)).wait().unwrap();
    }
    let payload_bytes = 3 * 4 * FLOATS as u64;
    let heads = payload_bytes..payload_bytes + 10_000;
    let (calls, received_bytes, sent_bytes) = with_peer(&worker, CallSide::Client, &address);
    assert!(calls >= 3, "{calls} calls");
    assert!(heads.contains(&received_bytes), "{received_bytes}");
    assert!((1..10_000).contains(&sent_bytes), "{sent_bytes}");
    // Frames are counted in the turn after that in which their last byte left.
    let end = Instant::now() + PATIENCE;
    let host = loop {
        let host = with_peer(&server, CallSide::Server, "127.0.0.1");
        if host.2 >= payload_bytes || Instant::now() > end {
            break host;
        }
    };
    assert!(host.0 >= 3, "{host:?}");
    assert!(heads.contains(&host.2), "{host:?}");
    assert_eq!(host.1, sent_bytes);
    assert_eq!(with_peer(&server, CallSide::Client, "127.0.0.1"), (0, 0, 0));

    // What a connection has counted stays when it is gone.
    client.disconnect(&peer);
    let left = with_peer(&worker, CallSide::Client, &address);
    assert_eq!((left.0, left.1), (calls, received_bytes));
}

#[test]
fn calls_without_a_connection_are_told_apart() {
    let server = start("ps");
    server.serve(list(), Some(PATIENCE)).wait().unwrap();
    let client = server.client();
    let nobody = client.peer("127.0.0.1:1").unwrap();
    let timeout = Duration::from_millis(100);
    client
        .call(&nobody, list(), Some(timeout))
        .wait()
        .unwrap_err();

    let all = all(&server);
    let count = |medium: &str| {
        let calls = all.iter().filter(|call| call.medium == medium);
        calls.map(|call| call.latency.count()).sum::<u64>()
    };
    assert_eq!((count("local"), count("none")), (1, 1), "{all:?}");
    assert_eq!(all.len(), 2, "{all:?}");
}

#[test]
fn an_engine_that_has_stopped_tells_nothing() {
    let server = start("ps");
    let client = server.client();
    server.shutdown(Duration::ZERO).unwrap();
    let (tell, told) = channel();
    client.shard_calls(move |calls| tell.send(calls).unwrap());
    assert_eq!(told.into_iter().count(), 0);
}

const PATIENCE: Duration = Duration::from_secs(10);

const LATE: Duration = Duration::from_millis(40);
