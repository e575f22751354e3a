//! How steps grow with workers: real shards and connections, one parameter server, virtual time, stated costs.
//!
//! A worker pulls the model's tensors, computes, pushes as many back, and begins again. The server is one engine
//! whose requests wait, first come first served, for three things: the network card for what arrives, one of its CPUs,
//! and the network card for what leaves. What each of them takes is stated in [`Costs`]; the messages themselves are
//! small, so that memory does not decide.
//!
//! `GRPCXX_SCALE_WRITE=1 cargo test --release -p grpcxx-runtime --lib simulation::scale` takes the whole curve and
//! writes `docs/scale.svg` and the table of `docs/performance.md`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use fastrand::Rng;
use grpcxx_memory::{Arena, ArenaOptions};
use grpcxx_rpc::{
    ConnectionLimits, Features, GraphCall, Request, Response, StoreLimits, Tensor, TensorStore,
    Text,
};
use grpcxx_transport::Time;
use grpcxx_transport::sim::{SimNetwork, SimOptions, SimTransport};

use super::functions::Jobs;
use crate::call::{CallResult, CallSink};
use crate::client::{Client, Mailboxes, Peer};
use crate::cluster::TaskId;
use crate::command::{Command, Parcel};
use crate::counters::ShardCounters;
use crate::function::{Later, Responder, Served, Service};
use crate::mesh::{self, Inbox, InboxSender};
use crate::registry::Functions;
use crate::shard::{CoreParts, Shard, ShardContext, SharedParts};
use crate::task::{Device, Task};

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

/// Keeps requests until the simulated server has done their work.
#[derive(Default)]
struct Slow(Mutex<Vec<(bool, Responder)>>);

/// Notes which worker's call ended.
#[derive(Default)]
struct Ended(Mutex<Vec<usize>>);

struct Host {
    shard: Shard<SimTransport>,
    client: Client,
}

impl Service for Slow {
    fn serve(&self, request: Request, later: Later<'_>) -> Served {
        let is_pull = match &request {
            Request::RecvTensor { .. } => true,
            Request::StarRunGraph(_) => false,
            _ => return Served::Declined(request),
        };
        let (responder, served) = later.promise();
        locked(&self.0).push((is_pull, responder));
        served
    }
}

impl CallSink for Ended {
    fn finished(self: Arc<Self>, token: u64, result: CallResult, _shard: &mut ShardContext<'_>) {
        // Calls fail only when the simulation ends with them under way.
        if result.is_ok() {
            locked(&self.0).push(token as usize);
        }
    }
}

impl Host {
    fn start(
        network: &SimNetwork,
        index: u32,
        address: SocketAddr,
        service: Option<Arc<Slow>>,
    ) -> Self {
        let (bell, _sleeper) = mesh::doorbell();
        let (sender, inbox): (InboxSender<Command>, Inbox<Command>) =
            mesh::inbox(crate::limits::INBOX_COMMANDS, bell.clone());
        let mut meshes = mesh::mesh::<Parcel<_>>(1, std::slice::from_ref(&bell));
        let mailboxes = Arc::new(Mailboxes::new(vec![sender], vec![bell]));
        let store = Arc::new(ArcSwap::from_pointee(TensorStore::new(
            StoreLimits::default(),
        )));
        let id = TaskId::new("sim", index);
        let device = Device::cpu(&id, 1, 0);
        let shared = SharedParts {
            task: Arc::new(Task::new(id, &[device]).expect("a good device name")),
            mailboxes: Arc::clone(&mailboxes),
            functions: Arc::new(ArcSwap::from_pointee(Functions::builtin(&store))),
            store,
            service: service.map(|service| service as Arc<dyn Service>),
            compute: Arc::new(Jobs::default()),
            counters: [ShardCounters::default()].into(),
            loads: [AtomicUsize::new(0)].into(),
            ended: Arc::new(AtomicUsize::new(0)),
        };
        let parts = CoreParts {
            index: 0,
            shared,
            connection_limits: ConnectionLimits::default(),
            announce: Features::ALL,
            channel_options: grpcxx_rpc::ChannelOptions::default(),
            rendezvous_limits: grpcxx_rpc::RendezvousLimits::default(),
            links: WORKERS_MAX + 1,
            arena: Arena::new(ArenaOptions {
                capacity_bytes: 256 << 20,
                huge_pages: false,
                ..ArenaOptions::default()
            })
            .expect("address space"),
            mesh: meshes.remove(0),
            inbox,
        };
        let mut shard = Shard::new(network.transport(address.ip()), parts);
        shard.listen(address).expect("the port is free");
        Self {
            shard,
            client: Client::new(mailboxes, Some(address)),
        }
    }
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
        let server = Host::start(&network, 0, address, Some(Arc::clone(&slow)));
        let workers = Host::start(&network, 1, SocketAddr::from(([10, 0, 0, 2], 1000)), None);
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
        // A step has two calls. Behind a long queue pulls and pushes come in waves, so each counts by itself.
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
                Response::Tensors([Tensor::scalar(1.0_f32)].into_iter().collect())
            } else {
                Response::Fetched(Vec::new())
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
                    feeds: vec![(Text::from("gradient"), Tensor::scalar(1.0_f32))],
                    ..GraphCall::default()
                }))
            };
            let sink: Arc<dyn CallSink> = Arc::clone(&self.ended) as _;
            let peer = &self.peers[worker];
            if self
                .workers
                .client
                .call_with(peer, request, None, sink, worker as u64)
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

