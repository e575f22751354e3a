use std::time::Duration;

use fastrand::Rng;
use grpcxx_memory::ArenaOptions;
use grpcxx_rdma::sim::SimFabricOptions;
use grpcxx_rdma::{CreditLimits, RdmaOptions};
use grpcxx_rpc::{ChannelOptions, ConnectionLimits, RendezvousLimits};
use grpcxx_transport::sim::SimOptions;
use grpcxx_transport::{FaultOptions, LinkLimits};

use crate::shard::{DrainLimits, Patience, PeerShares};

/// What kind of cluster a seed makes, and what befalls it.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    pub(super) tasks: usize,
    pub(super) operations: usize,
    /// Mean time from one operation to the next.
    pub(super) pace: Duration,
    /// Most operations at a time.
    pub(super) burst: usize,
    pub(super) network: SimOptions,
    /// Whether links fail by themselves.
    pub(super) links_fail: bool,
    /// Whether tasks crash, stop and start again.
    pub(super) restarts: bool,
    pub(super) partitions: bool,
    /// Whether somebody takes what it can get of the tasks.
    pub(super) has_hostile_peers: bool,
    /// Whether streams are among the operations.
    pub(super) has_streams: bool,
    /// How long a staged push waits for its next call, and how long it lasts.
    pub(super) staged_patience: Duration,
    pub(super) staged_life: Duration,
    /// Whether limits are so low that calls are refused.
    pub(super) is_tight: bool,
    pub(super) close_chance: f64,
    pub(super) refusal_chance: f64,
    pub(super) stall_chance: f64,
    pub(super) tensor_bytes_max: usize,
    pub(super) inbox_commands: usize,
    pub(super) mesh_messages: usize,
    pub(super) arena_bytes: usize,
    pub(super) connection_limits: ConnectionLimits,
    pub(super) patience: Patience,
    pub(super) channel: ChannelOptions,
    pub(super) drain: DrainLimits,
    /// Longest delay of a step of the simulation behind the event that it is for.
    pub(super) slack: Duration,
    /// What links move to, if tasks have devices.
    pub(super) rdma: Option<RdmaProfile>,
}

/// Devices of a cluster.
#[derive(Clone, Debug)]
pub(super) struct RdmaProfile {
    pub(super) fabric: SimFabricOptions,
    pub(super) options: RdmaOptions,
    /// Chance that a task has one.
    pub(super) device_chance: f64,
    /// Chance, for each step of the simulation, that something befalls one.
    pub(super) fault_chance: f64,
}

impl Profile {
    pub(super) fn draw(seed: u64, random: &mut Rng) -> Self {
        let kind = random.u32(..10);
        let network = match kind {
            0..=2 => SimOptions::reliable(seed),
            3..=4 => SimOptions::crumbs(seed),
            _ => SimOptions::faulty(seed),
        };
        let (is_crumbs, links_fail) = ((3..=4).contains(&kind), kind >= 5);
        let is_tight = random.u32(..4) == 0;
        let mut profile = Self {
            tasks: random.usize(10..=40),
            operations: random.usize(200..=600),
            pace: Duration::from_micros(random.u64(50..=1500)),
            burst: random.usize(1..=6),
            network,
            links_fail,
            restarts: random.u32(..5) > 1,
            partitions: random.u32(..3) == 0,
            has_hostile_peers: random.bool(),
            has_streams: false,
            staged_patience: Duration::ZERO,
            staged_life: Duration::ZERO,
            is_tight,
            close_chance: if links_fail { random.f64() * 0.01 } else { 0.0 },
            refusal_chance: random.f64() * 0.3,
            stall_chance: if random.bool() { 0.01 } else { 0.0 },
            tensor_bytes_max: if is_crumbs { 600 } else { 40_000 },
            inbox_commands: 1024,
            mesh_messages: random.usize(1..=32),
            arena_bytes: 8 << 20,
            connection_limits: ConnectionLimits::default(),
            patience: Patience {
                progress: Some(Duration::from_millis(random.u64(500..=2000))),
                progress_bytes: 256,
                ..Patience::default()
            },
            channel: ChannelOptions::default().with(|options| {
                options.redial_delay = Duration::from_millis(random.u64(5..=50));
                options.redial_jitter = Duration::from_millis(2);
                options.jitter_seed = random.u64(..);
                options.connection_timeout = Duration::from_millis(random.u64(100..=1000));
            }),
            drain: DrainLimits {
                time: Duration::from_millis(random.u64(0..=50)),
                quiet: Duration::from_millis(random.u64(1..=10)),
                bytes: random.u64(1000..=1 << 20),
            },
            slack: Duration::from_micros(random.u64(20..=400)),
            rdma: None,
        };
        profile.network.connect_timeout = Duration::from_millis(random.u64(20..=200));
        profile.network.flush_timeout = Duration::from_millis(200);
        profile.network.fault_bytes_max = 100_000;
        if links_fail {
            // Narrow links, so that many frames have not left when one fails.
            profile.network.bytes_per_second = random.u64(2_000_000..=100_000_000);
            profile.network.buffer_bytes = random.usize(1_000..=32_000);
            profile.network.stall_chance = random.f64() * 0.05;
        }
        if is_crumbs {
            profile.tasks = random.usize(10..=16);
            profile.operations = random.usize(100..=200);
        }
        if is_tight {
            profile.tighten(random);
        }
        if random.u32(..4) == 0 {
            // So quiet that a shard which sleeps through its work is not woken by chance.
            profile.tasks = 10;
            profile.operations = 150;
            profile.pace = Duration::from_millis(50);
            profile.burst = 8;
            profile.mesh_messages = 1;
        }
        profile.connection_limits.arena_bytes = profile.arena_bytes as u64 / 2;
        profile.draw_chunks(random);
        profile.rdma = (random.u32(..2) == 0).then(|| profile.draw_rdma(seed, random));
        profile
    }

