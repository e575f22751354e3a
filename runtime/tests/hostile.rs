//! Clients and servers over real sockets that take what they can get, and announce what they do not
//! send.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, DType, GraphCall, RendezvousLimits, Request, Shape, Tensor, Text};
use grpcxx_runtime::{
    Call, Engine, EngineOptions, Patience, PeerShares, STORE_LIST, STORE_PULL, STORE_PUSH,
};

use crate::greedy::*;

fn impatient(job: &str) -> EngineOptions {
    options(job, 128 * MIB).with(|options| {
        options.patience = Patience::default().with(|patience| {
            patience.progress = Some(Duration::from_millis(400));
            patience.progress_bytes = 1000;
        })
    })
}

#[test]
fn announced_bytes_are_not_owned_bytes() {
    const CONNECTIONS: u64 = 105;
    let arena_bytes = 256 * MIB;
    let announcements = [
        // As much as the arena has, in all.
        message(REGISTER_GRAPH, arena_bytes / CONNECTIONS),
        message(REGISTER_GRAPH, 60 * MIB),
        push(arena_bytes / CONNECTIONS),
        push(100 * MIB),
    ];
    for announcement in announcements {
        let server = Engine::start(options("ps", arena_bytes)).unwrap();
        let worker = Engine::start(options("worker", arena_bytes)).unwrap();
        let _silent: Vec<TcpStream> = (0..CONNECTIONS)
            .map(|_| dial_and_send(&server, &announcement))
            .collect();
        settle(&server, CONNECTIONS);
        for len in [1000, 64 * MIB, 1000] {
            let pushed = honest_push(&worker, &server, len);
            assert!(pushed.is_ok(), "{len} bytes: {pushed:?}");
        }
        assert_eq!(server.counters().violations, 0);
    }
}

#[test]
fn a_push_beyond_the_share_of_a_connection_is_refused_before_it_has_come() {
    let server = Engine::start(options("ps", 64 * MIB)).unwrap();
    let mut stream = dial_and_send(&server, &push(40 * MIB));
    let mut answer = vec![0; 32];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[..4], b"BBBB");
    assert_eq!(
        answer[16..20],
        (Code::ResourceExhausted as i32).to_le_bytes()
    );
    let mut text = vec![0; usize::from(answer[24])];
    stream.read_exact(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("allowed are 33554432"), "{text}");
    // The connection goes on behind what was announced.
    for _ in 0..40 {
        stream.write_all(&vec![0; MIB as usize]).unwrap();
    }
    stream.write_all(&message(GET_STATUS, 0)).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[16..20], [0; 4]);
}

#[test]
fn a_frame_that_does_not_go_on_ends_its_connection() {
    let server = Engine::start(impatient("ps")).unwrap();
    let half_a_header = message(REGISTER_GRAPH, 9)[..16].to_vec();
    let announced = message(REGISTER_GRAPH, 60 * MIB);
    let begun = push(10 * MIB);
    let half_a_record = begun[..begun.len() - 8].to_vec();
    let cases = [half_a_header, announced, begun, half_a_record];
    for (count, bytes) in (1..).zip(cases) {
        let started = Instant::now();
        let mut stream = dial_and_send(&server, &bytes);
        await_end(&mut stream);
        assert!(started.elapsed() >= Duration::from_millis(400), "{count}");
        assert_eq!(server.counters().too_slow, count);
    }
    assert_eq!(server.counters().violations, 4);
}

#[test]
fn a_frame_that_crawls_ends_its_connection() {
    let server = Engine::start(impatient("ps")).unwrap();
    let mut stream = dial_and_send(&server, &push(10 * MIB));
    let until = Instant::now() + PATIENCE;
    while stream.write_all(&[1]).is_ok() {
        assert!(Instant::now() < until, "nobody minds");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.counters().too_slow, 1);
}

#[test]
fn connections_may_be_silent_between_frames_and_slow_within_reason() {
    let server = Engine::start(impatient("ps")).unwrap();
    let mut silent = dial(&server);
    let mut slow = dial_and_send(&server, &message(REGISTER_GRAPH, 100 * 400));
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(15));
        slow.write_all(&[0; 400]).unwrap();
    }
    for stream in [&mut silent, &mut slow] {
        let mut answer = [0; 32];
        stream.write_all(&message(GET_STATUS, 0)).unwrap();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[..4], b"BBBB");
    }
    assert_eq!(server.counters().too_slow, 0);
}

