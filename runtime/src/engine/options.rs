use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use grpcxx_memory::ArenaOptions;
use grpcxx_rdma::RdmaOptions;
use grpcxx_rpc::{ChannelOptions, ConnectionLimits, RendezvousLimits, StoreLimits};
use grpcxx_shm::ShmOptions;
use grpcxx_tcp::{DriverRequest, TcpOptions};
use grpcxx_tls::{TlsMode, TlsOptions};
use grpcxx_transport::LinkLimits;

use super::fresh_incarnation;
use crate::client::{Resolve, SystemResolver};
use crate::cluster::TaskId;
use crate::config::{Config, DriverSetting, JobKind, RdmaSetting, ShmSetting};
use crate::descriptors::DescriptorParts;
use crate::function::Service;
use crate::host::{HostError, HostSetting, ShardError};
use crate::placement::{CpuList, PlacementError, usable_cpus};
use crate::policy::{Policy, PolicyError, TokenSource};
use crate::shard::{DrainLimits, Patience, PeerShares};
use crate::task::Device;
use crate::tls::{TlsError, TlsSettings};

/// What an engine is made of. The default is a task of its own with one shard that listens nowhere.
#[derive(Clone)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Which task of the cluster this is.
    pub task: TaskId,
    /// The devices of the task; without any it has `CPU:0` with a random incarnation.
    pub devices: Vec<Device>,
    /// Where the star port listens; port 0 takes a free one. `None`: this engine only calls.
    pub listen: Option<SocketAddr>,
    /// Number of shards, at least 1.
    pub shards: usize,
    /// Whether each shard is pinned to a CPU of its own.
    pub pin: bool,
    /// CPUs to pin shards to, in order; pins whatever `pin` says.
    pub cpus: Option<CpuList>,
    /// Index into the allowed CPUs of the first shard's CPU, so that tasks of one host can differ.
    pub first_cpu: usize,
    /// Whether shards spin for ever instead of parking.
    pub polling: bool,
    /// How long an idle shard spins before it parks, if it does not poll.
    pub spin: Duration,
    /// Whether a thread that waits for a call turns the shard of that call meanwhile, which saves
    /// two hand-overs to another thread. Such shards have epoll, for a ring of io_uring is bound to
    /// its thread. It means nothing where [`EngineOptions::polling`] or [`EngineOptions::service`]
    /// is set, or [`EngineOptions::tcp`] asks for io_uring. `None`: unless the engine listens with
    /// pinned shards; and a shard to which calls of short functions come while no thread waits
    /// runs those instead from then on.
    pub lends_shards: Option<bool>,
    /// How long any CPU of the machine may take to wake up while the engine runs; `None`: as the
    /// system says. Costs power, and needs the right to write `/dev/cpu_dma_latency`.
    pub cpu_latency: Option<Duration>,
    /// What turns the shards.
    pub host: HostSetting,
    /// Driver and socket options.
    pub tcp: TcpOptions,
    /// How connections between processes of this host share memory; `None`: they stay on TCP.
    pub shm: Option<ShmOptions>,
    /// Whether other processes of this user may map the memory of the shards, read-only, so that
    /// tensors in it reach them without a copy. Without [`EngineOptions::shm`] and
    /// [`EngineOptions::listen`] it means nothing.
    pub lends_arenas: bool,
    /// How connections use RDMA; `None`: they do not.
    pub rdma: Option<RdmaOptions>,
    /// Which connections are TLS, and with which certificates; `None`: none.
    pub tls: Option<TlsSettings>,
    /// Memory of each shard; `None` takes an equal share of half the machine.
    pub arena: Option<ArenaOptions>,
    /// Limits of each connection. Half of the arena, unless `arena_bytes` is set.
    pub connection_limits: ConnectionLimits,
    /// How long peers may take.
    pub patience: Patience,
    /// What one peer may hold; `None`: the parts of all limits that [`PeerShares::of`] says.
    pub shares: Option<PeerShares>,
    /// Memory of each arena that only requests of at most 64 KiB may take; `None`: a small part.
    pub small_arena_bytes: Option<usize>,
    /// How peers are dialled and how long calls wait for them.
    pub channel: ChannelOptions,
    /// How long and how much is taken from peers without extensions whose connections are left.
    pub drain: DrainLimits,
    /// Limits of the steps of each shard.
    pub rendezvous_limits: RendezvousLimits,
    /// Limits of the store.
    pub store_limits: StoreLimits,
    /// How long a function or method may hold its shard before the log names it, which is once;
    /// `None`: as long as it likes.
    pub shard_held_max: Option<Duration>,
    /// Threads that run functions, besides those that wait for calls; `None`: one for each CPU.
    pub compute_threads: Option<usize>,
    /// Who may do what.
    pub policy: Policy,
    /// Whether to announce what goes beyond star.
    pub extensions: bool,
    /// Sees each request before the built-in services.
    pub service: Option<Arc<dyn Service>>,
    /// Finds the addresses of peers whose hosts have names.
    pub resolver: Arc<dyn Resolve>,
}

