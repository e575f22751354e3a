//! Small calls beside the pull of a large tensor on the same connection, and how long the pull
//! takes, with frames in chunks of several lengths and in one piece.
//!
//! `cargo bench --bench chunks -- [MEDIUM [MIB [ROUNDS [CHUNK_MIB...]]]]`: `tcp`, `shm` or `rdma`,
//! 1024, 5 and `0 8 16 32 64`; a chunk of 0 MiB is the whole frame. The rounds of all lengths take
//! turns, each with memory of its own for the tensor.

#![allow(clippy::print_stdout, reason = "a bench prints")]

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use grpcxx_memory::ArenaOptions;
use grpcxx_rdma::RdmaOptions;
use grpcxx_rpc::{ConnectionLimits, DType, RendezvousKey, Request, Shape, Tensor, Text};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{Call, Engine, EngineOptions, LinkMedium, Peer};

const MIB: usize = 1 << 20;

/// Two engines, and how their frames are cut.
struct Scene {
    chunk_mib: usize,
    server: Engine,
    worker: Engine,
    peer: Peer,
    edges: usize,
    pulls: Vec<Duration>,
    small: Vec<Duration>,
    alone: Vec<Duration>,
}

fn options(job: &str, medium: LinkMedium, chunk_mib: usize, arena_bytes: usize) -> EngineOptions {
    EngineOptions::default().with(|options| {
        options.task = TaskId::new(job, 0);
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.shm.take_if(|_| medium != LinkMedium::SharedMemory);
        options.rdma = (medium == LinkMedium::Rdma).then(RdmaOptions::default);
        options.arena =
            Some(ArenaOptions::default().with(|options| options.capacity_bytes = arena_bytes));
        options.connection_limits = ConnectionLimits::default().with(|limits| {
            limits.whole_frame_bytes = if chunk_mib == 0 { u64::MAX } else { MIB as u64 };
            limits.chunk_bytes = chunk_mib.max(1) * MIB;
        });
    })
}

impl Scene {
    fn new(medium: LinkMedium, chunk_mib: usize, len_bytes: usize) -> Self {
        let server = Engine::start(options("ps", medium, chunk_mib, 64 * MIB)).unwrap();
        let arena_bytes = len_bytes + len_bytes / 4 + 64 * MIB;
        let worker = Engine::start(options("worker", medium, chunk_mib, arena_bytes)).unwrap();
        let address = server.local_addr().unwrap().to_string();
        let peer = worker.client().peer(&address).unwrap();
        Self {
            chunk_mib,
            server,
            worker,
            peer,
            edges: 0,
            pulls: Vec::new(),
            small: Vec::new(),
            alone: Vec::new(),
        }
    }

    fn ask(&mut self, tensor: Tensor) -> Call {
        self.edges += 1;
        let edge = format!("edge {}", self.edges);
        let key = RendezvousKey::new(
            &self.server.device_attributes().name,
            self.server.incarnation(),
            "/job:worker/replica:0/task:0/device:CPU:0",
            &edge,
        );
        let key: Text = key.unwrap().to_text();
        self.server.send(1, key.clone(), tensor).unwrap();
        let request = Request::RecvTensor { step_id: 1, key };
        (self.worker.client()).call(&self.peer, request, Some(Duration::from_secs(60)))
    }

    fn ask_small(&mut self) -> Duration {
        let shape = Shape::new(&[64]).unwrap();
        let tensor = Tensor::new(DType::UInt8, shape, vec![1; 64]).unwrap();
        let begun = Instant::now();
        self.ask(tensor).wait().unwrap();
        begun.elapsed()
    }

    /// What carries the connection now.
    fn medium(&self) -> LinkMedium {
        let (tell, told) = channel();
        let client = self.worker.client();
        client.inspect(&self.peer, move |state| tell.send(state.medium).unwrap());
        told.recv().unwrap()
    }

    /// Pulls the tensor alone, and then with small calls beside it.
    fn round(&mut self, tensor: &Tensor) {
        for _ in 0..20 {
            let time = self.ask_small();
            self.alone.push(time);
        }
        let begun = Instant::now();
        self.ask(tensor.clone()).wait().unwrap();
        self.pulls.push(begun.elapsed());

        let mut pull = self.ask(tensor.clone());
        let context = &mut Context::from_waker(Waker::noop());
        loop {
            let time = self.ask_small();
            self.small.push(time);
            if let Poll::Ready(result) = Pin::new(&mut pull).poll(context) {
                result.unwrap();
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn report(&mut self, len_bytes: usize) {
        for times in [&mut self.pulls, &mut self.small, &mut self.alone] {
            times.sort_unstable();
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let median = |times: &[Duration]| ms(times[times.len() / 2]);
        println!(
            "{:>5} MiB | {:>6.2} {:>6.2} GB/s | {:>8.3} {:>8.3} {:>8.3} ms | {:>6.3} ms | {} pulls, {} small calls",
            self.chunk_mib,
            len_bytes as f64 / 1e9 / self.pulls[0].as_secs_f64(),
            len_bytes as f64 / 1e6 / median(&self.pulls),
            median(&self.small),
            ms(self.small[self.small.len() * 9 / 10]),
            ms(self.small[self.small.len() - 1]),
            median(&self.alone),
            self.pulls.len(),
            self.small.len(),
        );
    }
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    let medium = match arguments.next().as_deref() {
        None | Some("tcp") => LinkMedium::Tcp,
        Some("shm") => LinkMedium::SharedMemory,
        Some("rdma") => LinkMedium::Rdma,
        Some(other) => panic!("{other:?} is no medium; write tcp, shm or rdma"),
    };
    let mut numbers = arguments.map(|argument| argument.parse::<usize>().expect("a number"));
    let len_bytes = numbers.next().unwrap_or(1 << 10) * MIB;
    let rounds = numbers.next().unwrap_or(5);
    let mut chunks: Vec<usize> = numbers.collect();
    if chunks.is_empty() {
        chunks = vec![0, 8, 16, 32, 64];
    }
    let shape = Shape::new(&[(len_bytes / MIB) as u64, MIB as u64]).unwrap();
    let tensor = Tensor::new(DType::UInt8, shape, vec![1; len_bytes]).unwrap();
    println!("    chunk |   best median pull |   median      90%  longest small | alone");
    let mut scenes: Vec<_> = (chunks.into_iter())
        .map(|chunk_mib| Scene::new(medium, chunk_mib, len_bytes))
        .collect();
    for scene in &mut scenes {
        // Both ends get to know each other, and the memory of the worker is used for the first
        // time.
        scene.ask_small();
        while scene.medium() != medium {
            std::thread::sleep(Duration::from_millis(1));
        }
        scene.ask(tensor.clone()).wait().unwrap();
    }
    for _ in 0..rounds {
        for scene in &mut scenes {
            scene.round(&tensor);
        }
    }
    for scene in &mut scenes {
        scene.report(len_bytes);
    }
}
