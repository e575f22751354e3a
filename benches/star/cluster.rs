//! Two engines in one process, one shard and one CPU each, joined by TCP loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use grpcxx::{
    AtOnce, Code, DType, Engine, EngineOptions, GraphCall, Later, NamedTensors, Peer,
    RendezvousKey, Request, Response, Served, Service, Shape, ShardContext, Status, Tensor, Text,
    service,
};
use grpcxx_rpc::{Envelope, Metadata};
use prost::Message;

use self::proto::{Numbers, Small, SmallServer};

#[expect(dead_code, unreachable_pub, reason = "generated code is for everybody")]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/small.rs"));
}

/// A server and the worker that calls it.
pub(crate) struct Cluster {
    pub(crate) server: Engine,
    pub(crate) worker: Engine,
}

/// How the engines of a [`Cluster`] run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) driver: &'static str,
    pub(crate) server_polls: bool,
    pub(crate) worker_polls: bool,
    /// How long any CPU may take to wake up.
    pub(crate) cpu_latency: Option<Duration>,
}

/// Takes pushed tensors and drops them, on the shard.
struct Sinkhole;

impl Setting {
    /// Both ends spin.
    pub(crate) fn spinning(driver: &'static str) -> Self {
        Self {
            driver,
            server_polls: true,
            worker_polls: true,
            cpu_latency: None,
        }
    }

    /// Both ends sleep as soon as there is nothing to do.
    pub(crate) fn sleeping(driver: &'static str) -> Self {
        Self {
            driver,
            server_polls: false,
            worker_polls: false,
            cpu_latency: None,
        }
    }
}

impl Cluster {
    pub(crate) fn start(setting: Setting) -> Self {
        let options = |first_cpu, polling| {
            let mut options = EngineOptions::default().with(|options| {
                options.pin = true;
                options.first_cpu = first_cpu;
                options.polling = polling;
                options.cpu_latency = setting.cpu_latency;
                options.compute_threads = Some(1);
                options.shm = None;
            });
            options.tcp.driver = setting.driver.parse().expect("a driver");
            options.tcp.busy = polling;
            options
        };
        let server = Engine::start(options(1, setting.server_polls).with(|options| {
            options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
            options.service = Some(Arc::new(Sinkhole));
        }))
        .expect("a server");
        let worker = Engine::start(options(0, setting.worker_polls)).expect("a worker");
        Self { server, worker }
    }

    /// The server, over `connections` connections.
    pub(crate) fn peers(&self, connections: usize) -> Vec<Peer> {
        let address = self.server.local_addr().expect("the server listens");
        (0..connections)
            .map(|index| {
                let client = self.worker.client();
                let peer = client.peer_over(&address.to_string(), index);
                peer.expect("an address")
            })
            .collect()
    }

    /// The one key of each step.
    pub(crate) fn key(&self) -> Text {
        RendezvousKey::new(
            &self.server.device_attributes().name,
            self.server.incarnation(),
            "/job:worker/replica:0/task:0/device:CPU:0",
            "edge_17_bench",
        )
        .expect("a valid key")
        .to_text()
    }

    /// Lets the server answer calls of [`ECHO`] with the tensor that they feed by this name.
    pub(crate) fn serve_function(&self, name: &Text) {
        let name = name.clone();
        let echo = move |mut call: GraphCall| {
            let tensor = call.take_feed(FED)?;
            Ok([(name.clone(), tensor)])
        };
        self.server.register_short(ECHO, echo);
    }

    /// Lets the server answer calls of a method with their messages. Returns a call.
    pub(crate) fn serve_method(&self) -> Envelope {
        self.server.add_service(SmallServer::new(Echo));
        let numbers = Numbers {
            a: 1,
            b: 2,
            c: 3,
            d: 4,
            e: 5,
            f: 6,
            g: 7,
        };
        let metadata = Metadata::default();
        let path = "/small.Small/Echo";
        let mut writer = Envelope::request(path, &metadata, 64).expect("a path");
        let encoded = numbers.encode(writer.bytes_mut());
        encoded.expect("a vector has room");
        writer.finish()
    }

    /// Puts a tensor into each of these steps. The shard takes them from its inbox many at a time,
    /// as often in each run.
    pub(crate) fn produce(&self, steps: std::ops::Range<i64>, tensor: &Tensor) {
        let key = self.key();
        for begin in steps.clone().step_by(PRODUCED_AT_A_TIME) {
            let some = begin..(begin + PRODUCED_AT_A_TIME as i64).min(steps.end);
            let wanted = self.server.counters().sends + (some.end - some.start) as u64;
            let (let_go, held) = channel::<()>();
            let hold = move |_: &mut ShardContext<'_>| {
                // It ends with an error, once the other end is dropped.
                let _ = held.recv();
            };
            self.server.run_on(0, hold).expect("room in the inbox");
            for step_id in some {
                let sent = self.server.send(step_id, key.clone(), tensor.clone());
                sent.expect("room in the inbox");
            }
            drop(let_go);
            while self.server.counters().sends < wanted {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

/// Answers with what it is sent.
struct Echo;

impl Small for Echo {
    async fn echo(
        &self,
        request: service::Request<Numbers>,
    ) -> Result<service::Response<Numbers>, Status> {
        Ok(service::Response::new(request.into_inner()))
    }
}

impl Service for Sinkhole {
    fn serve(&self, request: Request, _later: Later<'_>) -> Served {
        match request {
            Request::StarRunGraph(call) if call.graph_handle == *SINKHOLE => {
                Served::Now(match call.feeds.len() {
                    1 => Ok(Response::Fetched(NamedTensors::new())),
                    _ => Err(Status::new(Code::InvalidArgument, "push one tensor")),
                })
            }
            request => Served::Declined(request),
        }
    }

    fn at_once(&self, _step_id: i64, _key: &Text) -> AtOnce {
        AtOnce::Declined
    }
}

pub(crate) fn tensor(bytes: usize) -> Tensor {
    let shape = Shape::new(&[bytes as u64]).expect("a small product");
    Tensor::new(DType::UInt8, shape, vec![9_u8; bytes]).expect("as many bytes as elements")
}

/// The function that answers with what it is given.
pub(crate) const ECHO: &str = "bench/echo";

/// Name of the tensor that it is fed, and that it answers with.
pub(crate) const FED: &str = "tensor";

/// The function that drops what it is given.
pub(crate) const SINKHOLE: &str = "bench/sinkhole";

/// Fewer than an inbox holds.
const PRODUCED_AT_A_TIME: usize = 1 << 10;