impl EngineOptions {
    /// These options with what `change` sets; fields that it leaves alone keep their values.
    ///
    /// ```
    /// use grpcxx_runtime::EngineOptions;
    ///
    /// let options = EngineOptions::default().with(|options| options.shards = 4);
    /// assert_eq!(options.shards, 4);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// What the environment's settings mean for `task` in a cluster of `total_tasks` tasks.
    pub fn from_config(config: &Config, task: TaskId, total_tasks: usize) -> Self {
        let job = JobKind::of(&task.job);
        let shards = shards(config, job, total_tasks);
        let mut arena = default_arena(shards);
        arena.huge_pages = config.huge_pages;
        if let Some(bytes) = config.arena_bytes {
            arena.capacity_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            arena.headroom = None;
        }
        let polling = config.polling(job);
        Self {
            task,
            devices: Vec::new(),
            listen: None,
            shards,
            pin: config.pinning(job),
            cpus: config.cpus.clone(),
            first_cpu: 0,
            polling,
            spin: config.spin,
            cpu_latency: config.cpu_latency,
            host: config.host,
            tcp: tcp_options(config, polling),
            shm: shm_options(config),
            lends_shards: None,
            lends_arenas: config.shm_lend,
            rdma: rdma_options(config),
            tls: tls_settings(config),
            arena: Some(arena),
            connection_limits: ConnectionLimits::default().with(|limits| {
                limits.outstanding_calls = config.outstanding_calls as usize;
                limits.frame_bytes = config.frame_bytes;
                limits.message_bytes = config.message_bytes;
                limits.names_bytes = usize::try_from(config.message_bytes).unwrap_or(usize::MAX);
                limits.arena_bytes = config.connection_arena_bytes.unwrap_or(u64::MAX);
                limits.unsent_bytes = config.unsent_bytes;
            }),
            patience: Patience {
                progress: config.progress_time,
                step_wait: config.step_wait,
                progress_bytes: config.progress_bytes,
                idle: config.idle_time,
                age: config.age,
            },
            shares: Some(shares(config)),
            small_arena_bytes: (config.small_arena_bytes)
                .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            channel: ChannelOptions::default().with(|options| {
                options.redial_delay = config.redial_delay;
                options.connection_timeout = config.connection_timeout;
                options.waiting_calls = config.waiting_calls as usize;
                options.jitter_seed = fresh_incarnation();
            }),
            drain: DrainLimits {
                time: config.drain_time,
                quiet: config.drain_quiet,
                bytes: config.drain_bytes,
            },
            rendezvous_limits: rendezvous_limits(config),
            store_limits: StoreLimits::default(),
            shard_held_max: config.shard_held,
            compute_threads: config.compute_threads.map(usize::from),
            policy: policy(config),
            extensions: config.extensions,
            service: None,
            resolver: Arc::new(SystemResolver),
        }
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            task: TaskId::new("localhost", 0),
            devices: Vec::new(),
            listen: None,
            shards: 1,
            pin: false,
            cpus: None,
            first_cpu: 0,
            polling: false,
            spin: SPIN_DEFAULT,
            cpu_latency: None,
            host: HostSetting::default(),
            tcp: TcpOptions::default(),
            shm: Some(ShmOptions::default().with(|options| {
                options.limits = LinkLimits {
                    links: SHM_LINKS_DEFAULT,
                    ..LinkLimits::default()
                }
            })),
            lends_shards: None,
            lends_arenas: true,
            rdma: Some(RdmaOptions::default().with(|options| {
                options.limits = LinkLimits {
                    links: RDMA_LINKS_DEFAULT,
                    ..LinkLimits::default()
                }
            })),
            tls: None,
            arena: None,
            connection_limits: ConnectionLimits::default(),
            patience: Patience::default(),
            shares: None,
            small_arena_bytes: None,
            channel: ChannelOptions::default(),
            drain: DrainLimits::default(),
            rendezvous_limits: RendezvousLimits::default(),
            store_limits: StoreLimits::default(),
            shard_held_max: Some(SHARD_HELD_DEFAULT),
            compute_threads: None,
            policy: Policy::default(),
            extensions: true,
            service: None,
            resolver: Arc::new(SystemResolver),
        }
    }
}

