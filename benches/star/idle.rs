//! What an idle server costs, and how fast it is back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use grpcxx::{
    CallResult, CallSpec, CompletionHandler, CpuLatency, Engine, EngineOptions, Request,
    ShardContext,
};

use crate::cluster::{Cluster, Setting, tensor};
use crate::meter::median;

/// CPU time that a server with `connections` idle connections takes, in percent of one core.
pub(crate) fn cpu_percent(connections: usize, period: Duration) -> f64 {
    let mut options = EngineOptions::default()
        .with(|options| options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0))));
    options.tcp.busy = false;
    let server = Engine::start(options).expect("an engine");
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

/// Why CPUs would not wake up sooner if an engine asked for it.
pub(crate) fn cpu_latency_refusal() -> Option<String> {
    let engine = Engine::start(
        EngineOptions::default().with(|options| options.cpu_latency = Some(Duration::ZERO)),
    )
    .expect("an engine");
    match &engine.start_report().cpu_latency {
        CpuLatency::Refused { why, .. } => Some(why.clone()),
        CpuLatency::Unset | CpuLatency::Held(_) => None,
    }
}

/// Median time of a 64 B call that is made after a pause, in microseconds.
pub(crate) fn call_after_pause_us(calls: usize, pause: Duration, setting: Setting) -> f64 {
    let cluster = Cluster::start(setting);
    let key = cluster.key();
    cluster.produce(0..calls as i64, &tensor(64));
    let peer = cluster.peers(1).remove(0);
    let (sender, times) = channel();
    let stopwatch = Arc::new(Stopwatch {
        origin: Instant::now(),
        sender,
    });
    let mut latencies = Vec::new();
    for step_id in 0..calls as i64 {
        let request = Request::RecvTensor {
            step_id,
            key: key.clone(),
        };
        std::thread::sleep(pause);
        let begun_ns = stopwatch.origin.elapsed().as_nanos() as u64;
        let handler: Arc<dyn CompletionHandler> = Arc::clone(&stopwatch) as _;
        (cluster.worker.client())
            .submit(CallSpec::new(&peer, request), handler, begun_ns)
            .expect("an empty inbox");
        latencies.push(times.recv().expect("the call ends").as_secs_f64() * 1e6);
    }
    median(latencies)
}

/// Takes the time of calls whose token is when they began.
struct Stopwatch {
    origin: Instant,
    sender: Sender<Duration>,
}

impl CompletionHandler for Stopwatch {
    fn on_complete(self: Arc<Self>, token: u64, result: CallResult, _shard: &mut ShardContext<'_>) {
        assert!(result.is_ok(), "a call failed: {result:?}");
        let latency = self.origin.elapsed() - Duration::from_nanos(token);
        // The bench waits for this and nothing else.
        let _ = self.sender.send(latency);
    }
}

fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}
