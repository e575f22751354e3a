use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use grpcxx_memory::{Arena, ArenaOptions};
use grpcxx_rdma::{NearPeers, RdmaLinks, RdmaMedium, VerbsAdapter};
use grpcxx_rpc::{Features, TensorStore};
use grpcxx_shm::ShmMedium;
use grpcxx_tcp::{DriverChoice, TcpOptions, TcpTransport};
use grpcxx_tls::{LiveCounters, Tls};
use grpcxx_transport::Migrating;

use super::arena_parts::{connection_limits, small_bytes};
use super::gate::Gate;
use super::options::{default_arena, default_shares};
use super::queues::{Ends, Queues, queues};
use super::report::{Rdma, SharedMemory};
use super::{
    Engine, EngineError, EngineOptions, LocalEngine, StartReport, fresh_incarnation,
    outgoing_ports_warning,
};
use super::{cpu_latency, lending};
use crate::client::{Client, Lookups, Mailboxes};
use crate::compute::{ComputePool, NoThread};
use crate::counters::ShardCounters;
use crate::descriptors::DescriptorParts;
use crate::exposition::ProgramPage;
use crate::host::{
    self, Clock, HostChoice, HostError, HostHandle, HostOptions, Inline, ShardError,
};
use crate::idle::{Idle, IdlePolicy, polling_left_out};
use crate::metrics::Metrics;
use crate::placement::{
    CpuClaims, Placement, PlacementRequest, allowed_cpus, cpu_time, usable_cpus,
};
use crate::policy::Authority;
use crate::registry::Functions;
use crate::shard::{Accounts, CoreParts, DrivenShard, Shard, SharedParts};
use crate::sharded::{ShardThread, Shards};
use crate::task::{Device, Task};
use crate::tls::Certificates;

/// What a shard tells the thread that starts the engine.
struct Started {
    driver: DriverChoice,
    shared_memory: SharedMemory,
    rdma: Rdma,
    star_address: Option<SocketAddr>,
    tls: Option<Arc<LiveCounters>>,
}

/// How a shard tells that it was made.
struct Starting {
    tell: Sender<Started>,
    /// Closed when the shard may begin to turn, if it waits for that.
    may_turn: Option<Receiver<()>>,
}

/// How all shards of an engine are run.
struct Plan {
    host: HostChoice,
    placement: Placement,
    placement_warning: Option<String>,
    cpu_claims: CpuClaims,
    allowed_cpus: usize,
    idle: IdlePolicy,
    /// Whether threads that wait may turn shards.
    lends: bool,
    /// Whether threads of shards run functions that were short so far.
    runs_short_calls: bool,
    arena: ArenaOptions,
    certificates: Option<Arc<Certificates>>,
}