impl fmt::Debug for EngineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineOptions")
            .field("task", &self.task)
            .field("listen", &self.listen)
            .field("shards", &self.shards)
            .field("polling", &self.polling)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The options contradict themselves.
    #[error("{0}")]
    Options(String),
    /// Shards cannot be placed as asked.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// Who may do what cannot be said: the token cannot be read.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// There are no certificates as asked.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A thread, such as that of a shard, did not start: no port, no memory, no driver.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl EngineError {
    /// What the system said, if it refused a file or a thread.
    pub fn system_error(&self) -> Option<&io::Error> {
        match self {
            Self::Policy(PolicyError::File { error, .. })
            | Self::Tls(TlsError::File { error, .. } | TlsError::Thread(error)) => Some(error),
            Self::Policy(_)
            | Self::Tls(_)
            | Self::Host(_)
            | Self::Options(_)
            | Self::Placement(_) => None,
        }
    }

    /// Why the engine cannot listen at its address, if that is what failed.
    pub fn listen_error(&self) -> Option<io::Error> {
        match self {
            Self::Host(HostError::Shard {
                reason: ShardError::Listen(error),
                ..
            }) => Some(match error.errno {
                0 => io::Error::other(error.clone()),
                errno => io::Error::from_raw_os_error(errno),
            }),
            Self::Host(_)
            | Self::Options(_)
            | Self::Placement(_)
            | Self::Policy(_)
            | Self::Tls(_) => None,
        }
    }
}

/// A part of the machine for each of so many shards, and what is free of it beyond.
pub(super) fn default_arena(shards: usize) -> ArenaOptions {
    ArenaOptions::share_of_machine(shards)
        .with(|arena| arena.headroom = grpcxx_memory::Headroom::of_machine())
}

fn policy(config: &Config) -> Policy {
    let file = config.token_file.clone().map(TokenSource::File);
    Policy {
        allow: config.allow.clone(),
        admin: config.admin.clone(),
        members: config.members.clone(),
        tasks: Vec::new(),
        store: config.store,
        token: file.or_else(|| config.token.clone().map(TokenSource::Key)),
    }
}

fn rendezvous_limits(config: &Config) -> RendezvousLimits {
    RendezvousLimits::default().with(|limits| {
        limits.steps = config.rendezvous_steps as usize;
        limits.stored_bytes = config.rendezvous_bytes;
    })
}

/// As the configuration says; where that only names a limit, no more than there are CPUs for.
fn shards(config: &Config, job: JobKind, total_tasks: usize) -> usize {
    let shards = config.shards(job, total_tasks);
    match config.shards {
        Some(_) => shards,
        None => shards.min(usable_cpus().max(1)),
    }
}

fn shares(config: &Config) -> PeerShares {
    let parts = default_shares(&rendezvous_limits(config), config.connections as usize);
    let or = |set: Option<u32>, part: usize| set.map_or(part, |count| count as usize);
    PeerShares {
        connections: or(config.peer_connections, parts.connections),
        connection_steps: or(config.connection_steps, parts.connection_steps),
        steps: or(config.peer_steps, parts.steps),
        waiting: or(config.peer_waiting, parts.waiting),
        unsent_bytes: config.peer_unsent_bytes,
        key_bytes: config.peer_key_bytes,
        streams: or(config.peer_streams, (config.streams as usize / 2).max(1)),
        all_streams: config.streams as usize,
        staged_bytes: config.peer_staged_bytes.unwrap_or(parts.staged_bytes),
        staged_bytes_alone: config.peer_staged_bytes.unwrap_or(parts.staged_bytes_alone),
        ..parts
    }
}

