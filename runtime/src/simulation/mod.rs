//! Whole clusters in one thread: real shards, meshes and inboxes over simulated links, under
//! virtual time, with random operations and faults, held against a model after each turn and at the
//! end.
//!
//! All that happens follows from a seed. `GRPCXX_SIM_SEEDS=N` runs N seeds, `GRPCXX_SEED=N` runs
//! one, and `GRPCXX_SIM_LINES=N` shows so many events before a failure.

mod calls;
mod cluster;
mod ending;
mod functions;
mod hostile;
mod journal;
mod model;
mod operations;
mod originals;
mod profile;
mod pushes;
mod receives;
mod restarts;
mod scale;
mod service_tensors;
mod streams;
mod task;
mod tensors;
mod wire_checker;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use self::cluster::Cluster;

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    hash: u64,
    events: u64,
    calls: u64,
    calls_succeeded: u64,
    tensors: u64,
    tensors_delivered: u64,
    tensors_returned: u64,
    chunks: u64,
    /// Ends of links.
    migrated: u64,
    failed_over: u64,
    /// Messages of streams.
    messages: u64,
    /// Staged pushes whose commit succeeded.
    pushes: u64,
}

impl Outcome {
    fn add(&mut self, other: &Self) {
        self.hash ^= other.hash;
        self.events += other.events;
        self.calls += other.calls;
        self.calls_succeeded += other.calls_succeeded;
        self.tensors += other.tensors;
        self.tensors_delivered += other.tensors_delivered;
        self.tensors_returned += other.tensors_returned;
        self.chunks += other.chunks;
        self.migrated += other.migrated;
        self.failed_over += other.failed_over;
        self.messages += other.messages;
        self.pushes += other.pushes;
    }
}

#[test]
fn clusters_keep_the_contracts_whatever_happens() {
    if let Some(seed) = variable("GRPCXX_SEED") {
        let outcome = must_succeed(seed, run(seed));
        return say(&format!("GRPCXX_SEED={seed} {outcome:?}"));
    }
    let seeds = variable("GRPCXX_SIM_SEEDS").unwrap_or(SEEDS_DEFAULT);
    let next = AtomicU64::new(0);
    let work = || {
        let mut total = Outcome::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return total;
            }
            let result = run(seed);
            if result.is_err() {
                // The others need not go on.
                next.store(seeds, Ordering::Relaxed);
            }
            total.add(&must_succeed(seed, result));
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let total = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut total = Outcome::default();
        for worker in workers {
            match worker.join() {
                Ok(outcome) => total.add(&outcome),
                Err(panic) => resume_unwind(panic),
            }
        }
        total
    });
    say(&format!("GRPCXX_SIM_SEEDS={seeds} {total:?}"));
    if seeds >= SEEDS_DEFAULT {
        // Else the runs would say nothing about these.
        assert!(total.chunks > 0, "no frame went in chunks");
        assert!(total.migrated > 0, "no link migrated to RDMA");
        assert!(total.failed_over > 0, "RDMA failed under no link");
        assert!(total.messages > 0, "no message of a stream arrived");
        assert!(total.pushes > 0, "no staged push was committed");
    }
}

#[test]
fn equal_seeds_make_equal_runs() {
    for seed in 0..4 {
        let (one, other) = (run(seed), run(seed));
        assert_eq!(one, other, "seed {seed}");
        assert_ne!(
            one.map(|outcome| outcome.hash),
            run(seed + 4).map(|outcome| outcome.hash)
        );
    }
}

/// Plays the cluster of a seed.
fn run(seed: u64) -> Result<Outcome, String> {
    let lines_max = variable("GRPCXX_SIM_LINES").unwrap_or(LINES_DEFAULT) as usize;
    let mut cluster = Cluster::new(seed, lines_max);
    let result = catch_unwind(AssertUnwindSafe(|| cluster.play()));
    match result {
        Ok(outcome) => Ok(outcome),
        Err(panic) => {
            let what = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_default();
            let profile = format!("{:?}", cluster.profile);
            let journal = cluster.watcher.model().journal.to_string();
            // What is in the middle of something must not be taken apart as if it were not.
            std::mem::forget(cluster);
            Err(format!("{journal}{profile}\n{what}"))
        }
    }
}

fn must_succeed(seed: u64, result: Result<Outcome, String>) -> Outcome {
    match result {
        Ok(outcome) => outcome,
        Err(what) => panic!(
            "{what}\nTo run it again: GRPCXX_SEED={seed} cargo test -p grpcxx-runtime --lib simulation::clusters"
        ),
    }
}

#[expect(clippy::print_stdout, reason = "a test prints its seed")]
fn say(what: &str) {
    println!("{what}");
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    match value.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name} is \"{value}\"; write a number"),
    }
}

const SEEDS_DEFAULT: u64 = 50;
const LINES_DEFAULT: u64 = 60;