/// Starts an engine, which serves nobody before it is opened.
pub(super) fn start(options: EngineOptions) -> Result<Engine, EngineError> {
    let options = polling_if_there_is_time(options);
    let (options, lends) = lending::choose(options);
    let plan = Plan {
        lends: lends.is_on,
        runs_short_calls: lends.runs_short_calls,
        ..plan(&options)?
    };
    if let Some(warning) = options
        .listen
        .and_then(|address| outgoing_ports_warning(&[address.port()]))
    {
        tracing::warn!("{warning}");
    }
    let (ends, spawners, mailboxes) = queues(options.shards);
    let shared = shared_parts(&options, &plan, Arc::new(mailboxes))?;
    let shards = Shards::new(
        spawners,
        Arc::clone(&shared.mailboxes),
        Arc::clone(&shared.compute),
    );
    let (cpu_latency, cpu_latency_file) = cpu_latency::hold(options.cpu_latency);
    let clock = Clock::start();
    let (starting, started) = channel();
    let mut hosts = Vec::new();
    // The first shard listens. It turns when this is closed, so all who come find what others may
    // call, and until then wait in the line of the system.
    let (gate, opened) = channel();
    let mut opened = Some(opened);
    let begun: Result<(), EngineError> =
        ends.into_iter().enumerate().try_for_each(|(index, ends)| {
            let shared = (&shared, &shards);
            let starting = Starting {
                tell: starting.clone(),
                may_turn: opened.take(),
            };
            hosts.push(start_shard(
                index, ends, &options, &plan, shared, clock, starting,
            )?);
            Ok(())
        });
    drop(starting);
    let reports: Vec<Started> = started.iter().collect();
    let are_all_made = begun.is_ok() && reports.len() == options.shards;
    let driver = reports.first().map(|report| report.driver.clone());
    let shared_memory = reports.first().map(|report| report.shared_memory.clone());
    let rdma = reports.first().map(|report| report.rdma.clone());
    let star_address = reports.iter().find_map(|report| report.star_address);
    let tls_counters = reports
        .into_iter()
        .filter_map(|report| report.tls)
        .collect();
    let engine = Engine {
        client: Client::new(Arc::clone(&shared.mailboxes), star_address),
        report: StartReport {
            task: shared.task.name().to_owned(),
            driver: lends.driver(driver.unwrap_or_else(|| unknown_driver(&options.tcp))),
            shared_memory: shared_memory.unwrap_or_else(|| SharedMemory::off("not started")),
            rdma: rdma.unwrap_or_else(|| Rdma::off("not started")),
            host: plan.host,
            shards: options.shards,
            pinned_cpus: (0..options.shards)
                .filter_map(|shard| plan.placement.cpu(shard))
                .collect(),
            allowed_cpus: plan.allowed_cpus,
            idle: plan.idle,
            cpu_latency,
            placement_warning: plan.placement_warning,
            arena_bytes: plan.arena.capacity_bytes,
            arena_goes_beyond: plan.arena.headroom.is_some(),
            policy: shared.authority.to_string(),
            tls: match &plan.certificates {
                Some(certificates) => certificates.to_string(),
                None => "off".to_owned(),
            },
            star_address,
        },
        shared,
        hosts: Mutex::new(hosts),
        metrics: Metrics::new(shards.clone()),
        shards,
        gate: Gate::closed(gate),
        turns: AtomicUsize::new(0),
        shard_held_max: options.shard_held_max,
        certificates: plan.certificates,
        tls_counters,
        _cpu_latency: cpu_latency_file,
        _cpu_claims: plan.cpu_claims,
    };
    if !are_all_made {
        begun.and_then(|()| engine.open())?;
    }
    drop(engine.tell_more(ProgramPage::default()));
    Ok(engine)
}

/// Makes an engine whose one shard the calling thread turns.
pub(super) fn start_local(options: EngineOptions) -> Result<LocalEngine, EngineError> {
    let options = EngineOptions {
        listen: None,
        shards: 1,
        pin: false,
        cpus: None,
        ..options
    };
    let options = polling_if_there_is_time(options);
    let plan = plan(&options)?;
    let (ends, spawners, mailboxes) = queues(options.shards);
    let mailboxes = Arc::new(mailboxes.without_threads());
    let shared = shared_parts(&options, &plan, Arc::clone(&mailboxes))?;
    let shards = Shards::new(spawners, mailboxes, Arc::clone(&shared.compute));
    let Some(Ends { queues, jobs }) = ends.into_iter().next() else {
        unreachable!("a queue was made for one shard");
    };
    let name = "grpcxx-local".to_owned();
    let settings = (plan.arena, plan.certificates);
    let (tell, _started) = channel();
    let starting = Starting {
        tell,
        may_turn: None,
    };
    let shard = make_shard(0, queues, options, settings, shared.clone(), starting);
    let shard = shard.map_err(|reason| HostError::Shard {
        name: name.clone(),
        reason,
    })?;
    let inline = Inline::new(name, shard, Clock::start(), Idle::new(plan.idle), jobs);
    Ok(LocalEngine::new(inline, shared, shards))
}

/// Lets shards sleep that were told to poll, if there is less time of CPUs than that takes.
fn polling_if_there_is_time(options: EngineOptions) -> EngineOptions {
    if !options.polling {
        return options;
    }
    let Some(warning) = polling_left_out(options.shards, cpu_time()) else {
        return options;
    };
    tracing::warn!("{warning}");
    options.with(|options| {
        options.polling = false;
        options.tcp.busy = false;
    })
}