    /// Chunks so short that tensors of the simulation take several, and what comes meanwhile goes
    /// between.
    fn draw_chunks(&mut self, random: &mut Rng) {
        if random.u32(..3) > 0 {
            let whole_bytes_max = self.tensor_bytes_max as u64;
            self.connection_limits.whole_frame_bytes = random.u64(200..=whole_bytes_max);
            self.connection_limits.chunk_bytes = random.usize(100..=10_000);
        }
    }

    fn draw_rdma(&self, seed: u64, random: &mut Rng) -> RdmaProfile {
        let mut fabric = SimFabricOptions::reliable(seed);
        fabric.latency_max = Duration::from_micros(random.u64(8..=200));
        fabric.bytes_per_second = random.u64(10_000_000..=10_000_000_000);
        fabric.retry_time = Duration::from_millis(random.u64(1..=50));
        fabric.limits.reads_per_queue = random.u8(1..=16);
        if self.links_fail {
            fabric.loss_chance = random.f64() * 0.003;
            fabric.refusal_chance = random.f64() * 0.05;
        }
        if random.u32(..4) == 0 {
            // Enough for the memory of some links, and of hardly a tensor.
            fabric.lockable_bytes = 5 << 20;
        }
        let options = RdmaOptions::default().with(|options| {
            options.limits = LinkLimits {
                queued_frames: self.network.limits.queued_frames,
                links: random.usize(2..=64),
            };
            options.credits = CreditLimits {
                messages: random.u16(2..=16),
                immediates: random.u16(4..=8),
            };
            options.message_bytes = random.usize(256..=4096);
            options.offer_bytes_min = random.usize(100..=8192);
            options.chunk_bytes = random.usize(4096..=65_536);
            options.reads = random.u8(1..=16);
            options.foreign_bytes_min = random.usize(1..=40_000);
            options.foreign_entries = random.usize(1..=16);
            options.flush_timeout = self.network.flush_timeout;
        });
        RdmaProfile {
            fabric,
            options,
            device_chance: 0.8,
            fault_chance: if self.links_fail {
                random.f64() * 0.02
            } else {
                0.0
            },
        }
    }

    /// How long a call may take for which nobody has to wait, if that can be said.
    pub(super) fn answered_within(&self) -> Option<Duration> {
        let is_calm = !(self.links_fail || self.restarts || self.partitions || self.is_tight);
        // A network that hands over a few bytes at a time is slow by itself, as are turns shared
        // with hostile peers; one comes on top of the other. Messages of streams that were sent
        // before a call, as many as their credits allow, take their time there too.
        let crumbs = match (self.is_crumbling(), self.has_streams) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 5,
        };
        let reasons = u32::from(self.has_hostile_peers) + crumbs;
        is_calm.then_some(Duration::from_millis(200) * (1 + reasons))
    }

    /// Whether the network hands over a few bytes at a time.
    pub(super) fn is_crumbling(&self) -> bool {
        self.network.read_bytes_max <= CRUMB_BYTES_MAX
    }

    pub(super) fn faults(&self, seed: u64) -> FaultOptions {
        FaultOptions {
            seed,
            refusal_chance: self.refusal_chance,
            stall_chance: self.stall_chance,
            stall_max: Duration::from_millis(2),
            close_chance: self.close_chance,
        }
    }

    pub(super) fn arena(&self) -> ArenaOptions {
        ArenaOptions::default().with(|options| {
            options.capacity_bytes = self.arena_bytes;
            options.huge_pages = false;
        })
    }

    pub(super) fn rendezvous_limits(&self) -> RendezvousLimits {
        RendezvousLimits::default().with(|limits| {
            // So few that floods of hostile peers would take all of them, but for their share.
            limits.steps = 2048;
        })
    }

    pub(super) fn shares(&self) -> PeerShares {
        let shares = PeerShares::of(&self.rendezvous_limits(), self.network.limits.links);
        shares.with(|shares| {
            shares.staged_patience = self.staged_patience;
            shares.staged_life = self.staged_life;
        })
    }

    fn tighten(&mut self, random: &mut Rng) {
        self.inbox_commands = random.usize(2..=64);
        self.arena_bytes = 64 << 10;
        self.connection_limits.outstanding_calls = random.usize(2..=16);
        self.channel.waiting_calls = random.usize(1..=16);
        self.network.limits = LinkLimits {
            queued_frames: random.usize(1..=8),
            links: LinkLimits::default().links,
        };
    }
}

/// A network that lets at most so many bytes be read at a time hands them over in crumbs.
const CRUMB_BYTES_MAX: usize = 7;
