//! The engines of the simulation, and what they are asked and answered through.

use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use grpcxx_memory::{Arena, ArenaOptions};
use grpcxx_rpc::{ConnectionLimits, Features, Request, StoreLimits, TensorStore};
use grpcxx_transport::sim::{SimNetwork, SimTransport};

use super::super::functions::Jobs;
use super::WORKERS_MAX;
use crate::call::{CallResult, CompletionHandler};
use crate::client::{Client, Lookups, Mailboxes, SystemResolver};
use crate::cluster::TaskId;
use crate::command::{Command, Parcel};
use crate::counters::ShardCounters;
use crate::function::{Later, Responder, Served, Service};
use crate::mesh::{self, Inbox, InboxSender};
use crate::policy::lenient;
use crate::registry::Functions;
use crate::shard::{
    CoreParts, DrainLimits, Patience, PeerShares, Shard, ShardContext, SharedParts,
};
use crate::task::{Device, Task};

pub(in crate::simulation) struct Host {
    pub(in crate::simulation) shard: Shard<SimTransport>,
    pub(in crate::simulation) client: Client,
    pub(in crate::simulation) mailboxes: Arc<Mailboxes>,
}

/// Keeps requests until the simulated server has done their work.
#[derive(Default)]
pub(in crate::simulation) struct Slow(pub(super) Mutex<Vec<(bool, Responder)>>);

/// Notes which worker's call ended.
#[derive(Default)]
pub(super) struct Ended(pub(super) Mutex<Vec<usize>>);

impl Service for Slow {
    fn serve(&self, request: Request, later: Later<'_>) -> Served {
        let is_pull = match &request {
            Request::RecvTensor { .. } => true,
            Request::StarRunGraph(_) => false,
            _ => return Served::Declined(request),
        };
        let (responder, served) = later.promise();
        locked(&self.0).push((is_pull, responder));
        served
    }
}

impl CompletionHandler for Ended {
    fn on_complete(self: Arc<Self>, token: u64, result: CallResult, _shard: &mut ShardContext<'_>) {
        // Calls fail only when the simulation ends with them under way.
        if result.is_ok() {
            locked(&self.0).push(token as usize);
        }
    }
}

impl Host {
    pub(in crate::simulation) fn start(
        network: &SimNetwork,
        index: u32,
        address: SocketAddr,
        service: Option<Arc<Slow>>,
    ) -> Self {
        let (bell, _sleeper) = mesh::doorbell();
        let (sender, inbox): (InboxSender<Command>, Inbox<Command>) =
            mesh::inbox(crate::limits::INBOX_COMMANDS, bell.clone());
        let mut meshes = mesh::mesh::<Parcel<_>>(1, std::slice::from_ref(&bell));
        let mailboxes = Arc::new(Mailboxes::new(vec![sender], vec![bell]));
        let store = Arc::new(ArcSwap::from_pointee(TensorStore::new(
            StoreLimits::default(),
        )));
        let id = TaskId::new("sim", index);
        let device = Device::cpu(&id, 1, 0);
        let shared = SharedParts {
            task: Arc::new(Task::new(id, &[device]).expect("a good device name")),
            mailboxes: Arc::clone(&mailboxes),
            lookups: Lookups::new(Arc::new(SystemResolver)),
            functions: Arc::new(ArcSwap::from_pointee(Functions::builtin(&store))),
            store,
            service: service.map(|service| service as Arc<dyn Service>),
            compute: Arc::new(Jobs::default()),
            authority: Arc::new(lenient()),
            counters: [ShardCounters::default()].into(),
            loads: [AtomicUsize::new(0)].into(),
            ended: Arc::new(AtomicUsize::new(0)),
            accounts: Arc::default(),
        };
        let parts = CoreParts {
            drain: DrainLimits::default(),
            index: 0,
            shared,
            connection_limits: ConnectionLimits::default(),
            announce: Features::ALL,
            channel_options: grpcxx_rpc::ChannelOptions::default(),
            rendezvous_limits: grpcxx_rpc::RendezvousLimits::default(),
            links: WORKERS_MAX + 1,
            patience: Patience::default(),
            shares: PeerShares::of(&grpcxx_rpc::RendezvousLimits::default(), usize::MAX),
            arena: Arena::new(ArenaOptions {
                capacity_bytes: 256 << 20,
                huge_pages: false,
                ..ArenaOptions::default()
            })
            .expect("address space"),
            mesh: meshes.remove(0),
            inbox,
        };
        let mut shard = Shard::new(network.transport(address.ip()), parts);
        shard.listen(address).expect("the port is free");
        Self {
            shard,
            client: Client::new(Arc::clone(&mailboxes), Some(address)),
            mailboxes,
        }
    }
}

pub(in crate::simulation) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
