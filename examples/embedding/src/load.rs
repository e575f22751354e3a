//! Workers that look rows up, and what that costs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use futures_executor::block_on;
use grpcxx_embedding::Client;
use grpcxx_embedding::table::mix;

#[derive(Debug, Parser)]
pub(crate) struct Load {
    /// The servers, in the order of their indices.
    #[arg(required = true)]
    addresses: Vec<String>,
    /// The table.
    #[arg(long)]
    table: String,
    /// Rows of a batch.
    #[arg(long, default_value_t = 10_000)]
    rows: usize,
    /// Ids are taken from so many, each as likely as the others.
    #[arg(long, default_value_t = 1_000_000)]
    ids: u64,
    /// Workers, each a thread with one call at a time.
    #[arg(long, default_value_t = 1)]
    workers: u64,
    /// Makes all rows first, so that none is made while it is measured.
    #[arg(long)]
    fill: bool,
    /// Whether each batch is updated too.
    #[arg(long)]
    update: bool,
    /// For how long.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

/// Runs the workers, and prints one line of JSON.
#[expect(clippy::print_stdout, reason = "the result")]
pub(crate) fn run(load: &Load) -> Result<()> {
    anyhow::ensure!(load.ids > 0, "--ids is a number from 1");
    let engine = crate::worker()?;
    let client = block_on(Client::connect(&engine, &load.addresses))?;
    fill(load, &client)?;
    let before = cpu_time();
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(load.seconds);
    let steps: Vec<Result<Vec<Duration>>> = std::thread::scope(|scope| {
        let client = &client;
        let start = |worker| scope.spawn(move || work(load, client, worker, end));
        let workers: Vec<_> = (0..load.workers).map(start).collect();
        let ended = workers.into_iter();
        ended
            .map(|worker| worker.join().expect("a worker panicked"))
            .collect()
    });
    let elapsed = begin.elapsed().as_secs_f64();
    let mut all = Vec::new();
    for steps in steps {
        all.extend(steps?);
    }
    all.sort_unstable();
    let median = all
        .get(all.len() / 2)
        .context("no step ended in time; give more --seconds")?;
    let result = serde_json::json!({
        "rows": load.rows, "workers": load.workers, "update": load.update,
        "p50_us": median.as_secs_f64() * 1e6,
        "steps_per_s": all.len() as f64 / elapsed,
        "rows_per_s": (all.len() * load.rows) as f64 / elapsed,
        "cpu_us_per_step": (cpu_time() - before).as_secs_f64() * 1e6 / all.len() as f64,
    });
    println!("{result}");
    Ok(())
}

fn fill(load: &Load, client: &Client) -> Result<()> {
    if load.fill {
        let all: Vec<u64> = (0..load.ids).collect();
        for ids in all.chunks(10_000) {
            block_on(client.lookup(&load.table, ids))?;
        }
    }
    Ok(())
}

fn work(load: &Load, client: &Client, worker: u64, end: Instant) -> Result<Vec<Duration>> {
    let mut steps = Vec::new();
    let mut next = mix(worker);
    while Instant::now() < end {
        let draw = |_| {
            next = mix(next);
            next % load.ids
        };
        let ids: Vec<u64> = (0..load.rows).map(draw).collect();
        let begin = Instant::now();
        let rows = block_on(client.lookup(&load.table, &ids))?;
        if load.update {
            block_on(client.update(&load.table, &ids, rows.to_vec(), 0.01))?;
        }
        steps.push(begin.elapsed());
    }
    Ok(steps)
}

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}
