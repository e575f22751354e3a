//! How steps grow with workers: real shards and connections, one parameter server, virtual time,
//! stated costs.
//!
//! A worker pulls the model's tensors, computes, pushes as many back, and begins again. The server
//! is one engine whose requests wait, first come first served, for three things: the network card
//! for what arrives, one of its CPUs, and the network card for what leaves. What each of them takes
//! is stated in [`Costs`]; the messages themselves are small, so that memory does not decide.
//!
//! `GRPCXX_SCALE_WRITE=1 cargo test --release -p grpcxx-runtime --lib simulation::scale` takes the
//! whole curve and writes `docs/scale.svg` and the table of `docs/scaling.md`.

mod curve;
pub(super) mod host;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use grpcxx_rpc::{GraphCall, NamedTensors, Request, Response, Tensor, Text};
use grpcxx_transport::Time;
use grpcxx_transport::sim::{SimNetwork, SimOptions};

use self::host::{Ended, Host, Slow, locked};
use crate::call::{CallSpec, CompletionHandler};
use crate::client::Peer;
use crate::function::Responder;

/// What things take.
#[derive(Clone, Copy, Debug)]
struct Costs {
    name: &'static str,
    /// CPU time of the server for a call, whatever it carries.
    call: Duration,
    /// Bytes that one CPU of the server moves in a second.
    cpu_bytes_per_second: f64,
}

/// The cluster that is simulated.
#[derive(Clone, Copy, Debug)]
struct Scene {
    workers: usize,
    costs: Costs,
    /// From here on steps are counted.
    from: Time,
    until: Time,
}

/// One point of the curve.
#[derive(Clone, Copy, Debug)]
struct Point {
    workers: usize,
    steps_per_second: f64,
    /// Mean time that a request waited at the server before its work began.
    waited: Duration,
    /// Mean time of a step.
    step: Duration,
}

/// A request at the server, by what it is.
struct Arrived {
    responder: Responder,
    at: Time,
    is_pull: bool,
}

/// One server and its workers.
struct Simulation {
    scene: Scene,
    network: SimNetwork,
    server: Host,
    /// The workers' connections, each of its own; what their CPUs do is part of the compute time.
    workers: Host,
    peers: Vec<Peer>,
    slow: Arc<Slow>,
    ended: Arc<Ended>,
    random: Rng,
    /// When workers want to begin a pull (true) or a push.
    agenda: BinaryHeap<Reverse<(Time, usize, bool)>>,
    /// Answers that wait for their time.
    answers: BinaryHeap<Reverse<(Time, u64)>>,
    responders: std::collections::HashMap<u64, Arrived>,
    answered: u64,
    cpus: BinaryHeap<Reverse<Time>>,
    card_in: Time,
    card_out: Time,
    /// By worker: whether its call is a pull.
    pulls: Vec<bool>,
    calls: u64,
    requests: u64,
    waited: Duration,
}

impl Simulation {
    fn new(scene: Scene) -> Self {
        let network = SimNetwork::new(SimOptions {
            bytes_per_second: u64::MAX / 2,
            read_bytes_min: 64 << 10,
            backlog: WORKERS_MAX,
            ..SimOptions::reliable(1)
        });
        let slow = Arc::new(Slow::default());
        let address = SocketAddr::from(([10, 0, 0, 1], 1000));
        let server = host::start(&network, 0, address, Some(Arc::clone(&slow)));
        let workers = host::start(&network, 1, SocketAddr::from(([10, 0, 0, 2], 1000)), None);
        let peers: Vec<Peer> = (0..scene.workers)
            .map(|worker| {
                workers
                    .client
                    .peer_over(&address.to_string(), worker)
                    .expect("an address")
            })
            .collect();
        let mut random = Rng::with_seed(7);
        // Workers do not begin together.
        let agenda = (0..scene.workers)
            .map(|worker| Reverse((Time::ZERO + COMPUTE.mul_f64(random.f64()), worker, true)))
            .collect();
        Self {
            network,
            server,
            workers,
            pulls: vec![false; peers.len()],
            peers,
            slow,
            ended: Arc::default(),
            random,
            agenda,
            answers: BinaryHeap::new(),
            responders: std::collections::HashMap::new(),
            answered: 0,
            cpus: (0..SERVER_CPUS).map(|_| Reverse(Time::ZERO)).collect(),
            card_in: Time::ZERO,
            card_out: Time::ZERO,
            calls: 0,
            requests: 0,
            waited: Duration::ZERO,
            scene,
        }
    }

