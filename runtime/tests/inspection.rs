//! What shards tell of what waits in them.

use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, GraphCall, RendezvousKey, Request, Tensor, Text};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{
    CallSide, Engine, EngineOptions, INSPECTED_ROWS_MAX, ShardInspection, name_peers,
};

fn start(job: &str) -> Engine {
    let options = EngineOptions::default().with(|options| {
        options.task = TaskId::new(job, 0);
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.shards = SHARDS;
    });
    Engine::start(options).unwrap()
}

fn inspect(engine: &Engine) -> Vec<ShardInspection> {
    let (tell, told) = channel();
    let shards = engine.client().inspect_shards(move |shard| {
        tell.send(shard).unwrap();
    });
    let mut told: Vec<_> = told.into_iter().collect();
    assert_eq!((shards, told.len()), (SHARDS, SHARDS));
    name_peers(&mut told);
    told
}

/// Looks until `count` requests wait.
fn until_waiting(engine: &Engine, count: usize) -> Vec<ShardInspection> {
    let end = Instant::now() + PATIENCE;
    loop {
        let told = inspect(engine);
        if told.iter().map(|shard| shard.receives_total).sum::<usize>() == count {
            return told;
        }
        assert!(Instant::now() < end, "{told:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn key(engine: &Engine, edge: &str) -> Text {
    let (name, incarnation) = (&engine.device_attributes().name, engine.incarnation());
    let receiver = "/job:worker/replica:0/task:0/device:CPU:0";
    RendezvousKey::new(name, incarnation, receiver, edge)
        .unwrap()
        .to_text()
}

#[test]
fn an_incoming_connection_tells_why_it_stays_on_tcp() {
    let start = |job, change: fn(&mut EngineOptions)| {
        let options = EngineOptions::default().with(|options| {
            options.task = TaskId::new(job, 0);
            options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
            options.shards = SHARDS;
            options.rdma = None;
        });
        Engine::start(options.with(change)).unwrap()
    };
    let as_it_is: fn(&mut EngineOptions) = |_| {};
    let off: fn(&mut EngineOptions) = |options| options.shm = None;
    let plain: fn(&mut EngineOptions) = |options| options.extensions = false;
    for (server, worker, reason) in [
        (off, as_it_is, "this task has no other medium"),
        (
            as_it_is,
            off,
            "the peer knows no other medium that this task has",
        ),
        (
            as_it_is,
            plain,
            "the peer has not said that it knows another medium",
        ),
    ] {
        let (server, worker) = (start("ps", server), start("worker", worker));
        let remote = worker.connect(&server.local_addr().unwrap().to_string());
        remote.unwrap().status().wait().unwrap();
        let told = inspect(&server);
        let stays = told.iter().flat_map(|shard| &shard.connections);
        let stays: Vec<_> = stays.filter_map(|found| found.stays.as_deref()).collect();
        assert_eq!(stays, [reason]);
    }
}

#[test]
fn a_receive_that_waits_is_told_with_its_step_its_missing_key_and_who_asks() {
    let (server, worker) = (start("ps"), start("worker"));
    let client = worker.client();
    let address = server.local_addr().unwrap().to_string();
    let peer = client.peer(&address).unwrap();
    // Steps have homes on all shards, and the connection is on one.
    let steps = 1..=9;
    let ask = |step_id: i64| {
        let keys = vec![key(&server, "there"), key(&server, "missing")];
        let keys = keys.into();
        server
            .send(step_id, key(&server, "there"), Tensor::scalar(1f32))
            .unwrap();
        client.call(&peer, Request::FuseRecvTensor { step_id, keys }, None)
    };
    let calls: Vec<_> = steps.clone().map(ask).collect();
    until_waiting(&server, 9);
    std::thread::sleep(Duration::from_millis(30));
    let told = until_waiting(&server, 9);

    let receives: Vec<_> = told.iter().flat_map(|shard| &shard.receives).collect();
    let mut waiting: Vec<i64> = receives.iter().map(|receive| receive.step_id).collect();
    waiting.sort_unstable();
    assert_eq!(waiting, steps.clone().collect::<Vec<_>>());
    assert!(told.iter().filter(|shard| shard.receives_total > 0).count() > 1);
    for receive in receives {
        assert_eq!((&receive.key, receive.keys), (&key(&server, "missing"), 2));
        assert!(receive.age >= Duration::from_millis(25), "{receive:?}");
        let peer = receive.peer.as_deref();
        assert!(
            peer.is_some_and(|peer| peer.starts_with("127.0.0.1:")),
            "{receive:?}"
        );
    }
    let connections = told.iter().flat_map(|shard| &shard.connections);
    let asked = connections.filter(|found| found.side == CallSide::Server);
    let asked: Vec<_> = asked.collect();
    assert_eq!((asked.len(), asked[0].under_way), (1, 9), "{asked:?}");
    assert!(
        asked[0].oldest >= Some(Duration::from_millis(25)),
        "{asked:?}"
    );

    let told = inspect(&worker);
    let connections = told.iter().flat_map(|shard| &shard.connections);
    let calling: Vec<_> = connections.collect();
    assert_eq!(
        (calling.len(), calling[0].peer.as_str()),
        (1, address.as_str())
    );
    assert_eq!(
        (calling[0].side, calling[0].under_way),
        (CallSide::Client, 9)
    );

    for step_id in steps {
        server
            .send(step_id, key(&server, "missing"), Tensor::scalar(2f32))
            .unwrap();
    }
    for call in calls {
        call.wait().unwrap();
    }
    until_waiting(&server, 0);
}

#[test]
fn tensors_that_nobody_asked_for_are_told_up_to_a_limit() {
    let server = start("ps");
    let count = INSPECTED_ROWS_MAX + 50;
    for edge in 0..count {
        let key = key(&server, &edge.to_string());
        server.send(1, key, Tensor::scalar(1f32)).unwrap();
    }
    let end = Instant::now() + PATIENCE;
    let told = loop {
        let told = inspect(&server);
        if told.iter().map(|shard| shard.keys_total).sum::<usize>() == count {
            break told;
        }
        assert!(Instant::now() < end, "{told:?}");
    };
    let home = told.iter().find(|shard| shard.keys_total > 0).unwrap();
    assert_eq!(home.parked.len(), INSPECTED_ROWS_MAX);
    assert_eq!(home.parked_bytes, 4 * count as u64);
    assert!(
        home.parked
            .iter()
            .all(|tensor| (tensor.step_id, tensor.bytes) == (1, 4))
    );
}

#[test]
fn what_failed_last_is_told_at_both_ends() {
    let (server, worker) = (start("ps"), start("worker"));
    let client = worker.client();
    let peer = client
        .peer(&server.local_addr().unwrap().to_string())
        .unwrap();
    let call = GraphCall {
        graph_handle: Text::from("no such function"),
        ..GraphCall::default()
    };
    let request = Request::StarRunGraph(Box::new(call));
    client
        .call(&peer, request, Some(PATIENCE))
        .wait()
        .unwrap_err();
    for (engine, side) in [(&worker, CallSide::Client), (&server, CallSide::Server)] {
        let told = inspect(engine);
        let failures: Vec<_> = told.iter().flat_map(|shard| &shard.failures).collect();
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert_eq!((failures[0].side, failures[0].code), (side, Code::NotFound));
        assert!(
            failures[0].message.contains("no such function"),
            "{failures:?}"
        );
    }
}

const SHARDS: usize = 3;

const PATIENCE: Duration = Duration::from_secs(10);
