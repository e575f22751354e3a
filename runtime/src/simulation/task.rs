use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll, Waker};
use std::{future::Future, pin::Pin};

use arc_swap::ArcSwap;
use grpcxx_memory::Arena;
use grpcxx_rdma::sim::{SimAdapter, SimFabric};
use grpcxx_rdma::{NearPeers, RdmaLinks, RdmaMedium};
use grpcxx_rpc::{Features, RendezvousKey, StoreLimits, TensorStore, Text};
use grpcxx_transport::conformance::Ledger;
use grpcxx_transport::sim::{SimAccepted, SimNetwork, SimTransport};
use grpcxx_transport::{Faults, Migrating, Time};

use super::calls::State;

use super::functions::{self, ECHO, FAIL, Jobs, LateService};
use super::model::Watcher;
use super::profile::Profile;
use super::streams::{self, OpenStream};
use super::wire_checker::WireChecker;
use crate::call::Call;
use crate::client::{Client, Lookups, Mailboxes, SystemResolver};
use crate::cluster::TaskId;
use crate::command::{Command, MeshMessage};
use crate::counters::ShardCounters;
use crate::mesh::{self, Doorbell, Inbox, InboxSender};
use crate::policy::lenient;
use crate::registry::Functions;
use crate::shard::{Accounts, CoreParts, Shard, SharedParts};
use crate::staging::StagedTotal;
use crate::task::{Device, Task};

/// Links that migrate to a simulated device.
pub(super) type SimLinks = Migrating<SimTransport, RdmaMedium<SimAdapter>>;

/// Links with all that watches them.
type Links = WireChecker<Ledger<Faults<SimLinks>>>;

pub(super) type SimShard = Shard<Links>;

/// One run of a task, from its start to its stop or crash.
pub(super) struct SimTask {
    pub(super) index: usize,
    pub(super) device: String,
    pub(super) incarnation: u64,
    pub(super) shards: Vec<SimShard>,
    pub(super) client: Client,
    pub(super) mailboxes: Arc<Mailboxes>,
    pub(super) jobs: Arc<Jobs>,
    pub(super) late: Arc<LateService>,
    pub(super) store: Arc<ArcSwap<TensorStore>>,
    pub(super) staged: Arc<StagedTotal>,
    /// Futures of calls that nobody has given up.
    pub(super) calls: Vec<(usize, Call)>,
    /// Clients' ends of streams that nobody has given up.
    pub(super) streams: Vec<(usize, OpenStream)>,
    functions: Arc<ArcSwap<Functions>>,
    accounts: Arc<Accounts>,
    /// When the task has to be gone, if it was told to stop.
    pub(super) stop_by: Option<Time>,
    pub(super) watcher: Watcher,
}

/// What a task is started with.
pub(super) struct Start<'a> {
    pub(super) index: usize,
    pub(super) address: SocketAddr,
    pub(super) incarnation: u64,
    pub(super) features: Features,
    pub(super) shards: usize,
    pub(super) seed: u64,
    pub(super) profile: &'a Profile,
    pub(super) network: &'a SimNetwork,
    /// What joins the devices, if the task has one.
    pub(super) fabric: Option<&'a SimFabric>,
    pub(super) watcher: &'a Watcher,
}

impl SimTask {
    pub(super) fn start(start: &Start<'_>) -> Self {
        let profile = start.profile;
        let (bells, _sleepers): (Vec<Doorbell>, Vec<_>) =
            (0..start.shards).map(|_| mesh::doorbell()).unzip();
        let (senders, inboxes): (Vec<InboxSender<Command>>, Vec<Inbox<Command>>) = bells
            .iter()
            .map(|bell| mesh::inbox(profile.inbox_commands, bell.clone()))
            .unzip();
        let meshes = mesh::mesh::<MeshMessage<SimAccepted>>(profile.mesh_messages, &bells);
        let mailboxes = Arc::new(Mailboxes::new(senders, bells));
        let store = Arc::new(ArcSwap::from_pointee(TensorStore::new(
            StoreLimits::default(),
        )));
        let mut known = Functions::builtin(&store);
        let watcher = start.watcher.clone();
        known.insert(Text::from(ECHO), Arc::new(functions::echo(watcher.clone())));
        known.insert(Text::from(FAIL), Arc::new(functions::fail(watcher.clone())));
        if profile.has_streams {
            streams::register(&mut known, &watcher);
        }
        let id = TaskId::new("sim", start.index as u32);
        let device = id.device("CPU", 0);
        let jobs = Arc::new(Jobs::default());
        let late = Arc::new(LateService::new(watcher.clone()));
        let shared = SharedParts {
            task: Arc::new(
                Task::new(id.clone(), &[Device::cpu(&id, start.incarnation, 0)])
                    .expect("a good device name"),
            ),
            mailboxes: Arc::clone(&mailboxes),
            lookups: Lookups::new(Arc::new(SystemResolver)),
            functions: Arc::new(ArcSwap::from_pointee(known)),
            store: Arc::clone(&store),
            staged: Arc::default(),
            service: Some(Arc::clone(&late) as Arc<dyn crate::Service>),
            compute: Arc::clone(&jobs) as Arc<dyn crate::compute::Compute>,
            chores: Arc::clone(&jobs) as Arc<dyn crate::compute::Compute>,
            runs_short_calls: false,
            authority: Arc::new(lenient()),
            counters: (0..start.shards)
                .map(|_| ShardCounters::default())
                .collect(),
            loads: (0..start.shards).map(|_| AtomicUsize::new(0)).collect(),
            ended: Arc::new(AtomicUsize::new(0)),
            accounts: Arc::default(),
            counted_peers: Arc::default(),
        };
        let ends = inboxes.into_iter().zip(meshes).enumerate();
        let mut shards: Vec<SimShard> = ends
            .map(|(shard, (inbox, mesh))| {
                let mut arena = Arena::new(profile.arena()).expect("address space");
                arena.keep_for_small(profile.arena_bytes / 64);
                let transport = start.transport(shard, &mut arena);
                let parts = CoreParts {
                    index: shard,
                    shared: shared.clone(),
                    connection_limits: profile.connection_limits,
                    announce: start.features,
                    channel_options: profile.channel,
                    rendezvous_limits: profile.rendezvous_limits(),
                    drain: profile.drain,
                    links: profile.network.limits.links,
                    patience: profile.patience,
                    shares: profile.shares(),
                    arena,
                    mesh,
                    inbox,
                };
                Shard::new(transport, parts)
            })
            .collect();
        shards[0].listen(start.address).expect("the port is free");
        Self {
            index: start.index,
            device,
            incarnation: start.incarnation,
            shards,
            client: Client::new(Arc::clone(&mailboxes), Some(start.address)),
            mailboxes,
            jobs,
            late,
            store,
            staged: shared.staged,
            calls: Vec::new(),
            streams: Vec::new(),
            functions: shared.functions,
            accounts: shared.accounts,
            stop_by: None,
            watcher,
        }
    }