    fn run(mut self) -> Point {
        let mut now = Time::ZERO;
        while now < self.scene.until {
            self.network.advance(now);
            self.begin_calls(now);
            while self.turn(now) > 0 {}
            now = self.next_time(now);
        }
        let seconds = self.scene.until.since(self.scene.from).as_secs_f64();
        // A step has two calls. Behind a long queue pulls and pushes come in waves, so each counts
        // by itself.
        let steps_per_second = self.calls as f64 / 2.0 / seconds;
        Point {
            workers: self.scene.workers,
            steps_per_second,
            waited: self.waited / self.requests.max(1) as u32,
            // Little's law: each worker is always in some step.
            step: Duration::from_secs_f64(self.scene.workers as f64 / steps_per_second.max(1e-9)),
        }
    }

    fn turn(&mut self, now: Time) -> usize {
        let mut events = self.workers.shard.turn(now) + self.server.shard.turn(now);
        let arrived = std::mem::take(&mut *locked(&self.slow.0));
        for (is_pull, responder) in arrived {
            self.work(Arrived {
                responder,
                at: now,
                is_pull,
            });
        }
        while let Some(Reverse((at, number))) = self.answers.peek().copied()
            && at <= now
        {
            self.answers.pop();
            let arrived = self
                .responders
                .remove(&number)
                .expect("each number has its request");
            let tensors = if arrived.is_pull {
                Response::from(Tensor::scalar(1.0_f32))
            } else {
                Response::Fetched(NamedTensors::new())
            };
            arrived.responder.answer(Ok(tensors));
            events += 1;
        }
        let ended = std::mem::take(&mut *locked(&self.ended.0));
        for worker in ended {
            self.end_call(worker, now);
        }
        events
    }

    /// Says when a request's answer leaves: behind those before it at the card and the CPUs.
    fn work(&mut self, arrived: Arrived) {
        let card = Duration::from_secs_f64(STEP_BYTES / CARD_BYTES_PER_SECOND);
        let costs = self.scene.costs;
        let cpu = costs.call + Duration::from_secs_f64(STEP_BYTES / costs.cpu_bytes_per_second);
        let mut ready = arrived.at;
        if !arrived.is_pull {
            self.card_in = self.card_in.max(ready) + card;
            ready = self.card_in;
        }
        let Reverse(free) = self.cpus.pop().expect("there are CPUs");
        let begins = free.max(ready);
        let mut done = begins + cpu;
        self.cpus.push(Reverse(done));
        if arrived.is_pull {
            self.card_out = self.card_out.max(done) + card;
            done = self.card_out;
        }
        if arrived.at >= self.scene.from {
            let alone = cpu + card;
            self.requests += 1;
            self.waited += done.since(arrived.at).saturating_sub(alone);
        }
        self.answers.push(Reverse((done, self.answered)));
        self.responders.insert(self.answered, arrived);
        self.answered += 1;
    }

    fn begin_calls(&mut self, now: Time) {
        while let Some(Reverse((at, worker, pulls))) = self.agenda.peek().copied()
            && at <= now
        {
            let request = if pulls {
                Request::RecvTensor {
                    step_id: 1,
                    key: Text::from("model"),
                }
            } else {
                Request::StarRunGraph(Box::new(GraphCall {
                    graph_handle: Text::from("push"),
                    feeds: vec![(Text::from("gradient"), Tensor::scalar(1.0_f32))].into(),
                    ..GraphCall::default()
                }))
            };
            let handler: Arc<dyn CompletionHandler> = Arc::clone(&self.ended) as _;
            let peer = &self.peers[worker];
            if self
                .workers
                .client
                .submit(CallSpec::new(peer, request), handler, worker as u64)
                .is_err()
            {
                // The inbox is full; the shard empties it now.
                return;
            }
            self.agenda.pop();
            self.pulls[worker] = pulls;
        }
    }