#[test]
fn connections_that_nobody_uses_are_closed_where_that_is_asked_for() {
    let idle =
        Patience::default().with(|patience| patience.idle = Some(Duration::from_millis(300)));
    let old = Patience::default().with(|patience| patience.age = Some(Duration::from_millis(300)));
    for patience in [idle, old] {
        let server =
            Engine::start(options("ps", 64 * MIB).with(|options| options.patience = patience))
                .unwrap();
        let mut stream = dial(&server);
        await_end(&mut stream);
        assert_eq!(server.counters().unused_closed, 1);
    }
}

/// A server that answers each first request with these bytes behind a header, and then falls
/// silent.
/// `payload` is what the header announces.
fn lying_server(names: i32, payload: u64, bytes: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 32];
            stream.read_exact(&mut request).unwrap();
            let tag = u64::from_le_bytes(request[8..16].try_into().unwrap());
            let mut answer = header(b"BBBB", 0, tag, names, payload);
            answer.extend(&bytes);
            stream.write_all(&answer).unwrap();
            silent.push(stream);
        }
    });
    address
}

fn receive() -> Request {
    let key = "/job:ps/replica:0/task:0/device:CPU:0;0000000000000001;\
               /job:worker/replica:0/task:0/device:CPU:0;edge;0:0";
    Request::RecvTensor {
        step_id: 1,
        key: key.into(),
    }
}

#[test]
fn answers_that_are_announced_and_do_not_come_take_nothing_from_others() {
    let arena_bytes = 128 * MIB;
    let worker =
        Engine::start(options("worker", arena_bytes).with(|options| options.extensions = false))
            .unwrap();
    let honest = Engine::start(options("ps", arena_bytes)).unwrap();
    let liars: Vec<SocketAddr> = (0..40)
        .map(|_| lying_server(0, 60 * MIB + 37, record(60 * MIB)))
        .collect();
    let calls: Vec<Call> = liars
        .iter()
        .map(|&liar| call_to(&worker, liar, receive()))
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    let key = grpcxx_rpc::RendezvousKey::new(
        &honest.device_attributes().name,
        honest.incarnation(),
        "/job:worker/replica:0/task:0/device:CPU:0",
        "edge",
    )
    .unwrap()
    .to_text();
    let shape = Shape::new(&[32 * MIB]).unwrap();
    let tensor = Tensor::new(DType::UInt8, shape, vec![7; 32 << 20]).unwrap();
    honest.send(1, key.clone(), tensor).unwrap();
    let request = Request::RecvTensor { step_id: 1, key };
    let received = call_to(&worker, honest.local_addr().unwrap(), request).wait();
    assert!(received.is_ok(), "{received:?}");
    drop(calls);
}

#[test]
fn a_server_that_falls_silent_in_an_answer_is_left() {
    let worker =
        Engine::start(impatient("worker").with(|options| options.extensions = false)).unwrap();
    let liar = lying_server(0, 60 * MIB + 37, record(60 * MIB));
    let status = call_to(&worker, liar, receive()).wait().unwrap_err();
    assert_eq!(status.code, Code::Unavailable, "{status}");
    assert_eq!(worker.counters().too_slow, 1);
}

/// A request for one tensor of a step.
fn receive_of(step_id: u8, key: &str) -> Vec<u8> {
    let mut body = vec![0x08, step_id, 0x12];
    body.extend([key.len() as u8 | 0x80, (key.len() >> 7) as u8]);
    body.extend(key.as_bytes());
    let mut bytes = header(b"AAAA", RECV_TENSOR, step_id.into(), 0, body.len() as u64);
    bytes.extend(body);
    bytes
}

fn key_of(server: &Engine, edge: &str) -> String {
    let key = grpcxx_rpc::RendezvousKey::new(
        &server.device_attributes().name,
        server.incarnation(),
        "/job:worker/replica:0/task:0/device:CPU:0",
        edge,
    );
    key.unwrap().to_text().to_string()
}

const EXHAUSTED: i32 = Code::ResourceExhausted as i32;