/// The shares of peers where shards have so many links each: no more connections than there are
/// files for.
pub(super) fn default_shares(limits: &RendezvousLimits, links: usize) -> PeerShares {
    let files = DescriptorParts::of_process();
    PeerShares::of(limits, links).with(|shares| {
        shares.connections = shares.connections.min(files.peer);
        shares.all_connections = files.star;
    })
}

fn tls_settings(config: &Config) -> Option<TlsSettings> {
    let plain = config.tls_plain.clone().unwrap_or_default();
    (config.tls != TlsMode::Off).then(|| TlsSettings {
        options: TlsOptions::default().with(|options| {
            options.mode = config.tls;
            options.plain_peers = Arc::new(move |address| plain.contain(address));
            options.handshake_time = config.tls_handshake_time;
            options.queued_frames = config.queued_frames as usize;
        }),
        certificate: config.tls_certificate.clone(),
        key: config.tls_key.clone(),
        authorities: config.tls_authorities.clone(),
        is_mutual: config.tls_mutual,
        trusts_rdma: config.tls_rdma,
    })
}

fn tcp_options(config: &Config, polling: bool) -> TcpOptions {
    TcpOptions::default().with(|options| {
        options.driver = match config.driver {
            DriverSetting::Auto => DriverRequest::Auto,
            DriverSetting::IoUring => DriverRequest::IoUring,
            DriverSetting::Epoll => DriverRequest::Epoll,
        };
        options.limits = LinkLimits {
            queued_frames: config.queued_frames as usize,
            links: config.connections as usize,
        };
        options.busy = polling;
        options.keepalive = config.keepalive;
    })
}

fn shm_options(config: &Config) -> Option<ShmOptions> {
    (config.shm == ShmSetting::Auto).then(|| {
        ShmOptions::default().with(|options| {
            options.limits = LinkLimits {
                queued_frames: config.queued_frames as usize,
                links: config.shm_links as usize,
            };
            options.ring_bytes = usize::try_from(config.shm_ring_bytes).unwrap_or(usize::MAX);
            options.lent_bytes_max = usize::try_from(config.shm_lent_bytes).unwrap_or(usize::MAX);
            options.mapped_bytes_max = config.shm_mapped_bytes;
            options.show_bytes_min = match config.shm_read {
                true => ShmOptions::default().show_bytes_min,
                false => usize::MAX,
            };
        })
    })
}

fn rdma_options(config: &Config) -> Option<RdmaOptions> {
    let size = |ours: Option<u64>, theirs| usize::try_from(ours.unwrap_or(theirs));
    let message_bytes = size(config.rdma_message_bytes, config.tf_rdma_message_bytes);
    let message_bytes = message_bytes.unwrap_or(usize::MAX);
    let chunk_bytes = size(config.rdma_chunk_bytes, config.tf_rdma_chunk_bytes);
    let registered_bytes = size(
        config.rdma_registered_bytes,
        config.tf_rdma_registered_bytes,
    );
    (config.rdma == RdmaSetting::Auto && config.tf_rdma).then(|| {
        RdmaOptions::default().with(|options| {
            options.device = (config.rdma_device.clone()).or_else(|| config.tf_rdma_device.clone());
            options.port = config.rdma_port;
            options.gid_index = config.rdma_gid_index;
            options.limits = LinkLimits {
                queued_frames: config.queued_frames as usize,
                links: config.rdma_links as usize,
            };
            options.message_bytes = message_bytes;
            options.offer_bytes_min = message_bytes;
            options.chunk_bytes = chunk_bytes.unwrap_or(usize::MAX);
            options.registered_bytes = registered_bytes.unwrap_or(usize::MAX);
        })
    })
}

/// Connections of a shard that may be on RDMA, if nothing else is said.
const RDMA_LINKS_DEFAULT: usize = 1024;

/// Connections of a shard that may be in shared memory, if nothing else is said.
const SHM_LINKS_DEFAULT: usize = 256;

/// Many times what a short function takes.
const SHARD_HELD_DEFAULT: Duration = Duration::from_millis(1);

/// How long an idle shard spins before it parks, if nothing else is said.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(30);
