//! Payload that is beyond the share of its connection, and beyond the arena, on machines that have
//! memory left and on those that have none.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use grpcxx_memory::Headroom;
use grpcxx_rpc::{Code, DType, GraphCall, Request, Response, Shape, Status, Tensor};
use grpcxx_runtime::config::Config;
use grpcxx_runtime::exposition::{MetricsPage, ProgramPage};
use grpcxx_runtime::{Engine, EngineOptions, STORE_PULL, STORE_PUSH};

use crate::greedy::*;

/// A task with an arena of 16 MiB, on a machine of 1 GiB of which so much is free.
fn task(job: &str, free: &Arc<AtomicU64>) -> EngineOptions {
    let free = Arc::clone(free);
    options(job, 16 * MIB).with(|options| {
        let arena = options.arena.as_mut().unwrap();
        let ask = move || Some(free.load(Ordering::Relaxed));
        arena.headroom = Some(Headroom::new(1 << 30, ask));
    })
}

fn free(mib: u64) -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(mib * MIB))
}

fn start(job: &str, free: &Arc<AtomicU64>) -> Engine {
    Engine::start(task(job, free)).unwrap()
}

fn sized(job: &str, arena_bytes: u64) -> Engine {
    Engine::start(options(job, arena_bytes)).unwrap()
}

/// What the arenas of a task have handed out within and beyond their capacity.
fn used(engine: &Engine) -> (usize, usize) {
    let (sender, told) = channel();
    let shards = engine.client().inspect_shards(move |shard| {
        let _ = sender.send(shard.arena);
    });
    let arenas = (0..shards).map(|_| told.recv_timeout(PATIENCE).unwrap());
    arenas.fold((0, 0), |(within, beyond), arena| {
        (within + arena.in_use_bytes, beyond + arena.beyond_bytes)
    })
}

fn push_all(from: &Engine, to: &Engine, lengths: &[u64]) -> Result<Response, Status> {
    let tensor = |len: &u64| {
        let shape = Shape::new(&[*len]).unwrap();
        Tensor::new(DType::UInt8, shape, vec![7; *len as usize]).unwrap()
    };
    let feeds = (lengths.iter().enumerate())
        .map(|(index, len)| (format!("honest/{index}").into(), tensor(len)));
    let call = GraphCall {
        graph_handle: STORE_PUSH.into(),
        step_id: 1,
        feeds: feeds.collect(),
        fetches: Vec::new().into(),
        ps_graph_count: 1,
        should_trace: false,
        trace: None,
    };
    let request = Request::StarRunGraph(Box::new(call));
    call_to(from, to.local_addr().unwrap(), request).wait()
}

fn pull(from: &Engine, to: &Engine) -> Result<Response, Status> {
    let call = GraphCall {
        graph_handle: STORE_PULL.into(),
        step_id: 1,
        feeds: Vec::new().into(),
        fetches: vec!["honest".into()].into(),
        ps_graph_count: 1,
        should_trace: false,
        trace: None,
    };
    let request = Request::StarRunGraph(Box::new(call));
    call_to(from, to.local_addr().unwrap(), request).wait()
}

#[test]
fn a_push_of_any_size_is_taken_while_the_machine_has_memory() {
    let server = start("ps", &free(600));
    let worker = sized("worker", 256 * MIB);
    // Within the share, beyond it, beyond the arena.
    for mib in [4, 12, 100, 1] {
        let pushed = honest_push(&worker, &server, mib * MIB);
        assert!(pushed.is_ok(), "{mib} MiB: {pushed:?}");
    }
    // Many tensors of one frame, and more frames than the arena has room for.
    assert!(push_all(&worker, &server, &[5 * MIB; 20]).is_ok());
    let (_, beyond) = used(&server);
    assert!(beyond >= 84 << 20, "{beyond}");
    let metrics = MetricsPage::start(
        ([127, 0, 0, 1], 0).into(),
        server.exposition(),
        None,
        ProgramPage::default(),
    )
    .unwrap();
    let mut page = TcpStream::connect(metrics.address()).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    page.write_all(request).unwrap();
    let mut text = String::new();
    page.read_to_string(&mut text).unwrap();
    let row = format!("\ngrpcxx_arena_beyond_bytes{{shard=\"0\"}} {beyond}\n");
    assert!(text.contains(&row), "{row} is not in\n{text}");
    assert_eq!(server.counters().memory_refused, 0);
}

#[test]
fn an_answer_of_any_size_is_taken_while_the_machine_has_memory() {
    let server = sized("ps", 256 * MIB);
    let worker = start("worker", &free(600));
    honest_push(&sized("pusher", 256 * MIB), &server, 100 * MIB).unwrap();
    let answer = pull(&worker, &server);
    let Ok(Response::Fetched(fetched)) = &answer else {
        panic!("{answer:?}");
    };
    let data = &fetched[0].1.data;
    assert_eq!(data.len() as u64, 100 * MIB);
    assert!(data.iter().all(|byte| *byte == 7));
}

#[test]
fn a_refusal_names_what_was_asked_what_is_allowed_and_why() {
    let free = free(150);
    let server = start("ps", &free);
    let worker = sized("worker", 256 * MIB);
    let refused = honest_push(&worker, &server, 100 * MIB).unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
    for part in [
        "announce 104857600 bytes, and its share of the arena is 8388608",
        "23068672 bytes are allowed now",
        "157286400 bytes of the memory of this machine or control group are free",
        "134217728 of them are kept unused",
        "raise GRPCXX_ARENA_BYTES of the receiver",
    ] {
        assert!(
            refused.message.contains(part),
            "{part}: {}",
            refused.message
        );
    }
    assert!(honest_push(&worker, &server, 20 * MIB).is_ok());
    free.store(600 * MIB, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(20));
    assert!(honest_push(&worker, &server, 100 * MIB).is_ok());
}