    /// Key of a tensor that this run of the task makes.
    pub(super) fn key(&self, id: usize) -> Text {
        RendezvousKey::new(
            &self.device,
            self.incarnation,
            "/job:sim/replica:0/task:0/device:CPU:0",
            &format!("tensor_{id}"),
        )
        .expect("device and edge are fine")
        .to_text()
    }

    /// Hands a command to a shard, as the engine does.
    pub(super) fn deliver(&self, shard: usize, command: Command) -> bool {
        self.mailboxes.try_deliver(shard, command).is_ok()
    }

    /// Tells the model of the calls that have ended.
    pub(super) fn poll_calls(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let watcher = &self.watcher;
        self.calls
            .retain_mut(|(id, call)| match Pin::new(call).poll(&mut context) {
                Poll::Ready(result) => {
                    watcher.model().finish(*id, &result);
                    false
                }
                Poll::Pending => true,
            });
    }

    /// Gives up a call by dropping its future, unless its result is there.
    pub(super) fn drop_call(&mut self, id: usize) {
        self.poll_calls();
        let Some(index) = self.calls.iter().position(|(call, _)| *call == id) else {
            return;
        };
        let (id, call) = self.calls.swap_remove(index);
        let mut model = self.watcher.model();
        model.note(format_args!("call {id} dropped"));
        model.calls.close(id, State::Dropped);
        drop(model);
        drop(call);
    }

    /// How many streams this task still serves, by what it has counted of its methods, and by what
    /// its peers hold of their shares.
    pub(super) fn served_streams(&self) -> (u64, usize) {
        let reports = self.functions.load().method_reports();
        let in_flight = reports.iter().map(|report| report.in_flight).sum();
        (in_flight, self.accounts.open_streams())
    }

    /// Whether a stopping task is gone.
    pub(super) fn is_finished(&self) -> bool {
        self.shards.iter().all(SimShard::is_finished)
    }

    /// Lets go of everything outside of the shards, as the end of a process does.
    pub(super) fn forget(&mut self) {
        self.calls.clear();
        self.streams.clear();
        self.late.clear();
        self.jobs.clear();
    }
}

impl Start<'_> {
    fn transport(&self, shard: usize, arena: &mut Arena) -> Links {
        let mut transport = Migrating::new(self.network.transport(self.address.ip()));
        if let (Some(fabric), Some(rdma)) = (self.fabric, &self.profile.rdma) {
            let links = RdmaLinks::new(fabric.adapter(), rdma.options.clone());
            let mut medium = RdmaMedium::new(links, NearPeers::LeaveToBase);
            medium.register_arena(arena).expect("the arena is empty");
            transport.enable(medium).expect("there is nothing to watch");
        }
        let seed = self.seed.wrapping_add(shard as u64);
        let faults = Faults::new(transport, self.profile.faults(seed));
        let label = format!("task {} shard {shard}", self.index);
        WireChecker::new(Ledger::new(faults, label), self.watcher.clone(), self.index)
    }
}

/// Where a task listens in one of its runs.
pub(super) fn address_of(index: usize, epoch: u32) -> SocketAddr {
    let port = FIRST_PORT + (epoch / 2 % 2) as u16;
    SocketAddr::new(host_of(index), port)
}

pub(super) fn host_of(index: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, index as u8 + 1))
}

/// The task with this address.
pub(super) fn index_of(address: SocketAddr) -> usize {
    match address.ip() {
        IpAddr::V4(ip) => usize::from(ip.octets()[3]) - 1,
        IpAddr::V6(_) => unreachable!("tasks have IPv4 addresses"),
    }
}

const FIRST_PORT: u16 = 7000;