    fn end_call(&mut self, worker: usize, now: Time) {
        self.calls += u64::from(now >= self.scene.from);
        if std::mem::take(&mut self.pulls[worker]) {
            let compute = COMPUTE.mul_f64(0.9 + 0.2 * self.random.f64());
            self.agenda.push(Reverse((now + compute, worker, false)));
            return;
        }
        self.agenda.push(Reverse((now, worker, true)));
    }

    /// The next time at which something happens, in ticks, so that much happens at once.
    fn next_time(&self, now: Time) -> Time {
        let agenda = self.agenda.peek().map(|Reverse((at, ..))| *at);
        let answers = self.answers.peek().map(|Reverse((at, _))| *at);
        let shards = [&self.server, &self.workers];
        let timers = shards.iter().filter_map(|host| host.shard.next_timeout());
        let links = shards
            .iter()
            .filter_map(|host| host.shard.transport().next_event_at());
        let next = (agenda.into_iter())
            .chain(answers)
            .chain(self.network.next_event_at())
            .chain(timers)
            .chain(links)
            .min();
        next.unwrap_or(self.scene.until)
            .max(now + tick(self.scene.workers))
    }
}

fn simulate(costs: Costs, workers: usize, seconds: f64) -> Point {
    let from = Time::ZERO + WARM_UP + WARM_UP_PER_WORKER * workers as u32;
    Simulation::new(Scene {
        workers,
        costs,
        from,
        until: from + Duration::from_secs_f64(seconds),
    })
    .run()
}

#[test]
fn steps_grow_with_workers_until_the_server_is_busy() {
    // Alone, a worker's step takes its compute time and little more.
    let one = simulate(OURS, 1, 0.5);
    assert!((8.0..12.1).contains(&one.steps_per_second), "{one:?}");
    assert!(one.waited < Duration::from_micros(50), "{one:?}");
    let many = simulate(OURS, 100, 0.3);
    let ratio = many.steps_per_second / 10.0;
    assert!((92.0..108.0).contains(&ratio), "{one:?} {many:?}");
    // Costs of which a server cannot do more than 1,000 steps a second.
    let busy = Costs {
        name: "busy",
        call: Duration::from_micros(500) * SERVER_CPUS as u32,
        cpu_bytes_per_second: f64::INFINITY,
    };
    let queue = simulate(busy, 150, 0.3);
    assert!(
        (900.0..1010.0).contains(&queue.steps_per_second),
        "{queue:?}"
    );
    assert!(queue.waited > Duration::from_millis(10), "{queue:?}");

    if std::env::var_os("GRPCXX_SCALE_WRITE").is_some() {
        curve::write().expect("the curve is written");
    }
}

/// What happens within a tick happens at once: a small part of a step, and of the waiting of so
/// many workers.
fn tick(workers: usize) -> Duration {
    Duration::from_micros(match workers {
        0..=300 => 20,
        301..=1_000 => 200,
        _ => 1_000,
    })
}

/// Costs as measured on the machine of `docs/scaling.md`.
const OURS: Costs = Costs {
    name: "grpcxx",
    call: Duration::from_nanos(720),
    cpu_bytes_per_second: 5.0e9,
};
/// What TensorFlow's gRPC takes: 33,000 small calls a second, and 0.8 GB/s.
const GRPC: Costs = Costs {
    name: "gRPC in TensorFlow",
    call: Duration::from_micros(30),
    cpu_bytes_per_second: 0.8e9,
};
/// What a worker pulls, and pushes, in a step.
const STEP_BYTES: f64 = 1048576.0;
/// What a worker computes in a step; 10 % more or less by chance.
const COMPUTE: Duration = Duration::from_millis(100);
/// CPUs of the server, and its card of 100 Gbit/s in each direction.
const SERVER_CPUS: usize = 8;
const CARD_BYTES_PER_SECOND: f64 = 12.5e9;
const WARM_UP: Duration = Duration::from_millis(200);
/// Long enough for each worker to have waited twice behind all others.
const WARM_UP_PER_WORKER: Duration = Duration::from_micros(350);
const WORKERS_MAX: usize = 10_000;
