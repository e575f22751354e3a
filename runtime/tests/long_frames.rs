//! A tensor beyond 4 GiB crosses in one frame, and takes memory once.

#[allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses a part of it"
)]
mod support;

use std::net::SocketAddr;
use std::time::Duration;

use grpcxx_rpc::{Code, DType, Request, Response, Shape, Status, Tensor};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{Engine, EngineOptions};

const DIMS: [u64; 2] = [4, (1 << 30) + 13];
const LEN_BYTES: u64 = DIMS[0] * DIMS[1];
const MIB: u64 = 1 << 20;

fn options(job: &str, extensions: bool) -> EngineOptions {
    EngineOptions::default().with(|options| {
        options.task = TaskId::new(job, 0);
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.shm = None;
        options.extensions = extensions;
    })
}

/// Bytes at both ends and around each multiple of 4 GiB, and zeros elsewhere, which take no memory
/// until they are written.
fn tensor() -> Tensor {
    let mut bytes = vec![0; LEN_BYTES as usize];
    for (at, mark) in marks() {
        bytes[at] = mark;
    }
    Tensor::new(DType::UInt8, Shape::new(&DIMS).unwrap(), bytes).unwrap()
}

fn marks() -> impl Iterator<Item = (usize, u8)> {
    let places = [0, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, LEN_BYTES - 1];
    places
        .into_iter()
        .zip(1..)
        .map(|(at, mark)| (at as usize, mark))
}

fn receive(from: &Engine, to: &Engine) -> Result<Response, Status> {
    let key = support::key(from, 0);
    from.send(1, key.clone(), tensor()).unwrap();
    let client = to.client();
    let peer = client
        .peer(&from.local_addr().unwrap().to_string())
        .unwrap();
    let request = Request::RecvTensor { step_id: 1, key };
    client
        .call(&peer, request, Some(Duration::from_secs(120)))
        .wait()
}

/// Memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

#[test]
fn a_tensor_beyond_four_gibibytes_takes_memory_once() {
    let server = Engine::start(options("ps", true)).unwrap();
    let worker = Engine::start(options("worker", true)).unwrap();
    let before = resident_bytes();
    let Ok(Response::Tensors(tensors)) = receive(&server, &worker) else {
        panic!("the tensor did not arrive");
    };
    let used = resident_bytes() - before;
    assert!(
        used <= LEN_BYTES + 64 * MIB,
        "a tensor of {} MiB took {} MiB",
        LEN_BYTES / MIB,
        used / MIB
    );
    let data = &tensors[0].data;
    assert_eq!(data.len() as u64, LEN_BYTES);
    for (at, mark) in marks() {
        assert_eq!(data[at], mark, "at {at}");
    }
}

#[test]
fn a_peer_without_extensions_is_told_why_it_cannot_have_it() {
    let server = Engine::start(options("ps", true)).unwrap();
    let worker = Engine::start(options("worker", false)).unwrap();
    let refused = receive(&server, &worker).unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
    assert!(
        refused
            .message
            .contains("cannot be sent, allowed are 4294967295"),
        "{refused}"
    );
}