#[test]
fn limits_that_were_set_are_limits() {
    let free = free(600);
    let worker = sized("worker", 256 * MIB);
    let limited = task("ps", &free).with(|options| {
        options.connection_limits = options.connection_limits.with(|limits| {
            limits.arena_bytes = 3 * MIB;
        });
    });
    let limited = Engine::start(limited).unwrap();
    let fixed = sized("ps", 16 * MIB);
    for (server, taken, refused, allowed) in [(limited, 2, 4, 3), (fixed, 7, 9, 8)] {
        assert!(honest_push(&worker, &server, taken * MIB).is_ok());
        let refused = honest_push(&worker, &server, refused * MIB).unwrap_err();
        let allowed = format!("allowed are {} (", allowed * MIB);
        assert!(refused.message.contains(&allowed), "{}", refused.message);
        assert!(
            refused
                .message
                .contains("GRPCXX_CONNECTION_ARENA_BYTES_MAX")
        );
    }
}

#[test]
fn announcements_take_nothing_beyond_the_arena_but_windows() {
    let server = start("ps", &free(600));
    let worker = sized("worker", 256 * MIB);
    let _silent: Vec<TcpStream> = (0..50)
        .map(|_| dial_and_send(&server, &push(300 * MIB)))
        .collect();
    settle(&server, 50);
    let (within, beyond) = used(&server);
    assert!(
        within < 1 << 20 && beyond <= 50 * (64 << 10) + 4096 * 50,
        "{within} {beyond}"
    );
    for mib in [1, 4, 300] {
        assert!(honest_push(&worker, &server, mib * MIB).is_ok());
    }
}

/// A connection that has sent so much of a push of so much.
fn unfinished(server: &Engine, sent_mib: u64, announced_mib: u64) -> TcpStream {
    let mut stream = dial_and_send(server, &push(announced_mib * MIB));
    for _ in 0..sent_mib {
        stream.write_all(&vec![1; MIB as usize]).unwrap();
    }
    stream
}

fn until_used(server: &Engine, is_so: impl Fn((usize, usize)) -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so(used(server)) {
        assert!(Instant::now() < until, "{:?}", used(server));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn who_holds_all_that_is_free_leaves_the_arena_to_others() {
    let free = free(200);
    let server = start("ps", &free);
    let worker = sized("worker", 256 * MIB);
    let mut greedy = unfinished(&server, 59, 60);
    until_used(&server, |(_, beyond)| beyond >= 59 << 20);
    free.store(130 * MIB, Ordering::Relaxed);
    assert!(used(&server).0 < 1 << 20, "none of it is of the arena");
    for _ in 0..20 {
        assert!(honest_push(&worker, &server, 5 * MIB).is_ok());
        assert!(honest_push(&worker, &server, 1000).is_ok());
    }
    let refused = honest_push(&worker, &server, 12 * MIB);
    assert!(refused.is_err(), "nothing is left beyond");
    greedy.write_all(&vec![1; MIB as usize]).unwrap();
    let mut answer = [0; 32];
    greedy.read_exact(&mut answer).unwrap();
    assert_eq!(answer[16..20], [0; 4]);
}

#[test]
fn who_holds_the_arena_too_leaves_what_is_kept_for_small_requests() {
    let free = free(200);
    let server = start("ps", &free);
    let worker = sized("worker", 256 * MIB);
    let _beyond = unfinished(&server, 59, 60);
    until_used(&server, |(_, beyond)| beyond >= 59 << 20);
    free.store(120 * MIB, Ordering::Relaxed);
    let mut within: Vec<TcpStream> = (0..20).map(|_| unfinished(&server, 1, 2)).collect();
    until_used(&server, |(within, _)| within >= 8 << 20);
    // How many of them it takes depends on how those that grow at once fit beside each other.
    while honest_push(&worker, &server, 6 * MIB).is_ok() {
        within.push(unfinished(&server, 1, 2));
        assert!(within.len() < 200, "{:?}", used(&server));
    }
    for _ in 0..20 {
        assert!(honest_push(&worker, &server, 1000).is_ok());
    }
}

/// Its arena stands for the share of one task of many: the test is to be light on any machine.
#[test]
fn a_task_among_many_takes_what_is_free_of_this_machine() {
    let task = options("ps", MIB).task;
    let among_many = EngineOptions::from_config(&Config::default(), task, 16);
    let server = Engine::start(among_many.with(|options| {
        options.shards = 2;
        options.pin = false;
        options.listen = Some(([127, 0, 0, 1], 0).into());
        options.shm = None;
        options.arena.as_mut().unwrap().capacity_bytes = 16 << 20;
    }))
    .unwrap();
    assert!(
        server
            .start_report()
            .to_string()
            .contains("arena=16MiB/shard+free ")
    );
    let worker = sized("worker", 256 * MIB);
    for mib in [4, 12, 60] {
        let pushed = honest_push(&worker, &server, mib * MIB);
        assert!(pushed.is_ok(), "{mib} MiB: {pushed:?}");
    }
}
