//! Clients and servers over real sockets that take what they can get, and announce what they do not
//! send. They have an encoder of
//! their own, so that no check of the product's codec stands between them and the engine.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use grpcxx_memory::ArenaOptions;
use grpcxx_rpc::{
    Code, DType, GraphCall, RendezvousLimits, Request, Response, Shape, Status, Tensor, Text,
};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{
    Call, Engine, EngineOptions, Patience, PeerShares, STORE_LIST, STORE_PULL, STORE_PUSH,
};

const GET_STATUS: i32 = 0;
const REGISTER_GRAPH: i32 = 4;
const RECV_TENSOR: i32 = 10;
const STAR_RUN_GRAPH: i32 = 7;
const UINT8: i32 = 4;
const MIB: u64 = 1 << 20;

/// A header of star: what it is, its method or 0, tag, length of metadata or names, and of payload.
fn header(id: &[u8; 4], method: i32, tag: u64, metadata: i32, payload: u64) -> Vec<u8> {
    let mut bytes = id.to_vec();
    bytes.extend(method.to_le_bytes());
    bytes.extend(tag.to_le_bytes());
    bytes.extend(0_i32.to_le_bytes());
    bytes.extend(metadata.to_le_bytes());
    bytes.extend(payload.to_le_bytes());
    bytes
}

fn name(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u16).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// The head of a record of so many bytes, in the form with 32-bit dimensions.
fn record(len: u64) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(UINT8.to_le_bytes());
    bytes.extend((len as u32).to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend([0, UINT8 as u8, 1, 1]);
    bytes.extend((len as i64).to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes
}

/// All of a push of so many bytes, but the bytes.
fn push(len: u64) -> Vec<u8> {
    let mut metadata = 1_i32.to_le_bytes().to_vec();
    metadata.extend(name("weights"));
    metadata.extend(0_i32.to_le_bytes());
    metadata.extend(name(STORE_PUSH));
    metadata.extend(1_u64.to_le_bytes());
    metadata.extend(1_i32.to_le_bytes());
    metadata.push(0);
    metadata.extend(name(""));
    metadata.extend(name(""));
    let head = record(len);
    let payload = (metadata.len() + head.len()) as u64 + len;
    let mut bytes = header(b"AAAA", STAR_RUN_GRAPH, 1, metadata.len() as i32, payload);
    bytes.extend(metadata);
    bytes.extend(head);
    bytes
}

fn message(method: i32, len: u64) -> Vec<u8> {
    header(b"AAAA", method, 1, 0, len)
}

fn options(job: &str, arena_bytes: u64) -> EngineOptions {
    EngineOptions {
        task: TaskId::new(job, 0),
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        arena: Some(ArenaOptions {
            capacity_bytes: arena_bytes as usize,
            huge_pages: false,
            ..ArenaOptions::default()
        }),
        shm: None,
        ..EngineOptions::default()
    }
}

fn impatient(job: &str) -> EngineOptions {
    EngineOptions {
        patience: Patience {
            progress: Some(Duration::from_millis(400)),
            progress_bytes: 1000,
            ..Patience::default()
        },
        ..options(job, 128 * MIB)
    }
}

fn dial(engine: &Engine) -> TcpStream {
    let stream = TcpStream::connect(engine.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A connection on which so much is sent, and then nothing.
fn dial_and_send(engine: &Engine, bytes: &[u8]) -> TcpStream {
    let mut stream = dial(engine);
    stream.write_all(bytes).unwrap();
    stream
}

/// Waits until the engine ends the connection, which it does without a word.
fn await_end(stream: &mut TcpStream) {
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(count) => return assert_eq!(count, 0, "bytes instead of the end"),
            Err(error) => match error.kind() {
                ErrorKind::ConnectionReset => return,
                ErrorKind::Interrupted => {}
                _ => panic!("{error}"),
            },
        }
    }
}

fn honest_push(from: &Engine, to: &Engine, len: u64) -> Result<Response, Status> {
    let shape = Shape::new(&[len]).unwrap();
    let weights = Tensor::new(DType::UInt8, shape, vec![7; len as usize]).unwrap();
    let call = GraphCall {
        graph_handle: STORE_PUSH.into(),
        step_id: 1,
        feeds: vec![("honest".into(), weights)],
        fetches: Vec::new(),
        ps_graph_count: 1,
        should_trace: false,
    };
    call_to(
        from,
        to.local_addr().unwrap(),
        Request::StarRunGraph(Box::new(call)),
    )
    .wait()
}

fn call_to(from: &Engine, to: SocketAddr, request: Request) -> Call {
    let client = from.client();
    let peer = client.peer(&to.to_string()).unwrap();
    client.call(&peer, request, Some(PATIENCE))
}

/// Waits until the engine has read what was sent to it.
fn settle(engine: &Engine, connections: u64) {
    let until = Instant::now() + PATIENCE;
    while engine.counters().accepted < connections && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
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
    let idle = Patience {
        idle: Some(Duration::from_millis(300)),
        ..Patience::default()
    };
    let old = Patience {
        age: Some(Duration::from_millis(300)),
        ..Patience::default()
    };
    for patience in [idle, old] {
        let server = Engine::start(EngineOptions {
            patience,
            ..options("ps", 64 * MIB)
        })
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
    let worker = Engine::start(EngineOptions {
        extensions: false,
        ..options("worker", arena_bytes)
    })
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
    let worker = Engine::start(EngineOptions {
        extensions: false,
        ..impatient("worker")
    })
    .unwrap();
    let liar = lying_server(0, 60 * MIB + 37, record(60 * MIB));
    let status = call_to(&worker, liar, receive()).wait().unwrap_err();
    assert_eq!(status.code, Code::Unavailable, "{status}");
    assert_eq!(worker.counters().too_slow, 1);
}

/// A call without feeds of a step that announces so many calls.
fn graph_call(tag: u64, handle: &str, step_id: u64, calls: i32, fetches: &[&str]) -> Vec<u8> {
    let mut metadata = 0_i32.to_le_bytes().to_vec();
    metadata.extend((fetches.len() as i32).to_le_bytes());
    for fetch in fetches {
        metadata.extend(name(fetch));
    }
    metadata.extend(name(handle));
    metadata.extend(step_id.to_le_bytes());
    metadata.extend(calls.to_le_bytes());
    metadata.push(0);
    metadata.extend(name(""));
    metadata.extend(name(""));
    let len = metadata.len();
    let mut bytes = header(b"AAAA", STAR_RUN_GRAPH, tag, len as i32, len as u64);
    bytes.extend(metadata);
    bytes
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

/// Reads an answer: its status, and its length without the header.
fn read_answer(stream: &mut TcpStream) -> (i32, usize) {
    let mut header = [0; 32];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(&header[..4], b"BBBB");
    let number = |at: usize| i32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let payload = u64::from_le_bytes(header[24..].try_into().unwrap());
    let mut rest = vec![0; payload as usize];
    stream.read_exact(&mut rest).unwrap();
    (number(16), rest.len())
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
        fetches: Vec::new(),
        ps_graph_count: 0,
        should_trace: false,
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
    let shares = PeerShares {
        connections: 4,
        ..PeerShares::of(&RendezvousLimits::default(), 64)
    };
    let server = Engine::start(EngineOptions {
        shares: Some(shares),
        ..options("ps", 64 * MIB)
    })
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

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
