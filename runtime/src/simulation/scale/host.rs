//! The engines of the simulation, and what they are asked and answered through.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grpcxx_rpc::{ConnectionLimits, RendezvousLimits, Request};
use grpcxx_transport::sim::SimNetwork;

use super::super::functions::Jobs;
use super::WORKERS_MAX;
pub(in crate::simulation) use crate::alone::Alone as Host;
use crate::alone::Start;
use crate::call::{CallResult, CompletionHandler};
use crate::function::{Later, Responder, Served, Service};
use crate::shard::ShardContext;

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

/// Starts a shard with the limits that engines have, and room for all workers.
pub(in crate::simulation) fn start(
    network: &SimNetwork,
    index: u32,
    address: SocketAddr,
    service: Option<Arc<Slow>>,
) -> Host {
    let start = Start {
        index,
        address,
        service: service.map(|service| service as Arc<dyn Service>),
        compute: Arc::new(Jobs::default()),
        links: WORKERS_MAX + 1,
        connection_limits: ConnectionLimits::default(),
        rendezvous_limits: RendezvousLimits::default(),
        arena_bytes: 256 << 20,
    };
    Host::start(network, start)
}

pub(in crate::simulation) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
