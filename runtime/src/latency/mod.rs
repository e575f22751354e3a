//! How long calls and requests take, and how many bytes go over links: what shards count, and what
//! is read of it.

mod peers;
mod table;

use std::sync::Arc;

use hdrhistogram::Histogram;

use crate::client::LinkMedium;
pub(crate) use peers::{CountedPeer, CountedPeers};
pub use peers::{OTHER_PEERS, PEERS_COUNTED_MAX};
pub(crate) use table::{CallKind, CallPlace, CallStart, CallTable, Traffic};

/// How long something took, each time that it was done.
#[derive(Clone, Debug)]
pub struct Latency {
    /// In nanoseconds.
    buckets: Histogram<u64>,
    total_ns: u64,
}

/// Which end of a call took the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallSide {
    /// The caller: from the turn in which its shard took the call to the turn in which it ended.
    Client,
    /// The task that was asked: from the turn in which the request was read to the turn in which
    /// its answer was handed to the connection, or its caller gave it up.
    Server,
}

/// What one shard has counted of its calls and links.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ShardCalls {
    /// How long calls took.
    pub latencies: Vec<CallLatency>,
    /// What went over links.
    pub traffic: Vec<LinkTraffic>,
}

/// How long the calls of one kind with one peer took on one shard.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallLatency {
    /// The shard.
    pub shard: usize,
    /// Which end of the calls.
    pub side: CallSide,
    /// The peer: the address that was called, the task that its certificate names, or the host of
    /// a caller. [`OTHER_PEERS`] for those beyond [`PEERS_COUNTED_MAX`]; none for calls without a
    /// connection, and for peers whose figures gave way to those of others.
    pub peer: Option<Arc<str>>,
    /// The method of star, or `service` for all calls of services by their paths.
    pub method: &'static str,
    /// What carried the calls: `tcp`, `shm` or `rdma`, `local` for calls of the task to itself,
    /// `none` for those that ended before there was a connection.
    pub medium: &'static str,
    /// How long they took.
    pub latency: Latency,
}

/// The bytes that went over the links of one shard with one peer, over one medium.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkTraffic {
    /// The shard.
    pub shard: usize,
    /// Whether this task had dialled (`Client`), or the peer.
    pub side: CallSide,
    /// The peer, as in [`CallLatency::peer`].
    pub peer: Option<Arc<str>>,
    /// `tcp`, `shm` or `rdma`.
    pub medium: &'static str,
    /// Bytes that came: heads as they are read, payload when its transfer begins.
    pub received_bytes: u64,
    /// Bytes of frames that have left.
    pub sent_bytes: u64,
}

impl Latency {
    pub(crate) fn new() -> Self {
        Self {
            buckets: Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS)
                .expect("bounds and digits are those that the crate allows"),
            total_ns: 0,
        }
    }

    /// Notes that something took so long, so many times.
    #[inline]
    pub(crate) fn record(&mut self, took_ns: u64, times: u64) {
        self.buckets.saturating_record_n(took_ns, times);
        let took_ns = took_ns.saturating_mul(times);
        self.total_ns = self.total_ns.saturating_add(took_ns);
    }

    /// Adds what another part of the engine has noted.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds, so nothing can be out of range.
        let _in_range = self.buckets.add(&other.buckets);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
    }

    /// How often it was done.
    pub fn count(&self) -> u64 {
        self.buckets.len()
    }

    /// The time of all together, in seconds.
    pub fn seconds(&self) -> f64 {
        self.total_ns as f64 / 1e9
    }

    /// How long it took at most in this part of the cases, from 0 to 1, in nanoseconds; within a
    /// sixteenth of the truth.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        self.buckets.value_at_quantile(quantile)
    }

    /// How often it took at most so many seconds.
    pub fn within(&self, bound_seconds: f64) -> u64 {
        self.buckets.count_between(0, (bound_seconds * 1e9) as u64)
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl CallSide {
    pub(crate) const ALL: [Self; 2] = [Self::Client, Self::Server];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// Upper bounds of the latencies that are reported, in seconds.
pub const LATENCY_BOUNDS_SECONDS: [f64; 12] = [
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0,
];

/// Longer calls count as this long, in nanoseconds.
const LATENCY_NS_MAX: u64 = 3600 * 1_000_000_000;

/// Digits of a latency that are kept: a histogram then has 5 KB.
const LATENCY_DIGITS: u8 = 1;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_counted_summed_and_found_again() {
        let mut latency = Latency::new();
        latency.record(0, 2);
        latency.record(1_500, 97);
        latency.record(u64::MAX, 1);
        assert_eq!(latency.count(), 100);
        assert_eq!((latency.within(1e-6), latency.within(2e-6)), (2, 99));
        assert_eq!(latency.within(10.0), 99);
        let p50_ns = latency.quantile_ns(0.5);
        assert!((1_500..=1_600).contains(&p50_ns), "{p50_ns}");
        assert!(latency.quantile_ns(1.0) >= LATENCY_NS_MAX);
    }

    #[test]
    fn latencies_of_several_shards_add_up() {
        let mut one = Latency::new();
        one.record(10_000, 3);
        let mut other = Latency::new();
        other.record(2_000_000, 1);
        one.add(&other);
        assert_eq!((one.count(), one.within(1e-3)), (4, 3));
        assert!((one.seconds() - 2.03e-3).abs() < 1e-9);
    }
}