fn plan(options: &EngineOptions) -> Result<Plan, EngineError> {
    if !(1..=SHARDS_MAX).contains(&options.shards) {
        return Err(EngineError::Options(format!(
            "{} shards cannot run; set between 1 and {SHARDS_MAX}",
            options.shards
        )));
    }
    let allowed = allowed_cpus();
    let request = PlacementRequest {
        shards: options.shards,
        pin: options.pin,
        list: options.cpus.as_ref(),
        first: options.first_cpu,
    };
    let certificates = options.tls.as_ref().map(Certificates::open);
    let certificates = certificates.transpose()?.flatten();
    if let Some(certificates) = &certificates {
        certificates.warn_of_other_task(&options.task);
    }
    let mut cpu_claims = CpuClaims::default();
    let (placement, placement_warning) =
        Placement::choose(&request, &allowed, |cpu| cpu_claims.take(cpu))?;
    let allowed_cpus = allowed.as_slice().len();
    Ok(Plan {
        host: HostChoice::choose(options.host).map_err(EngineError::Options)?,
        placement,
        placement_warning,
        cpu_claims,
        allowed_cpus,
        certificates: certificates.map(Arc::new),
        lends: false,
        runs_short_calls: false,
        idle: IdlePolicy::choose(options.polling, options.spin, options.shards, usable_cpus()),
        arena: (options
            .arena
            .clone()
            .unwrap_or_else(|| default_arena(options.shards)))
        .with(|changed| {
            // Who listens to nobody has nothing that peers come for: what it receives is private.
            changed.shared = options.lends_arenas
                && options.listen.is_some()
                && options.shm.is_some()
                && options.extensions
        }),
    })
}

fn shared_parts(
    options: &EngineOptions,
    plan: &Plan,
    mailboxes: Arc<Mailboxes>,
) -> Result<SharedParts, EngineError> {
    let memory_bytes = plan.arena.capacity_bytes.saturating_mul(options.shards) as u64;
    let mut devices = options.devices.clone();
    if devices.is_empty() {
        devices.push(Device::cpu(
            &options.task,
            fresh_incarnation(),
            memory_bytes,
        ));
    }
    let task = Task::new(options.task.clone(), &devices).map_err(EngineError::Options)?;
    let store = Arc::new(ArcSwap::from_pointee(TensorStore::new(
        options.store_limits,
    )));
    let lookups = Lookups::new(Arc::clone(&options.resolver));
    let authority = authority(options)?;
    if options.listen.is_some() {
        authority.find_tasks(&lookups);
    }
    Ok(SharedParts {
        task: Arc::new(task),
        mailboxes,
        lookups,
        functions: Arc::new(ArcSwap::from_pointee(Functions::builtin(&store))),
        store,
        staged: Arc::default(),
        service: options.service.clone(),
        authority: Arc::new(authority),
        compute: pool("compute", options.compute_threads)?,
        chores: pool("chores", Some(CHORE_THREADS))?,
        runs_short_calls: plan.runs_short_calls,
        counters: (0..options.shards)
            .map(|_| ShardCounters::default())
            .collect(),
        loads: (0..options.shards).map(|_| AtomicUsize::new(0)).collect(),
        ended: Arc::new(AtomicUsize::new(0)),
        accounts: Arc::new(Accounts::of_arenas(&plan.arena, options.shards)),
        counted_peers: Arc::default(),
    })
}

fn pool(name: &str, threads: Option<usize>) -> Result<Arc<ComputePool>, EngineError> {
    let pool = ComputePool::start(name, threads);
    let pool = pool.map_err(|NoThread { name, error }| HostError::Thread {
        name,
        message: error.to_string(),
    })?;
    Ok(Arc::new(pool))
}

fn start_shard(
    index: usize,
    ends: Ends,
    options: &EngineOptions,
    plan: &Plan,
    (shared, shards): (&SharedParts, &Shards),
    clock: Clock,
    starting: Starting,
) -> Result<HostHandle, HostError> {
    let host_options = HostOptions {
        name: format!("grpcxx-{index}"),
        kind: plan.host.kind,
        cpu: plan.placement.cpu(index),
        idle: plan.idle,
        clock,
    };
    let lend = (plan.lends).then(|| lending::lend_to(&shared.mailboxes, index));
    let options = options.clone();
    let arena = plan.arena.clone();
    let certificates = plan.certificates.clone();
    let shared = shared.clone();
    let shards = shards.clone();
    let Ends { queues, jobs } = ends;
    let presence = ShardThread::new(shards, index);
    let make = move || {
        make_shard(
            index,
            queues,
            options,
            (arena, certificates),
            shared,
            starting,
        )
    };
    host::spawn_with(host_options, jobs, make, lend, presence)
}

