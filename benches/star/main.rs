//! How far star calls are from the limits of this machine.
//!
//! Questions: the round trip of a call with 64 bytes of payload and the rate of many of them,
//! against spinning sockets; the bandwidth of large tensors both ways, against spinning sockets and
//! memcpy; the epoll driver against io_uring; what an idle server costs and how fast it wakes up.
//!
//! Each figure stands beside its baseline from the same run, in alternating rounds; the median of
//! the rounds counts. Both ends spin on a CPU of their own, so a round is only worth something
//! while nobody else wants these CPUs: it is measured in short windows, those in which a thread had
//! to wait for its CPU are left out, and the column `quiet` says how many remained.
//!
//! Run with `cargo bench --bench star`. Words behind `--` choose rows by the part of the bench:
//! `small`, `rate`, `calls`, `large`, `drivers`, `idle`, `instructions`. A call that takes more
//! instructions or allocations than it may fails the bench. `--quick` only shows that it runs;
//! `--profile PART` repeats our side alone.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

mod allocator;
mod baseline;
mod calls;
mod cluster;
mod idle;
mod instructions;
mod meter;
mod report;

use std::cell::Cell;
use std::time::Duration;

use baseline::Way;
use calls::Load;
use cluster::Setting;
use instructions::Uncounted;
use meter::{Measure, median};
use report::{Row, Target, print_head};

#[global_allocator]
static ALLOCATOR: allocator::CountingAllocator = allocator::CountingAllocator;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [child, kind, calls] = &words[..]
        && child == instructions::CHILD
    {
        return instructions::make_calls(kind, calls.parse().expect("a number of calls"));
    }
    let has = |word: &str| words.iter().any(|w| w == word);
    let plan = Plan::new(has("--quick") || has("--test"), has("--profile"));
    let chosen: Vec<&str> = PARTS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| has(name))
        .collect();
    println!(
        "star over TCP loopback, {} CPUs, both ends spinning, {} rounds of each, load {}",
        std::thread::available_parallelism().map_or(1, usize::from),
        plan.rounds,
        std::fs::read_to_string("/proc/loadavg")
            .map_or(String::new(), |text| { text.split(' ').take(1).collect() }),
    );
    print_head();
    for (name, part) in PARTS {
        if chosen.is_empty() || chosen.contains(name) {
            part(&plan);
        }
    }
    if plan.exceeded.get() {
        println!("a call takes more than it may; find why with `star instructions --profile`");
        std::process::exit(1);
    }
}

/// How long to measure.
struct Plan {
    rounds: usize,
    /// Divides all counts but those of loads whose calls go side by side.
    shortened: usize,
    idle: Duration,
    /// Leave the baselines out.
    alone: bool,
    /// Whether a call took more instructions or allocations than it may, or valgrind failed.
    exceeded: Cell<bool>,
}

