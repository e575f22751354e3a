use std::time::Duration;

use crate::LinkLimits;

/// What a [`SimNetwork`](crate::sim::SimNetwork) does to those who use it. A chance is between 0
/// and 1.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// All that is random follows from it.
    pub seed: u64,
    /// Least time from one host to another.
    pub latency_min: Duration,
    /// Mean time from one host to another.
    pub latency_mean: Duration,
    /// Bytes that one direction of a link carries each second.
    pub bytes_per_second: u64,
    /// Fewest bytes of one read, if as many are there.
    pub read_bytes_min: usize,
    /// Most bytes of one read.
    pub read_bytes_max: usize,
    /// Most bytes of one write.
    pub write_bytes_max: usize,
    /// Bytes that one direction holds between its writer and its reader; a writer waits when it is
    /// full.
    pub buffer_bytes: usize,
    /// Connections that a listener keeps until they are taken; more are refused.
    pub backlog: usize,
    /// How long a dial waits for a host that does not answer.
    pub connect_timeout: Duration,
    /// How long a close with flush tries.
    pub flush_timeout: Duration,
    /// Chance that a dial fails though there is a listener.
    pub connect_failure_chance: f64,
    /// Chance, for each direction of a connection, that it breaks after some byte of its first
    /// [`SimOptions::fault_bytes_max`].
    pub cut_chance: f64,
    /// Chance, for each direction of a connection, that its stream ends after such a byte though
    /// its writer has not closed it and can still read.
    pub half_close_chance: f64,
    /// Latest byte at which a connection is cut or half closed.
    pub fault_bytes_max: u64,
    /// Chance, for each read, that the reader then reads nothing for a while.
    pub stall_chance: f64,
    /// Longest such while.
    pub stall_max: Duration,
    /// Bounds of each transport.
    pub limits: LinkLimits,
}

impl SimOptions {
    /// A network that delivers in pieces, but never fails.
    pub fn reliable(seed: u64) -> Self {
        Self {
            seed,
            latency_min: Duration::from_micros(20),
            latency_mean: Duration::from_micros(50),
            bytes_per_second: 2_000_000_000,
            read_bytes_min: 1,
            read_bytes_max: 64 << 10,
            write_bytes_max: 64 << 10,
            buffer_bytes: 256 << 10,
            backlog: 4096,
            connect_timeout: Duration::from_secs(5),
            flush_timeout: Duration::from_secs(2),
            connect_failure_chance: 0.0,
            cut_chance: 0.0,
            half_close_chance: 0.0,
            fault_bytes_max: 1 << 20,
            stall_chance: 0.0,
            stall_max: Duration::from_millis(20),
            limits: LinkLimits::default(),
        }
    }

    /// A reliable network that cuts the stream into crumbs and holds only a few bytes.
    pub fn crumbs(seed: u64) -> Self {
        Self {
            read_bytes_max: 7,
            write_bytes_max: 11,
            buffer_bytes: 200,
            ..Self::reliable(seed)
        }
    }

    /// A network on which everything fails now and then.
    pub fn faulty(seed: u64) -> Self {
        Self {
            latency_mean: Duration::from_micros(500),
            read_bytes_max: 4096,
            write_bytes_max: 9000,
            buffer_bytes: 32 << 10,
            connect_failure_chance: 0.05,
            cut_chance: 0.05,
            half_close_chance: 0.02,
            stall_chance: 0.01,
            ..Self::reliable(seed)
        }
    }
}