/// Makes a shard on the thread that will turn it.
fn make_shard(
    index: usize,
    queues: Queues,
    options: EngineOptions,
    (arena, certificates): (ArenaOptions, Option<Arc<Certificates>>),
    shared: SharedParts,
    Starting { tell, may_turn }: Starting,
) -> Result<EngineShard, ShardError> {
    let (tcp, driver) =
        TcpTransport::open(options.tcp.clone()).map_err(|error| error.to_string())?;
    let mut secured = Tls::new(tcp);
    if let Some(certificates) = &certificates {
        secured.enable(certificates.options().clone(), certificates.shared());
    }
    let tls = secured.live_counters();
    let mut near = Migrating::new(secured);
    let shared_memory = share_memory(&mut near, &options, &arena);
    let mut transport = Migrating::new(near);
    let goes_beyond = arena.headroom.is_some();
    let mut arena = reserve(&arena)?;
    let near_peers = match shared_memory {
        SharedMemory::On { .. } => NearPeers::LeaveToBase,
        SharedMemory::Off { .. } => NearPeers::Migrate,
    };
    let rdma = match &certificates {
        Some(certificates) if !certificates.trusts_rdma() && !shared.authority.has_token() => {
            Rdma::off(RDMA_IS_CLEAR)
        }
        Some(_) | None => use_rdma(&mut transport, near_peers, &mut arena, &options),
    };
    let features = features(&options, &shared_memory, &rdma);
    let capacity_bytes = arena.statistics().capacity_bytes;
    arena.keep_for_small(small_bytes(options.small_arena_bytes, capacity_bytes));
    let parts = CoreParts {
        index,
        shared,
        connection_limits: connection_limits(
            options.connection_limits,
            capacity_bytes,
            goes_beyond,
        ),
        patience: options.patience,
        shares: options.shares.unwrap_or_else(|| {
            default_shares(&options.rendezvous_limits, options.tcp.limits.links)
        }),
        announce: features,
        channel_options: options.channel,
        rendezvous_limits: options.rendezvous_limits,
        drain: options.drain,
        links: options.tcp.limits.links,
        arena,
        mesh: queues.mesh,
        inbox: queues.inbox,
    };
    let mut shard = Shard::new(transport, parts);
    let star_address = match options.listen {
        Some(address) if index == 0 => Some(shard.listen(address).map_err(ShardError::Listen)?),
        _ => None,
    };
    // The engine that waits for this may have given up already.
    let _ = tell.send(Started {
        driver,
        shared_memory,
        rdma,
        star_address,
        tls,
    });
    drop(tell);
    if let Some(gate) = may_turn {
        // Nobody sends: it is closed.
        let _ = gate.recv();
    }
    Ok(DrivenShard::new(shard, queues.sleeper))
}

/// Who may do what.
fn authority(options: &EngineOptions) -> Result<Authority, EngineError> {
    let authority = Authority::new(&options.policy)?;
    if authority.has_token() && !options.extensions {
        let text = "a token is set, but GRPCXX_EXTENSIONS=off lets no connection prove it; \
                    turn the extensions on, or set no token";
        return Err(EngineError::Options(text.to_owned()));
    }
    Ok(authority)
}

/// What this side can announce.
fn features(options: &EngineOptions, shared_memory: &SharedMemory, rdma: &Rdma) -> Features {
    if !options.extensions {
        return Features::NONE;
    }
    let mut features = Features::ALL;
    if options.policy.token.is_some() {
        features = features | Features::TOKEN;
    }
    if matches!(shared_memory, SharedMemory::Off { .. }) {
        features = features.without(Features::SHARED_MEMORY);
    }
    if matches!(rdma, Rdma::Off { .. }) {
        features = features.without(Features::RDMA);
    }
    features
}

/// A shard of an engine.
pub(super) type EngineShard = DrivenShard<Migrating<NearLinks, RdmaMedium<VerbsAdapter>>>;