#[test]
fn receives_of_one_connection_leave_steps_to_others() {
    const STEPS: u8 = 64;
    let mut options = options("ps", 64 * MIB);
    options.rendezvous_limits.steps = usize::from(STEPS);
    let server = Engine::start(options).unwrap();
    let worker = Engine::start(self::options("worker", 64 * MIB)).unwrap();
    let mut greedy = dial(&server);
    for step_id in 0..STEPS {
        let bytes = receive_of(step_id, &key_of(&server, "greedy"));
        greedy.write_all(&bytes).unwrap();
    }
    for _ in STEPS / 4..STEPS {
        assert_eq!(read_answer(&mut greedy).0, EXHAUSTED);
    }
    let key: Text = key_of(&server, "honest").as_str().into();
    let request = Request::RecvTensor {
        step_id: 1000,
        key: key.clone(),
    };
    let honest = call_to(&worker, server.local_addr().unwrap(), request);
    settle(&server, 2);
    let tensor = Tensor::new(DType::UInt8, Shape::new(&[3]).unwrap(), vec![1, 2, 3]).unwrap();
    server.send(1000, key, tensor).unwrap();
    honest.wait().unwrap();
    // A step that it waits in already is still open to the greedy one.
    let bytes = receive_of(1, &key_of(&server, "another"));
    greedy.write_all(&bytes).unwrap();
    settle(&server, 2);
    assert_eq!(server.counters().waits_refused, 48);
}

/// All of these are one peer: they call from one address and prove nothing.
#[test]
fn receives_of_many_connections_leave_something_to_the_next_one() {
    let mut options = options("ps", 64 * MIB);
    options.rendezvous_limits.steps = 64;
    let server = Engine::start(options).unwrap();
    let worker = Engine::start(self::options("worker", 64 * MIB)).unwrap();
    let greedy: Vec<TcpStream> = (0..6)
        .map(|_| {
            let mut greedy = dial(&server);
            for step_id in 0..64 {
                let bytes = receive_of(step_id, &key_of(&server, "greedy"));
                greedy.write_all(&bytes).unwrap();
            }
            // At least the last of them is refused.
            assert_eq!(read_answer(&mut greedy).0, EXHAUSTED);
            greedy
        })
        .collect();
    let key: Text = key_of(&server, "honest").as_str().into();
    let request = Request::RecvTensor {
        step_id: 1000,
        key: key.clone(),
    };
    let honest = call_to(&worker, server.local_addr().unwrap(), request);
    settle(&server, 1 + greedy.len() as u64);
    let tensor = Tensor::new(DType::UInt8, Shape::new(&[3]).unwrap(), vec![1, 2, 3]).unwrap();
    server.send(1000, key, tensor).unwrap();
    honest.wait().unwrap();
}

#[test]
fn connections_that_ask_for_nothing_give_way_to_the_next_one() {
    let mut options = options("ps", 64 * MIB);
    let shares = PeerShares::of(&options.rendezvous_limits, 8);
    assert_eq!(shares.connections, 4);
    options.shares = Some(shares);
    let server = Engine::start(options).unwrap();
    let silent: Vec<TcpStream> = (0..4).map(|_| dial(&server)).collect();
    settle(&server, 4);
    let worker = Engine::start(self::options("worker", 64 * MIB)).unwrap();
    let request = Request::RecvTensor {
        step_id: 1,
        key: key_of(&server, "honest").as_str().into(),
    };
    let tensor = Tensor::new(DType::UInt8, Shape::new(&[1]).unwrap(), vec![1]).unwrap();
    server
        .send(1, key_of(&server, "honest").as_str().into(), tensor)
        .unwrap();
    call_to(&worker, server.local_addr().unwrap(), request)
        .wait()
        .unwrap();
    let has_ended = |mut stream: &TcpStream| {
        let patience = Some(Duration::from_millis(200));
        stream.set_read_timeout(patience).unwrap();
        stream.read(&mut [0]).is_ok_and(|bytes| bytes == 0)
    };
    let ended = silent.iter().filter(|stream| has_ended(stream));
    assert_eq!(ended.count(), 1);
    assert_eq!(server.counters().unused_closed, 1);
    assert_eq!(server.counters().connections_refused, 0);
}