type Part = (&'static str, fn(&Plan));

const PARTS: &[Part] = &[
    ("small", small_calls),
    ("rate", call_rate),
    ("calls", function_calls),
    ("large", large_tensors),
    ("drivers", drivers),
    ("idle", idle_server),
    ("instructions", instructions_of_a_call),
];

impl Plan {
    fn new(quick: bool, alone: bool) -> Self {
        Self {
            rounds: if quick { 1 } else { 7 },
            shortened: if quick { 20 } else { 1 },
            idle: Duration::from_millis(if quick { 200 } else { 3000 }),
            alone,
            exceeded: Cell::new(false),
        }
    }

    /// Notes whether a figure is within its bound.
    fn note(&self, is_within: bool) {
        self.exceeded.set(self.exceeded.get() || !is_within);
    }

    fn calls(&self, load: Load) -> Load {
        if load.under_way() > 1 {
            // Allocations of as many calls as are under way may count too often or not at all, and
            // a round takes less than a second.
            return load;
        }
        Load {
            calls: (load.calls / self.shortened).max(2 * load.per_window),
            ..load
        }
    }
}

/// Rounds of ours and of the baseline, one after the other.
#[derive(Default)]
struct Rounds {
    ours: Vec<Measure>,
    floor: Vec<Measure>,
    allocations: Vec<f64>,
}

impl Rounds {
    fn run(plan: &Plan, driver: &'static str, load: Load, floor: impl Fn(Load) -> Measure) -> Self {
        let load = plan.calls(load);
        let mut rounds = Self::default();
        for _ in 0..plan.rounds {
            if !plan.alone {
                rounds.floor.push(floor(load));
            }
            let outcome = calls::run(Setting::spinning(driver), load);
            rounds.ours.push(outcome.measure);
            rounds.allocations.push(outcome.allocations_per_call);
        }
        rounds
    }

    /// A row of one figure of each round.
    fn row(&self, name: &str, unit: &'static str, figure: impl Fn(&Measure) -> f64) -> Row {
        let ours: Vec<f64> = self.ours.iter().map(&figure).collect();
        let floor: Vec<f64> = self.floor.iter().map(&figure).collect();
        let both = self.ours.iter().chain(&self.floor);
        Row::plain(name, unit, ours.clone())
            .beside("sockets", &ours, &floor)
            .quiet(both.map(|measure| measure.quiet).collect())
    }
}

fn small_calls(plan: &Plan) {
    let rounds = Rounds::run(plan, "auto", SMALL, |load| {
        baseline::round_trips(load.calls, load.per_window, load.bytes)
    });
    rounds
        .row("64 B RecvTensor, p50", "us", |m| m.p50_us)
        .target(Target::AtMost(1.3))
        .print();
    rounds
        .row("64 B RecvTensor, p99", "us", |m| m.p99_us)
        .print();
    allocations("64 B RecvTensor", plan, &rounds, 0.0);
}

fn call_rate(plan: &Plan) {
    for ready in [READY, READY_FEW] {
        let load = Load { ready, ..MANY };
        let rounds = Rounds::run(plan, "auto", load, echoes);
        let name = format!("64 B RecvTensor, 16 x 32, {ready} ready");
        rounds
            .row(&name, "M/s", |m| 1e-6 / m.seconds)
            .target(Target::AtLeast(0.7))
            .print();
        allocations(&name, plan, &rounds, 0.0);
    }
}

/// Sockets that carry as much as a load of calls.
fn echoes(load: Load) -> Measure {
    let (calls, per_window) = (load.calls, load.per_window);
    baseline::echoes(load.connections, load.depth, calls, per_window, load.bytes)
}

/// Calls of functions and of methods.
fn function_calls(plan: &Plan) {
    // The future of a method is boxed.
    for (word, way, allowed) in [("graph", Way::Function, 0.0), ("typed", Way::Method, 1.05)] {
        let load = Load { way, ..MANY };
        let rounds = Rounds::run(plan, "auto", load, echoes);
        let name = format!("64 B {word} call, 16 x 32");
        rounds.row(&name, "M/s", |m| 1e-6 / m.seconds).print();
        allocations(&name, plan, &rounds, allowed);
    }
}

fn large_tensors(plan: &Plan) {
    for (size, bytes, per_window, count) in LARGE {
        for (word, way) in [("pull", Way::Pull), ("push", Way::Push)] {
            let load = Load {
                way,
                bytes,
                connections: 1,
                depth: 1,
                calls: count,
                ready: READY,
                per_window,
            };
            let rounds = Rounds::run(plan, "auto", load, |load| {
                baseline::transfers(load.calls, load.per_window, load.bytes, load.way)
            });
            rounds
                .row(&format!("{size} {word}"), "GB/s", |m| {
                    bytes as f64 / m.seconds / 1e9
                })
                .target(Target::AtLeast(0.95))
                .print();
        }
        let copies =
            (0..plan.rounds).map(|_| baseline::memcpy_gb_s(count / plan.shortened + 1, bytes));
        Row::plain(format!("{size} memcpy"), "GB/s", copies.collect()).print();
    }
}

fn drivers(plan: &Plan) {
    let compare = |name: &str, unit, load: Load, figure: fn(&Measure) -> f64, target| {
        let rounds = Rounds::run(plan, "epoll", load, |load| {
            calls::run(Setting::spinning("io_uring"), load).measure
        });
        let row = rounds.row(name, unit, figure).against("io_uring");
        row.target(target).print();
    };
    println!("|  epoll, with io_uring as the baseline:");
    let slower = Target::AtMost(1.15);
    let weaker = Target::AtLeast(0.87);
    compare("64 B RecvTensor, p50", "us", SMALL, |m| m.p50_us, slower);
    compare(
        "64 B RecvTensor, 16 x 32",
        "M/s",
        MANY,
        |m| 1e-6 / m.seconds,
        weaker,
    );
    let (_, bytes, per_window, calls) = LARGE[1];
    let load = Load {
        way: Way::Pull,
        bytes,
        connections: 1,
        depth: 1,
        calls,
        ready: READY,
        per_window,
    };
    compare(
        "64 MiB pull",
        "GB/s",
        load,
        |m| (64 << 20) as f64 / m.seconds / 1e9,
        weaker,
    );
}

fn instructions_of_a_call(plan: &Plan) {
    for kind in &instructions::KINDS {
        match instructions::per_call(kind, plan.alone) {
            Ok(count) => {
                let name = format!("instructions of a {}, both sides", kind.name);
                Row::plain(name, "", vec![count])
                    .target(Target::AtMost(kind.allowed))
                    .print();
                plan.note(count <= kind.allowed);
            }
            Err(Uncounted::NoValgrind) => {
                println!("INSTRUCTIONS NOT COUNTED, install valgrind");
            }
            Err(Uncounted::Failed(reason)) => {
                println!("INSTRUCTIONS NOT COUNTED: {reason}");
                plan.note(false);
            }
        }
    }
}

fn idle_server(plan: &Plan) {
    for (connections, limit) in [(100, 1.0), (1000, 0.5)] {
        let percent = idle::cpu_percent(connections, plan.idle);
        let name = format!("idle, {connections} connections, polling off");
        Row::plain(name, "% of a core", vec![percent])
            .target(Target::AtMost(limit))
            .print();
    }
    let calls = 1000 / plan.shortened;
    let pause = Duration::from_millis(3);
    let row = |name: &str, setting: Setting| {
        let rounds = 0..plan.rounds.min(3);
        let rounds = rounds.map(|_| idle::call_after_pause_us(calls, pause, setting));
        Row::plain(
            format!("64 B RecvTensor, {name}, p50"),
            "us",
            rounds.collect(),
        )
    };
    let both_asleep = Setting::sleeping("auto");
    // A worker that polls does not have to wake up itself.
    let server_asleep = Setting {
        worker_polls: true,
        ..both_asleep
    };
    let at_most = Target::AtMost(60.0);
    row("server asleep", server_asleep).target(at_most).print();
    row("both ends asleep", both_asleep).print();
    let floor =
        (0..plan.rounds.min(3)).map(|_| baseline::round_trip_after_pause_us(calls, pause, 64));
    Row::plain("64 B echo of a blocking socket, p50", "us", floor.collect()).print();
    if let Some(why) = idle::cpu_latency_refusal() {
        return println!("GRPCXX_CPU_LATENCY_US=0 was not measured: {why}");
    }
    let awake = |setting| Setting {
        cpu_latency: Some(Duration::ZERO),
        ..setting
    };
    let name = "server asleep, GRPCXX_CPU_LATENCY_US=0";
    row(name, awake(server_asleep)).target(at_most).print();
    let name = "both ends asleep, GRPCXX_CPU_LATENCY_US=0";
    row(name, awake(both_asleep)).print();
}

/// Allocations of a call. One of a whole batch, for a list that grew late, is shown and does not
/// fail the bench.
fn allocations(name: &str, plan: &Plan, rounds: &Rounds, allowed: f64) {
    let count = median(rounds.allocations.clone());
    Row::plain(format!("{name}, allocations a call"), "", vec![count])
        .target(Target::AtMost(allowed))
        .print();
    plan.note(count <= allowed + 0.01);
}

/// Pins the calling thread to the CPU with this index among those allowed.
pub(crate) fn pin(index: usize) {
    if let Some(cpus) = core_affinity::get_core_ids()
        && let Some(cpu) = cpus.get(index)
    {
        core_affinity::set_for_current(*cpu);
    }
}

/// A server's tensors that wait for their requests fill the cache of its CPU and more.
const READY: usize = 1 << 14;

/// They find room in it.
const READY_FEW: usize = 1 << 12;

const SMALL: Load = Load {
    way: Way::Pull,
    bytes: 64,
    connections: 1,
    depth: 1,
    calls: 1 << 15,
    ready: READY,
    per_window: 16,
};

const MANY: Load = Load {
    way: Way::Pull,
    bytes: 64,
    connections: 16,
    depth: 32,
    calls: 1 << 17,
    ready: READY,
    // Results come in batches, of which a window has to hold some.
    per_window: 512,
};

/// Name, bytes, transfers in a window, transfers in a round.
const LARGE: [(&str, usize, usize, usize); 3] = [
    ("1 MiB", 1 << 20, 1, 800),
    ("64 MiB", 64 << 20, 1, 16),
    ("256 MiB", 256 << 20, 1, 5),
];