/// Links of a shard: they begin on TCP, perhaps with TLS, and migrate to shared memory.
type NearLinks = Migrating<Tls<TcpTransport>, ShmMedium>;

/// Lets the links of a transport migrate to RDMA, as the options say.
fn use_rdma(
    transport: &mut Migrating<NearLinks, RdmaMedium<VerbsAdapter>>,
    near_peers: NearPeers,
    arena: &mut Arena,
    options: &EngineOptions,
) -> Rdma {
    let Some(rdma) = &options.rdma else {
        return Rdma::off("set by GRPCXX_RDMA or TF_RDMA_ENABLED");
    };
    if !options.extensions {
        return Rdma::off("GRPCXX_EXTENSIONS is off");
    }
    let adapter = match VerbsAdapter::open(rdma) {
        Ok(adapter) => adapter,
        Err(reason) => return Rdma::off(reason),
    };
    let links = RdmaLinks::new(adapter, rdma.clone());
    let device = links.device().to_owned();
    let mut medium = RdmaMedium::new(links, near_peers);
    let registered = medium.register_arena(arena);
    match registered.and_then(|bytes| transport.enable(medium).map(|()| bytes)) {
        Ok(registered_bytes) => Rdma::On {
            device,
            registered_bytes,
        },
        Err(error) => {
            tracing::warn!(%error, "connections cannot migrate to RDMA here");
            Rdma::off(error)
        }
    }
}

/// Lets the links of a transport migrate to shared memory, as the options say.
fn share_memory(
    transport: &mut NearLinks,
    options: &EngineOptions,
    arena: &ArenaOptions,
) -> SharedMemory {
    let Some(shm) = &options.shm else {
        return SharedMemory::off("set by GRPCXX_SHM");
    };
    if !options.extensions {
        return SharedMemory::off("GRPCXX_EXTENSIONS is off");
    }
    let mut shm = shm.clone();
    if !options.lends_arenas {
        shm.bounce_arena_bytes = 0;
    }
    let meetings = DescriptorParts::of_process().meetings / options.shards;
    shm.silent_max = shm.silent_max.min(meetings.max(MEETINGS_MIN));
    // What is copied to be lent would else lie in the arena of the receiver.
    shm.bounce_arena_bytes = shm.bounce_arena_bytes.min(arena.capacity_bytes);
    match ShmMedium::open(shm).and_then(|medium| transport.enable(medium)) {
        Ok(()) => SharedMemory::On {
            lends: options.lends_arenas,
        },
        Err(error) => {
            tracing::warn!(%error, "connections cannot migrate to shared memory here");
            SharedMemory::off(error)
        }
    }
}

/// The memory of a shard. Where it cannot be shared it is private, and tensors are copied on their
/// way.
fn reserve(options: &ArenaOptions) -> Result<Arena, String> {
    if options.shared {
        match Arena::new(options.clone()) {
            Ok(arena) => return Ok(arena),
            Err(error) => {
                tracing::warn!(%error, "the arena cannot be shared; other processes get copies");
            }
        }
    }
    let private = options.clone().with(|changed| changed.shared = false);
    Arena::new(private).map_err(|error| {
        format!(
            "reserve {} bytes of address space for the arena of a shard: {error}; set a smaller \
             GRPCXX_ARENA_BYTES, or raise the limit (`ulimit -v`)",
            options.capacity_bytes
        )
    })
}

fn unknown_driver(options: &TcpOptions) -> DriverChoice {
    DriverChoice {
        driver: grpcxx_tcp::Driver::Epoll,
        why: format!("{} was asked for", options.driver),
    }
}

/// Why connections that are TLS stay off RDMA.
const RDMA_IS_CLEAR: &str = "TLS is on, and RDMA carries bytes in the clear; a token allows it, and so does GRPCXX_TLS_RDMA=true on a fabric that is trusted";

/// Threads for what the engine itself has to do that takes its time. With two, the memory of many
/// tensors that is let go of holds no listing up.
const CHORE_THREADS: usize = 2;

/// Most shards of an engine: shard numbers travel in 16 bits, and no machine has more CPUs.
const SHARDS_MAX: usize = 1024;

/// Processes of this host that may dial a shard and say nothing yet, whatever files there are.
const MEETINGS_MIN: usize = 16;