#[test]
fn abandoned_steps_do_not_end_the_cleanup_of_others() {
    let mut options = options("ps", 64 * MIB);
    options.rendezvous_limits.steps = 64;
    let server = Engine::start(options).unwrap();
    let mut crashed = dial(&server);
    for step_id in 0..100 {
        let call = graph_call(step_id, STORE_PULL, step_id, 2, &[]);
        crashed.write_all(&call).unwrap();
        assert_eq!(read_answer(&mut crashed).0, 0);
    }
    assert_eq!(server.counters().countdowns_given_up, 68);
    let mut honest = dial(&server);
    for tag in 0..2 {
        let call = graph_call(tag, STORE_PULL, 7777, 2, &[]);
        honest.write_all(&call).unwrap();
        assert_eq!(read_answer(&mut honest).0, 0);
    }
    let worker = Engine::start(self::options("worker", 64 * MIB)).unwrap();
    let request = Request::RecvTensor {
        step_id: 7777,
        key: key_of(&server, "late").as_str().into(),
    };
    let late = call_to(&worker, server.local_addr().unwrap(), request).wait();
    assert_eq!(
        late.unwrap_err().code,
        Code::Aborted,
        "it was not cleaned up"
    );
}

/// A server that keeps one connection from being owed more than 1 MiB, and a worker.
fn sparing() -> (Engine, Engine) {
    let mut options = options("ps", 64 * MIB);
    options.connection_limits.unsent_bytes = MIB;
    let server = Engine::start(options).unwrap();
    (
        server,
        Engine::start(self::options("worker", 64 * MIB)).unwrap(),
    )
}

const QUESTIONS: u64 = 100;

#[test]
fn questions_wait_while_nobody_reads_the_answers() {
    let (server, worker) = sparing();
    assert!(honest_push(&worker, &server, MIB).is_ok());
    let mut greedy = dial(&server);
    for tag in 0..QUESTIONS {
        let question = graph_call(tag, STORE_PULL, 0, 0, &["honest"]);
        greedy.write_all(&question).unwrap();
    }
    settle(&server, 2);
    let taken = server.counters().requests;
    assert!(
        taken < QUESTIONS / 2,
        "{taken} requests taken, and nothing read"
    );
    assert!(honest_push(&worker, &server, 1000).is_ok());
    for _ in 0..QUESTIONS {
        assert_eq!(read_answer(&mut greedy).0, 0);
    }
}

#[test]
fn answers_of_functions_that_nobody_reads_are_refused() {
    let (server, worker) = sparing();
    let weights = || Tensor::new(DType::UInt8, Shape::new(&[1]).unwrap(), vec![7]).unwrap();
    let feeds = (0..2000).map(|index| (format!("{index:0>250}").as_str().into(), weights()));
    let push = GraphCall {
        graph_handle: STORE_PUSH.into(),
        step_id: 0,
        feeds: feeds.collect(),
        fetches: Vec::new().into(),
        ps_graph_count: 0,
        should_trace: false,
        trace: None,
    };
    let push = Request::StarRunGraph(Box::new(push));
    let pushed = call_to(&worker, server.local_addr().unwrap(), push).wait();
    assert!(pushed.is_ok());
    let mut greedy = dial(&server);
    for tag in 0..QUESTIONS {
        let question = graph_call(tag, STORE_LIST, 0, 0, &["names"]);
        greedy.write_all(&question).unwrap();
    }
    settle(&server, 2);
    assert!(honest_push(&worker, &server, 1000).is_ok());
    let answers: Vec<(i32, usize)> = (0..QUESTIONS).map(|_| read_answer(&mut greedy)).collect();
    let of = |code: i32| answers.iter().filter(|(status, _)| *status == code).count() as u64;
    assert_eq!(of(0) + of(EXHAUSTED), QUESTIONS);
    assert!(
        (1..QUESTIONS / 2).contains(&of(0)),
        "{} answers were kept",
        of(0)
    );
}

#[test]
fn one_peer_has_so_many_connections_and_no_more() {
    let shares =
        PeerShares::of(&RendezvousLimits::default(), 64).with(|shares| shares.connections = 4);
    let server =
        Engine::start(options("ps", 64 * MIB).with(|options| options.shares = Some(shares)))
            .unwrap();
    let ask = |stream: &mut TcpStream| {
        stream.write_all(&message(GET_STATUS, 0)).unwrap();
        read_answer(stream).0
    };
    let mut open: Vec<TcpStream> = (0..4).map(|_| dial(&server)).collect();
    for stream in &mut open {
        assert_eq!(ask(stream), 0);
    }
    await_end(&mut dial(&server));
    assert_eq!(server.counters().connections_refused, 1);
    open.pop();
    let until = Instant::now() + PATIENCE;
    while server.counters().closed == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ask(&mut dial(&server)), 0);
}
