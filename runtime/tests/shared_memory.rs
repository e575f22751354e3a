//! Engines of one host whose connections go on in shared memory.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use grpcxx_rpc::{ConnectionLimits, Features, GraphCall, Request, Response, Text};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::host::HostSetting;
use grpcxx_runtime::{
    Engine, EngineOptions, LinkMedium, Peer, STORE_PULL, STORE_PUSH, SharedMemory,
};

use crate::support::{floats, key, receive, state};

fn options(job: &str) -> EngineOptions {
    EngineOptions::default().with(|options| {
        options.task = TaskId::new(job, 0);
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    })
}

fn start(options: EngineOptions) -> Engine {
    Engine::start(options).unwrap()
}

fn peer_of(server: &Engine, worker: &Engine) -> Peer {
    let address = server.local_addr().unwrap().to_string();
    worker.client().peer(&address).unwrap()
}

fn until_moved(engine: &Engine, peer: &Peer) {
    let end = Instant::now() + Duration::from_secs(10);
    while state(engine, peer).medium != LinkMedium::SharedMemory {
        assert!(Instant::now() < end, "{:?}", state(engine, peer).stays);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Calls that are under way when the connection moves end once each, with their own answers.
#[test]
fn calls_in_flight_at_the_move_end_once() {
    for (round, host) in [
        HostSetting::Native,
        HostSetting::Auto,
        HostSetting::Native,
        HostSetting::Auto,
    ]
    .into_iter()
    .enumerate()
    {
        let with = |job| {
            options(job).with(|options| {
                options.host = host;
                options.shards = 1 + round / 2;
            })
        };
        let (server, worker) = (start(with("ps")), start(with("worker")));
        let peer = peer_of(&server, &worker);
        let lens = [1, 100, 5000, 70_000];
        let mut calls = Vec::new();
        for index in 0..800 {
            let key = key(&server, index);
            let tensor = floats(lens[index % 4], index as f32);
            // Some tensors are there before their request, some come later.
            if index % 3 == 0 {
                server.send(1, key.clone(), tensor).unwrap();
                calls.push(receive(&worker, &peer, 1, key));
            } else {
                calls.push(receive(&worker, &peer, 1, key.clone()));
                server.send(1, key, tensor).unwrap();
            }
            if index % 100 == 0 {
                std::thread::sleep(Duration::from_micros(500));
            }
        }
        for (index, call) in calls.into_iter().enumerate() {
            let Response::Tensors(tensors) = call.wait().unwrap() else {
                panic!("a tensor was asked for");
            };
            assert_eq!(tensors[0], floats(lens[index % 4], index as f32));
        }
        until_moved(&worker, &peer);
        assert_eq!(worker.counters().links_moved, 1);
        assert_eq!(server.counters().links_moved, 1);
        assert_eq!(
            worker.counters().links_stayed + server.counters().links_stayed,
            0
        );
        assert_eq!(
            server.counters().sends_refused + server.counters().restored,
            0
        );
    }
}

#[test]
fn tensors_of_the_store_are_borrowed_and_outlast_their_owner() {
    borrow(ConnectionLimits::default());
}

/// What is lent is not cut, so that it can be borrowed as a whole.
#[test]
fn tensors_of_the_store_are_borrowed_in_frames_in_chunks_too() {
    borrow(ConnectionLimits::default().with(|limits| {
        limits.whole_frame_bytes = 64 << 10;
        limits.chunk_bytes = 100_000;
    }));
}

fn borrow(connection_limits: ConnectionLimits) {
    let with = |job| options(job).with(|options| options.connection_limits = connection_limits);
    let (server, worker) = (start(with("ps")), start(with("worker")));
    let peer = peer_of(&server, &worker);
    let push = GraphCall {
        graph_handle: Text::from(STORE_PUSH),
        feeds: vec![(Text::from("weights"), floats(1 << 20, 3.5))].into(),
        ..GraphCall::default()
    };
    let request = Request::StarRunGraph(Box::new(push));
    let client = worker.client();
    client.call(&peer, request, None).wait().unwrap();
    until_moved(&worker, &peer);
    let pull = GraphCall {
        graph_handle: Text::from(STORE_PULL),
        fetches: vec![Text::from("weights")].into(),
        ..GraphCall::default()
    };
    let request = Request::StarRunGraph(Box::new(pull));
    let Response::Fetched(mut pulled) = client.call(&peer, request, None).wait().unwrap() else {
        panic!("a tensor was fetched");
    };
    let tensor = pulled.pop().unwrap().1;
    assert!(!tensor.data.is_arena(), "it is the server's memory");
    drop(server);
    assert_eq!(tensor, floats(1 << 20, 3.5));
}

/// Tensors in memory of anybody's are copied to where they can be lent, unless nothing is lent.
#[test]
fn other_tensors_are_borrowed_too() {
    for lends_arenas in [true, false] {
        let with = |job| options(job).with(|options| options.lends_arenas = lends_arenas);
        let (server, worker) = (start(with("ps")), start(with("worker")));
        let peer = peer_of(&server, &worker);
        let pull = |step_id| {
            let tensor = floats(1 << 18, step_id as f32);
            server
                .send(step_id, key(&server, 1), tensor.clone())
                .unwrap();
            let call = receive(&worker, &peer, step_id, key(&server, 1));
            let Response::Tensors(mut got) = call.wait().unwrap() else {
                panic!("a tensor was asked for");
            };
            let got = got.pop().unwrap();
            assert_eq!(got, tensor);
            got
        };
        pull(0);
        until_moved(&worker, &peer);
        // The sender learns from the first that the receiver takes them.
        pull(1);
        assert_eq!(pull(2).data.is_arena(), !lends_arenas);
    }
}

#[test]
fn whoever_does_not_want_it_stays_on_tcp() {
    let off = |job| options(job).with(|options| options.shm = None);
    let plain = |job| options(job).with(|options| options.extensions = false);
    for (server, worker) in [
        (off("ps"), options("worker")),
        (options("ps"), off("worker")),
        (plain("ps"), options("worker")),
        (options("ps"), plain("worker")),
    ] {
        let (server, worker) = (start(server), start(worker));
        let peer = peer_of(&server, &worker);
        for step_id in 0..50 {
            server
                .send(step_id, key(&server, 1), floats(3, 1.0))
                .unwrap();
            receive(&worker, &peer, step_id, key(&server, 1))
                .wait()
                .unwrap();
        }
        let state = state(&worker, &peer);
        assert_eq!(state.medium, LinkMedium::Tcp);
        let both = [&server, &worker]
            .map(|engine| matches!(engine.start_report().shared_memory, SharedMemory::On { .. }));
        assert_ne!(both, [true, true]);
        let announced = state.features.unwrap_or(Features::NONE);
        assert!(both[0] || !announced.contains(Features::SHARED_MEMORY));
        for engine in [&server, &worker] {
            assert_eq!(engine.counters().links_moved, 0);
        }
    }
}
