//! What an engine has counted, in Prometheus' text format, and a page that shows it over HTTP.

mod calls;
mod function;
mod info;
mod latencies;
mod liveness;
mod page;
mod program;
mod shards;
mod text;
mod waiting;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use grpcxx_rpc::{Reason, TensorStore};
use grpcxx_tls::{LiveCounters, TlsCounters};

pub(crate) use self::function::Telling;
pub use self::function::{SERVER_METRICS, ToldMore};
pub use self::info::{INFO_FETCHES, SERVER_INFO};
pub use self::latencies::{LATENCY_FETCHES, SERVER_LATENCIES};
pub use self::liveness::Liveness;
pub use self::page::{MetricsPage, MoreMetrics, ProgramPage};
pub use self::text::{MetricKind, MetricsText};
pub use self::waiting::{AwaitedTensor, MoreAwaited};
use crate::client::Client;
use crate::command::Shared;
use crate::counters::{Counters, ShardCounters};
use crate::metrics::Metrics;
use crate::policy::Authority;
use crate::registry::Functions;
pub use crate::registry::SERVER_INSPECT;
use crate::staging::StagedTotal;

/// Reads what an engine has counted, from any thread, and after the engine has ended too.
#[derive(Clone)]
pub struct Exposition {
    pub(crate) client: Client,
    pub(crate) authority: Arc<Authority>,
    pub(crate) counters: Arc<[ShardCounters]>,
    pub(crate) functions: Shared<Functions>,
    pub(crate) store: Shared<TensorStore>,
    pub(crate) staged: Arc<StagedTotal>,
    /// Whether arenas take free memory of the machine.
    pub(crate) arena_extends: bool,
    pub(crate) tls_counters: Vec<Arc<LiveCounters>>,
    /// What the program counts.
    pub(crate) program: Metrics,
}

/// Whether an engine does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Serving,
    /// It stops, or has stopped.
    Stopping,
    /// One of its shards died by a panic.
    Failed,
}

impl Exposition {
    /// All but what only the shards know.
    fn counted(&self) -> MetricsText {
        let mut text = MetricsText::default();
        let tls = TlsCounters::sum(self.tls_counters.iter().map(|counters| counters.read()));
        let counters = Counters::sum(&self.counters).entries().into_iter();
        let refused = self.authority.counters().entries();
        let log = crate::log::counters().entries();
        for (name, meaning, value) in counters.chain(tls.entries()).chain(refused).chain(log) {
            text.add(name, MetricKind::Counter, meaning, value);
        }
        let store = self.store.load();
        let stored_bytes = store.iter().map(|(_, tensor)| tensor.data.len() as u64);
        for (name, meaning, value) in [
            (
                "stored_tensors",
                "Tensors in the store.",
                store.iter().count() as u64,
            ),
            (
                "stored_bytes",
                "Bytes of the tensors in the store.",
                stored_bytes.sum(),
            ),
            (
                "staged_tensors",
                "Tensors that are staged, and not in the store yet.",
                self.staged.tensors() as u64,
            ),
            (
                "staged_bytes",
                "Bytes of the tensors that are staged.",
                self.staged.data_bytes(),
            ),
            (
                "arena_extends",
                "1 if what does not fit into an arena lies in free memory of the machine, 0 if it is refused.",
                u64::from(self.arena_extends),
            ),
            (
                "shm_mapped_bytes",
                MAPPED_MEANING,
                grpcxx_shm::mapped_bytes(),
            ),
        ] {
            text.add(name, MetricKind::Gauge, meaning, value);
        }
        text.add_methods(&self.functions.load().method_reports());
        text
    }

    /// All numbers of the engine and of its program. Waits up to half a second for shards that are
    /// busy.
    pub fn text(&self) -> MetricsText {
        let mut text = self.counted();
        let (tell, told) = channel();
        let shards = self.client.shard_calls(move |calls| {
            // Who asked may have given up.
            let _ = tell.send(calls);
        });
        // Both questions are under way before the first answer is awaited.
        let (tell, inspected) = channel();
        self.client.inspect_shards(move |inspection| {
            // Who asked may have given up.
            let _ = tell.send(inspection);
        });
        let end = Instant::now() + SHARD_TIMEOUT;
        let told = received_until(&told, end);
        let silent = shards.saturating_sub(told.len());
        text.add_calls(&told, silent);
        let mut inspected = received_until(&inspected, end);
        inspected.sort_by_key(|inspection| inspection.shard);
        text.add_shards(&inspected);
        text.add_program(&self.program.reports());
        text
    }

    /// All numbers, and those that the program adds.
    pub(crate) fn text_with(&self, program: &ProgramPage) -> String {
        let mut text = self.text();
        if let Some(more) = &program.metrics {
            more(&mut text);
        }
        text.into_string()
    }

    /// What the engine waits for, and what its program does, as JSON. Waits up to half a second for
    /// shards that are busy.
    pub(crate) fn waiting(&self, program: &ProgramPage) -> serde_json::Value {
        let mut awaited = Vec::new();
        if let Some(more) = &program.awaited {
            more(&mut awaited);
        }
        let (tell, told) = channel();
        let shards = self.client.inspect_shards(move |inspection| {
            // Who asked may have given up.
            let _ = tell.send(inspection);
        });
        let told = received_until(&told, Instant::now() + SHARD_TIMEOUT);
        waiting::to_json(told, shards, awaited)
    }

    /// Whether the engine does its work.
    pub fn health(&self) -> Health {
        match self.client.ended() {
            None => Health::Serving,
            Some(status) if status.reason == Reason::ShardDied => Health::Failed,
            Some(_) => Health::Stopping,
        }
    }
}

fn received_until<T>(receiver: &Receiver<T>, end: Instant) -> Vec<T> {
    let next = || {
        let left = end.saturating_duration_since(Instant::now());
        receiver.recv_timeout(left).ok()
    };
    std::iter::from_fn(next).collect()
}

/// How long a shard may take to tell what it has counted: less than scrapers wait for the page, so
/// that a shard that is stuck hides its own numbers alone.
const SHARD_TIMEOUT: Duration = Duration::from_millis(500);

const MAPPED_MEANING: &str =
    "Address space that memory of other processes takes in this one, in bytes.";
