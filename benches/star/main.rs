//! How far a star call is from the limits of this machine.
//!
//! Questions: the round trip of a call with 64 bytes of payload, against spinning sockets; the bandwidth of one
//! 64 MiB tensor, against spinning sockets and memcpy; the CPU time of an idle server with 100 connections.
//! Each figure stands beside its baseline from the same run, in alternating rounds; the median counts.
//!
//! Run with `cargo bench --bench star`; `-- --quick` only shows that it runs.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

mod baseline;
mod report;
mod star_calls;

use report::{Row, print_table};

#[global_allocator]
static ALLOCATOR: report::CountingAllocator = report::CountingAllocator;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick" || argument == "--test");
    let plan = Plan::new(quick);
    println!(
        "star over TCP loopback, {} CPUs, both ends spinning, {} rounds of each",
        std::thread::available_parallelism().map_or(1, usize::from),
        plan.rounds
    );
    let mut rows = Vec::new();
    rows.extend(small_calls(&plan));
    rows.extend(large_tensor(&plan));
    rows.push(idle(&plan));
    print_table(&rows);
}

/// How long to measure.
struct Plan {
    rounds: usize,
    small_calls: usize,
    large_tensors: usize,
    idle: std::time::Duration,
}

impl Plan {
    fn new(quick: bool) -> Self {
        if quick {
            return Self {
                rounds: 1,
                small_calls: 1_000,
                large_tensors: 2,
                idle: std::time::Duration::from_millis(200),
            };
        }
        Self {
            rounds: 5,
            small_calls: 50_000,
            large_tensors: 16,
            idle: std::time::Duration::from_secs(3),
        }
    }
}

fn small_calls(plan: &Plan) -> Vec<Row> {
    let mut floor = Vec::new();
    let mut star = Vec::new();
    let mut p99 = Vec::new();
    let mut allocations = Vec::new();
    for _ in 0..plan.rounds {
        floor.push(baseline::round_trip_us(plan.small_calls, SMALL_BYTES));
        let run = star_calls::receive_many(plan.small_calls, SMALL_BYTES);
        star.push(run.p50_us);
        p99.push(run.p99_us);
        allocations.push(run.allocations_per_call);
    }
    vec![
        Row::ratio("64 B RecvTensor p50", "us", star, "spinning sockets", floor),
        Row::plain("64 B RecvTensor p99", "us", p99),
        Row::plain("heap allocations a call, steady state", "", allocations),
    ]
}

fn large_tensor(plan: &Plan) -> Vec<Row> {
    let mut floor = Vec::new();
    let mut star = Vec::new();
    let mut copy = Vec::new();
    for _ in 0..plan.rounds {
        floor.push(baseline::bandwidth_gb_s(plan.large_tensors, LARGE_BYTES));
        star.push(star_calls::receive_large(plan.large_tensors, LARGE_BYTES));
        copy.push(baseline::memcpy_gb_s(plan.large_tensors, LARGE_BYTES));
    }
    vec![
        Row::ratio(
            "64 MiB RecvTensor",
            "GB/s",
            star.clone(),
            "spinning sockets",
            floor,
        ),
        Row::ratio("64 MiB RecvTensor", "GB/s", star, "memcpy", copy),
    ]
}

fn idle(plan: &Plan) -> Row {
    let percent = star_calls::idle_cpu_percent(100, plan.idle);
    Row::plain(
        "idle server, 100 connections, polling off",
        "% of a core",
        vec![percent],
    )
}

const SMALL_BYTES: usize = 64;
const LARGE_BYTES: usize = 64 << 20;
