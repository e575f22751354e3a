//! Small calls pass a large tensor on its connection, over sockets and over shared memory.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use grpcxx_memory::ArenaOptions;
use grpcxx_rpc::{ConnectionLimits, DType, Response, Shape, Tensor};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{Engine, EngineOptions, LinkMedium};

use crate::support;

const MIB: usize = 1 << 20;
const LARGE_BYTES: usize = 512 * MIB;

fn options(job: &str, is_shared: bool) -> EngineOptions {
    EngineOptions::default().with(|options| {
        options.task = TaskId::new(job, 0);
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.shm.take_if(|_| !is_shared);
        options.arena = Some(
            ArenaOptions::default().with(|options| options.capacity_bytes = LARGE_BYTES + 64 * MIB),
        );
        options.connection_limits = ConnectionLimits::default().with(|limits| {
            limits.whole_frame_bytes = 16 * MIB as u64;
            limits.chunk_bytes = MIB;
        });
    })
}

fn bytes(len: usize) -> Tensor {
    let data: Vec<u8> = (0..len).map(|index| (index / MIB) as u8 ^ 0x5a).collect();
    Tensor::new(DType::UInt8, Shape::new(&[len as u64]).unwrap(), data).unwrap()
}

/// How many small calls end before a large one that began earlier.
fn passed(medium: LinkMedium) -> usize {
    let is_shared = medium == LinkMedium::SharedMemory;
    let server = Engine::start(options("ps", is_shared)).unwrap();
    let worker = Engine::start(options("worker", is_shared)).unwrap();
    let address = server.local_addr().unwrap().to_string();
    let peer = worker.client().peer(&address).unwrap();
    let ask = |edge: usize, tensor: &Tensor| {
        let key = support::key(&server, edge);
        server.send(1, key.clone(), tensor.clone()).unwrap();
        support::receive(&worker, &peer, 1, key)
    };
    let (small, large) = (bytes(64), bytes(LARGE_BYTES));
    // From here on both ends know of each other.
    ask(0, &small).wait().unwrap();
    let begun = Instant::now();
    while support::state(&worker, &peer).medium != medium {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "still not on {medium}"
        );
    }

    let mut pull = ask(1, &large);
    let context = &mut Context::from_waker(Waker::noop());
    let mut passed = 0;
    loop {
        let answer = ask(2 + passed, &small).wait();
        let Ok(Response::Tensors(tensors)) = answer else {
            panic!("{answer:?}");
        };
        assert!(tensors[0] == small);
        let Poll::Ready(answer) = Pin::new(&mut pull).poll(context) else {
            passed += 1;
            continue;
        };
        let Ok(Response::Tensors(tensors)) = answer else {
            panic!("{answer:?}");
        };
        assert!(tensors[0] == large, "the tensor is not as it was");
        return passed;
    }
}

#[test]
fn small_calls_pass_a_large_tensor_on_sockets() {
    let passed = passed(LinkMedium::Tcp);
    assert!(passed > 10, "{passed} small calls passed the tensor");
}

#[test]
fn small_calls_pass_a_large_tensor_in_shared_memory() {
    let passed = passed(LinkMedium::SharedMemory);
    assert!(passed > 10, "{passed} small calls passed the tensor");
}

/// An engine that stops has sent what it has begun, if its grace allows that.
#[test]
fn a_stop_waits_for_all_chunks_of_an_answer() {
    let server = Engine::start(options("ps", false)).unwrap();
    let worker = Engine::start(options("worker", false)).unwrap();
    let address = server.local_addr().unwrap().to_string();
    let peer = worker.client().peer(&address).unwrap();
    let ask = |edge: usize, tensor: &Tensor| {
        let key = support::key(&server, edge);
        server.send(1, key.clone(), tensor.clone()).unwrap();
        support::receive(&worker, &peer, 1, key)
    };
    let (small, large) = (bytes(64), bytes(LARGE_BYTES));
    ask(0, &small).wait().unwrap();
    let pull = ask(1, &large);
    // What passes it tells that it has begun.
    ask(2, &small).wait().unwrap();
    server.shutdown(Duration::from_secs(20)).unwrap();
    let Ok(Response::Tensors(tensors)) = pull.wait() else {
        panic!("the tensor did not arrive");
    };
    assert!(tensors[0] == large, "the tensor is not as it was");
}
