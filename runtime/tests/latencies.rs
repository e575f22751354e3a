//! How long calls take, as both ends of them tell.

use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::time::Duration;

use grpcxx_rpc::{GraphCall, RendezvousKey, Request, Tensor, Text};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{CallLatency, CallSide, Engine, EngineOptions, Latency, STORE_LIST};

fn start(job: &str) -> Engine {
    let options = EngineOptions {
        task: TaskId::new(job, 0),
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        shards: 2,
        ..EngineOptions::default()
    };
    Engine::start(options).unwrap()
}

fn all(engine: &Engine) -> Vec<CallLatency> {
    let (tell, told) = channel();
    let shards = engine.client().latencies(move |latencies| {
        tell.send(latencies).unwrap();
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
        fetches: vec![Text::from("names")],
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
    client.latencies(move |latencies| tell.send(latencies).unwrap());
    assert_eq!(told.into_iter().count(), 0);
}

const PATIENCE: Duration = Duration::from_secs(10);

const LATE: Duration = Duration::from_millis(40);
