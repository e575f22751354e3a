//! Two engines in one process, one shard and one CPU each, joined by TCP loopback.

use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use grpcxx::{
    CallResult, CallSink, DType, Engine, EngineOptions, Peer, RendezvousKey, Request, Response,
    Shape, ShardContext, Tensor, Text,
};

use crate::report::{Histogram, allocations};

/// What a run of small calls showed.
pub(crate) struct SmallRun {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) allocations_per_call: f64,
}

/// Receives `calls` tensors of `bytes` bytes, one after the other.
pub(crate) fn receive_many(calls: usize, bytes: usize) -> SmallRun {
    let cluster = Cluster::start(true);
    let tensor = tensor(bytes);
    let total = calls + calls / 10;
    // A step holds a bounded number of keys, so the tensors are spread over many steps.
    let keys: Vec<(i64, Text)> = (0..total)
        .map(|index| {
            (
                1 + (index / KEYS_PER_STEP) as i64,
                cluster.key(index % KEYS_PER_STEP),
            )
        })
        .collect();
    cluster.produce(&keys, &tensor);
    let (done, ended) = channel();
    let sink = Arc::new(Sequence {
        peer: cluster.peer.clone(),
        progress: Mutex::new(Progress {
            keys,
            next: 0,
            warm_up: calls / 10,
            sent_at: Instant::now(),
            histogram: Histogram::new(),
            allocations_at_start: 0,
            done,
        }),
    });
    sink.start(&cluster.worker);
    ended.recv().expect("the run ends")
}

/// Receives `count` tensors of `bytes` bytes, one after the other, and returns GB/s.
pub(crate) fn receive_large(count: usize, bytes: usize) -> f64 {
    let cluster = Cluster::start(true);
    let tensor = tensor(bytes);
    let keys: Vec<(i64, Text)> = (0..=count).map(|index| (1, cluster.key(index))).collect();
    cluster.produce(&keys, &tensor);
    let client = cluster.worker.client();
    let mut start = Instant::now();
    for (index, (step_id, key)) in keys.into_iter().enumerate() {
        if index == 1 {
            start = Instant::now();
        }
        let request = Request::RecvTensor { step_id, key };
        let response = client.call(&cluster.peer, request, None).wait();
        let Ok(Response::Tensors(tensors)) = response else {
            panic!("no tensor: {response:?}");
        };
        assert_eq!(tensors[0].data.len(), bytes);
    }
    (count * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// CPU time that a server with `connections` idle connections takes, in percent of one core.
pub(crate) fn idle_cpu_percent(connections: usize, period: Duration) -> f64 {
    let server = Engine::start(EngineOptions {
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        ..EngineOptions::default()
    })
    .expect("an engine");
    let address = server.local_addr().expect("it listens");
    let sockets: Vec<_> = (0..connections)
        .map(|_| std::net::TcpStream::connect(address).expect("connect"))
        .collect();
    while server.counters().accepted < connections as u64 {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(50));
    let before = cpu_time();
    std::thread::sleep(period);
    let used = cpu_time() - before;
    drop(sockets);
    100.0 * used.as_secs_f64() / period.as_secs_f64()
}

struct Cluster {
    server: Engine,
    worker: Engine,
    peer: Peer,
}

impl Cluster {
    fn start(polling: bool) -> Self {
        let options = |first_cpu| EngineOptions {
            pin: true,
            first_cpu,
            polling,
            ..EngineOptions::default()
        };
        let server = Engine::start(EngineOptions {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            ..options(1)
        })
        .expect("a server");
        let worker = Engine::start(options(0)).expect("a worker");
        let address = server.local_addr().expect("the server listens");
        let peer = worker
            .client()
            .peer(&address.to_string())
            .expect("an address");
        Self {
            server,
            worker,
            peer,
        }
    }

    fn key(&self, index: usize) -> Text {
        RendezvousKey::new(
            &self.server.device_attributes().name,
            self.server.incarnation(),
            "/job:worker/replica:0/task:0/device:CPU:0",
            &format!("edge_{index}_bench"),
        )
        .expect("a valid key")
        .to_text()
    }

    fn produce(&self, keys: &[(i64, Text)], tensor: &Tensor) {
        for (step_id, key) in keys {
            while self
                .server
                .send(*step_id, key.clone(), tensor.clone())
                .is_err()
            {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        while self.server.counters().sends < keys.len() as u64 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Calls one after the other; each result makes the next call, on the shard.
struct Sequence {
    peer: Peer,
    progress: Mutex<Progress>,
}

struct Progress {
    keys: Vec<(i64, Text)>,
    next: usize,
    warm_up: usize,
    sent_at: Instant,
    histogram: Histogram,
    allocations_at_start: u64,
    done: Sender<SmallRun>,
}

impl Sequence {
    fn start(self: &Arc<Self>, worker: &Engine) {
        let request = self.progress.lock().expect("no panic").take();
        let sink: Arc<dyn CallSink> = Arc::clone(self) as _;
        worker
            .client()
            .call_with(&self.peer, request.expect("a first key"), None, sink, 0)
            .expect("an empty inbox");
    }
}

impl CallSink for Sequence {
    fn finished(self: Arc<Self>, _token: u64, result: CallResult, shard: &mut ShardContext<'_>) {
        assert!(result.is_ok(), "a call failed: {result:?}");
        let request = self.progress.lock().expect("no panic").step();
        if let Some(request) = request {
            let peer = self.peer.clone();
            shard.call(&peer, request, None, self, 0);
        }
    }
}

impl Progress {
    /// Notes the end of a call and begins the next.
    fn step(&mut self) -> Option<Request> {
        if self.next > self.warm_up {
            self.histogram.record(self.sent_at.elapsed());
        } else {
            self.allocations_at_start = allocations();
        }
        let request = self.take();
        if request.is_none() {
            let calls = (self.keys.len() - self.warm_up - 1) as f64;
            let allocated = (allocations() - self.allocations_at_start) as f64;
            // The bench waits for this and nothing else.
            let _ = self.done.send(SmallRun {
                p50_us: self.histogram.p50_us(),
                p99_us: self.histogram.p99_us(),
                allocations_per_call: allocated / calls,
            });
        }
        request
    }

    fn take(&mut self) -> Option<Request> {
        let (step_id, key) = self.keys.get(self.next)?.clone();
        self.next += 1;
        self.sent_at = Instant::now();
        Some(Request::RecvTensor { step_id, key })
    }
}

fn tensor(bytes: usize) -> Tensor {
    let shape = Shape::new(&[bytes as u64]).expect("a small product");
    Tensor::new(DType::UInt8, shape, vec![9_u8; bytes]).expect("as many bytes as elements")
}

fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// As many tensors as wait in one step.
const KEYS_PER_STEP: usize = 10_000;