/// What happens within a tick happens at once: a small part of a step, and of the waiting of so many workers.
fn tick(workers: usize) -> Duration {
    Duration::from_micros(match workers {
        0..=300 => 20,
        301..=1_000 => 200,
        _ => 1_000,
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Costs as measured on the machine of `docs/performance.md`.
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

/// The whole curve, as a table and as a plot.
mod curve {
    use std::error::Error;
    use std::fmt::Write as _;

    use plotters::prelude::*;

    use super::{GRPC, OURS, Point, simulate};

    pub(super) fn write() -> Result<(), Box<dyn Error>> {
        let mut curves = Vec::new();
        for costs in [OURS, GRPC] {
            let mut points = Vec::new();
            for workers in WORKERS {
                let point = simulate(costs, workers, 1.0);
                points.push(point);
            }
            curves.push((costs.name, points));
        }
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        std::fs::write(format!("{root}/docs/scale.svg"), draw(&curves)?)?;
        let path = format!("{root}/docs/performance.md");
        let document = std::fs::read_to_string(&path)?;
        let (before, rest) = document.split_once(BEGIN).ok_or("no begin mark")?;
        let (_, after) = rest.split_once(END).ok_or("no end mark")?;
        std::fs::write(
            path,
            format!("{before}{BEGIN}\n{}{END}{after}", table(&curves)?),
        )?;
        Ok(())
    }

    fn table(curves: &[(&str, Vec<Point>)]) -> Result<String, std::fmt::Error> {
        let mut text = String::from("| workers |");
        for (name, _) in curves {
            write!(text, " {name}: steps/s | wait at the server | step |")?;
        }
        writeln!(text, "\n|---:|{}", "---:|".repeat(3 * curves.len()))?;
        for index in 0..WORKERS.len() {
            write!(text, "| {} |", WORKERS[index])?;
            for (_, points) in curves {
                let point = points[index];
                write!(
                    text,
                    " {:.0} | {:.2} ms | {:.1} ms |",
                    point.steps_per_second,
                    point.waited.as_secs_f64() * 1e3,
                    point.step.as_secs_f64() * 1e3
                )?;
            }
            text.push('\n');
        }
        Ok(text)
    }

    fn draw(curves: &[(&str, Vec<Point>)]) -> Result<String, Box<dyn Error>> {
        let mut svg = String::new();
        let area = SVGBackend::with_string(&mut svg, (900, 900)).into_drawing_area();
        area.fill(&WHITE)?;
        let (above, below) = area.split_vertically(450);
        panel(&above, "steps per second", curves, |point| {
            point.steps_per_second
        })?;
        panel(
            &below,
            "wait of a request at the server, ms",
            curves,
            |point| (point.waited.as_secs_f64() * 1e3).max(1e-3),
        )?;
        area.present()?;
        drop((above, below, area));
        Ok(svg)
    }

    fn panel<B: DrawingBackend>(
        area: &DrawingArea<B, plotters::coord::Shift>,
        title: &str,
        curves: &[(&str, Vec<Point>)],
        value: impl Fn(&Point) -> f64,
    ) -> Result<(), Box<dyn Error>>
    where
        B::ErrorType: 'static,
    {
        let values = || curves.iter().flat_map(|(_, points)| points).map(&value);
        let low = values().fold(f64::INFINITY, f64::min) * 0.8;
        let high = values().fold(low * 2.0, f64::max) * 1.3;
        let most = WORKERS[WORKERS.len() - 1] as f64;
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 18))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d((1.0..most).log_scale(), (low..high).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("workers")
            .x_label_formatter(&|workers| format!("{workers}"))
            .y_label_formatter(&|value| format!("{value}"))
            .draw()?;
        for (index, (name, points)) in curves.iter().enumerate() {
            let color = Palette99::pick(index).stroke_width(2);
            let line = points
                .iter()
                .map(|point| (point.workers as f64, value(point)));
            chart
                .draw_series(LineSeries::new(line, color))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], color));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        Ok(())
    }

    const WORKERS: [usize; 11] = [1, 3, 10, 30, 100, 300, 1_000, 2_000, 3_000, 6_000, 10_000];
    const BEGIN: &str = "<!-- curve:begin -->";
    const END: &str = "<!-- curve:end -->";
}
