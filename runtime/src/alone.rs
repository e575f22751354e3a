//! One shard on a simulated network that nobody turns but its owner.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwap;
use grpcxx_memory::{Arena, ArenaOptions};
use grpcxx_rpc::{
    ChannelOptions, ConnectionLimits, Features, RendezvousLimits, StoreLimits, TensorStore,
};
use grpcxx_transport::sim::{SimNetwork, SimTransport};

use crate::client::{Client, Lookups, Mailboxes, SystemResolver};
use crate::cluster::TaskId;
use crate::command::{Command, MeshMessage};
use crate::compute::Compute;
use crate::counters::ShardCounters;
use crate::function::Service;
use crate::mesh::{self, Inbox, InboxSender};
use crate::policy::lenient;
use crate::registry::Functions;
use crate::shard::{CoreParts, DrainLimits, Patience, PeerShares, Shard, SharedParts};
use crate::task::{Device, Task};

/// A shard, and what reaches it.
pub(crate) struct Alone {
    pub(crate) shard: Shard<SimTransport>,
    pub(crate) client: Client,
    pub(crate) mailboxes: Arc<Mailboxes>,
}

/// What such a shard is started with.
pub(crate) struct Start {
    /// Number of its task in the job `sim`.
    pub(crate) index: u32,
    pub(crate) address: SocketAddr,
    pub(crate) service: Option<Arc<dyn Service>>,
    pub(crate) compute: Arc<dyn Compute>,
    /// Most links.
    pub(crate) links: usize,
    pub(crate) connection_limits: ConnectionLimits,
    pub(crate) rendezvous_limits: RendezvousLimits,
    pub(crate) arena_bytes: usize,
}

impl Alone {
    /// Starts a shard that listens at its address.
    pub(crate) fn start(network: &SimNetwork, start: Start) -> Self {
        let (bell, _sleeper) = mesh::doorbell();
        let (sender, inbox): (InboxSender<Command>, Inbox<Command>) =
            mesh::inbox(crate::limits::INBOX_COMMANDS, bell.clone());
        let mut meshes = mesh::mesh::<MeshMessage<_>>(1, std::slice::from_ref(&bell));
        let mailboxes = Arc::new(Mailboxes::new(vec![sender], vec![bell]));
        let store = Arc::new(ArcSwap::from_pointee(TensorStore::new(
            StoreLimits::default(),
        )));
        let id = TaskId::new("sim", start.index);
        let device = Device::cpu(&id, INCARNATION, 0);
        let shared = SharedParts {
            task: Arc::new(Task::new(id, &[device]).expect("a good device name")),
            mailboxes: Arc::clone(&mailboxes),
            lookups: Lookups::new(Arc::new(SystemResolver)),
            functions: Arc::new(ArcSwap::from_pointee(Functions::builtin(&store))),
            store,
            staged: Arc::default(),
            service: start.service,
            chores: Arc::clone(&start.compute),
            compute: start.compute,
            runs_short_calls: false,
            authority: Arc::new(lenient()),
            counters: [ShardCounters::default()].into(),
            loads: [AtomicUsize::new(0)].into(),
            ended: Arc::new(AtomicUsize::new(0)),
            accounts: Arc::default(),
            counted_peers: Arc::default(),
        };
        let parts = CoreParts {
            drain: DrainLimits::default(),
            index: 0,
            shared,
            connection_limits: start.connection_limits,
            announce: Features::ALL,
            channel_options: ChannelOptions::default(),
            rendezvous_limits: start.rendezvous_limits,
            links: start.links,
            patience: Patience::default(),
            shares: PeerShares::of(&start.rendezvous_limits, usize::MAX),
            arena: Arena::new(ArenaOptions::default().with(|options| {
                options.capacity_bytes = start.arena_bytes;
                options.huge_pages = false;
            }))
            .expect("address space"),
            mesh: meshes.remove(0),
            inbox,
        };
        let mut shard = Shard::new(network.transport(start.address.ip()), parts);
        shard.listen(start.address).expect("the port is free");
        Self {
            shard,
            client: Client::new(Arc::clone(&mailboxes), Some(start.address)),
            mailboxes,
        }
    }
}

/// The incarnation of its task.
pub(crate) const INCARNATION: u64 = 1;
