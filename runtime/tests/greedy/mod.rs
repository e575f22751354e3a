//! Connections with an encoder of their own, so that no check of the product's codec stands between
//! them and the engine, and engines that they meet.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use grpcxx_memory::ArenaOptions;
use grpcxx_rpc::{DType, GraphCall, Request, Response, Shape, Status, Tensor};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{Call, Engine, EngineOptions, STORE_PUSH};

pub(crate) const GET_STATUS: i32 = 0;
pub(crate) const REGISTER_GRAPH: i32 = 4;
pub(crate) const RECV_TENSOR: i32 = 10;
pub(crate) const FUSE_RECV_TENSOR: i32 = 11;
pub(crate) const STAR_RUN_GRAPH: i32 = 7;
pub(crate) const UINT8: i32 = 4;
pub(crate) const MIB: u64 = 1 << 20;

/// A header of star: what it is, its method or 0, tag, length of metadata or names, and of payload.
pub(crate) fn header(id: &[u8; 4], method: i32, tag: u64, metadata: i32, payload: u64) -> Vec<u8> {
    let mut bytes = id.to_vec();
    bytes.extend(method.to_le_bytes());
    bytes.extend(tag.to_le_bytes());
    bytes.extend(0_i32.to_le_bytes());
    bytes.extend(metadata.to_le_bytes());
    bytes.extend(payload.to_le_bytes());
    bytes
}

pub(crate) fn name(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u16).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// The head of a record of so many bytes, in the form with 32-bit dimensions.
pub(crate) fn record(len: u64) -> Vec<u8> {
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
pub(crate) fn push(len: u64) -> Vec<u8> {
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

pub(crate) fn message(method: i32, len: u64) -> Vec<u8> {
    header(b"AAAA", method, 1, 0, len)
}

pub(crate) fn options(job: &str, arena_bytes: u64) -> EngineOptions {
    EngineOptions::default().with(|options| {
        options.task = TaskId::new(job, 0);
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.arena = Some(ArenaOptions::default().with(|options| {
            options.capacity_bytes = arena_bytes as usize;
            options.huge_pages = false;
        }));
        options.shm = None;
    })
}

pub(crate) fn dial(engine: &Engine) -> TcpStream {
    let stream = TcpStream::connect(engine.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A connection on which so much is sent, and then nothing.
pub(crate) fn dial_and_send(engine: &Engine, bytes: &[u8]) -> TcpStream {
    let mut stream = dial(engine);
    stream.write_all(bytes).unwrap();
    stream
}

/// Waits until the engine ends the connection, which it does without a word.
pub(crate) fn await_end(stream: &mut TcpStream) {
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

pub(crate) fn honest_push(from: &Engine, to: &Engine, len: u64) -> Result<Response, Status> {
    let shape = Shape::new(&[len]).unwrap();
    let weights = Tensor::new(DType::UInt8, shape, vec![7; len as usize]).unwrap();
    let call = GraphCall {
        graph_handle: STORE_PUSH.into(),
        step_id: 1,
        feeds: vec![("honest".into(), weights)].into(),
        fetches: Vec::new().into(),
        ps_graph_count: 1,
        should_trace: false,
        trace: None,
    };
    call_to(
        from,
        to.local_addr().unwrap(),
        Request::StarRunGraph(Box::new(call)),
    )
    .wait()
}

pub(crate) fn call_to(from: &Engine, to: SocketAddr, request: Request) -> Call {
    let client = from.client();
    let peer = client.peer(&to.to_string()).unwrap();
    client.call(&peer, request, Some(PATIENCE))
}

/// Waits until the engine has read what was sent to it.
pub(crate) fn settle(engine: &Engine, connections: u64) {
    let until = Instant::now() + PATIENCE;
    while engine.counters().accepted < connections && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
}

/// A call without feeds of a step that announces so many calls.
pub(crate) fn graph_call(
    tag: u64,
    handle: &str,
    step_id: u64,
    calls: i32,
    fetches: &[&str],
) -> Vec<u8> {
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

/// Reads an answer: its status, and its length without the header.
pub(crate) fn read_answer(stream: &mut TcpStream) -> (i32, usize) {
    let mut header = [0; 32];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(&header[..4], b"BBBB");
    let number = |at: usize| i32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let payload = u64::from_le_bytes(header[24..].try_into().unwrap());
    let mut rest = vec![0; payload as usize];
    stream.read_exact(&mut rest).unwrap();
    (number(16), rest.len())
}

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
