use std::fmt;
use std::net::SocketAddr;

use grpcxx_tcp::DriverChoice;

use super::CpuLatency;
use crate::host::HostChoice;
use crate::idle::IdlePolicy;

/// What an engine chose when it started. Its text is one line for the log.
#[derive(Clone, Debug)]
pub struct StartReport {
    /// The task, `/job:J/replica:0/task:N`.
    pub task: String,
    /// The driver of the sockets, and why.
    pub driver: DriverChoice,
    /// Whether connections within this host go on in shared memory.
    pub shared_memory: SharedMemory,
    /// Whether connections go on over RDMA.
    pub rdma: Rdma,
    /// Which connections are TLS, and the name in the certificate.
    pub tls: String,
    /// What turns the shards, and why.
    pub host: HostChoice,
    /// Number of shards.
    pub shards: usize,
    /// The CPU of each pinned shard; empty if they are not pinned.
    pub pinned_cpus: Vec<usize>,
    /// Number of CPUs that the process may use.
    pub allowed_cpus: usize,
    /// What an idle shard does.
    pub idle: IdlePolicy,
    /// How long idle CPUs may take to wake up.
    pub cpu_latency: CpuLatency,
    /// Why pinning that was asked for was left out, or with whom CPUs are shared.
    pub placement_warning: Option<String>,
    /// Memory of each shard, in bytes of address space.
    pub arena_bytes: usize,
    /// Whether arenas take what is free of the machine beyond that.
    pub arena_goes_beyond: bool,
    /// Who may do what.
    pub policy: String,
    /// Where the star port listens.
    pub star_address: Option<SocketAddr>,
}

/// Whether connections between processes of this host and user go on in shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedMemory {
    /// They do, if the peer can too.
    On {
        /// Whether tensors in the memory of the shards are lent rather than copied.
        lends: bool,
    },
    /// They stay on TCP.
    Off {
        /// Why.
        why: String,
    },
}

impl SharedMemory {
    pub(super) fn off(why: impl fmt::Display) -> Self {
        let why = why.to_string();
        Self::Off { why }
    }
}

/// Whether connections go on over RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rdma {
    /// They do, if the peer can too and no shared memory is nearer.
    On {
        /// Device and port.
        device: String,
        /// Memory of each shard that is registered, in bytes.
        registered_bytes: usize,
    },
    /// They stay on TCP.
    Off {
        /// Why.
        why: String,
    },
}

impl Rdma {
    pub(super) fn off(why: impl fmt::Display) -> Self {
        let why = why.to_string();
        Self::Off { why }
    }
}

impl fmt::Display for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On {
                device,
                registered_bytes,
            } => write!(
                f,
                "{device} ({} MiB/shard registered)",
                registered_bytes >> 20
            ),
            Self::Off { why } => write!(f, "off ({why})"),
        }
    }
}

impl fmt::Display for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On { lends: true } => f.write_str("on"),
            Self::On { lends: false } => f.write_str("on (copies only)"),
            Self::Off { why } => write!(f, "off ({why})"),
        }
    }
}

impl fmt::Display for StartReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} driver={} shm={} rdma={} tls={} host={} shards={} cpus={} idle={} cpu_latency={} arena={}MiB/shard{} policy=({}) star=",
            self.task,
            self.driver,
            self.shared_memory,
            self.rdma,
            self.tls,
            self.host,
            self.shards,
            Cpus(self),
            self.idle,
            self.cpu_latency,
            self.arena_bytes >> 20,
            if self.arena_goes_beyond { "+free" } else { "" },
            self.policy,
        )?;
        match self.star_address {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("none"),
        }
    }
}

struct Cpus<'a>(&'a StartReport);

impl fmt::Display for Cpus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        if !report.pinned_cpus.is_empty() {
            let cpus: Vec<String> = report.pinned_cpus.iter().map(usize::to_string).collect();
            write!(f, "pinned:{}", cpus.join(","))?;
        } else {
            write!(f, "unpinned(of {})", report.allowed_cpus)?;
        }
        if let Some(warning) = &report.placement_warning {
            write!(f, " ({warning})")?;
        }
        Ok(())
    }
}
