//! The connections of the gRPC port: how many there are, whose, and which are in use.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use grpcxx_rpc::{Account, Places};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::policy::{Identity, Proof};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::lock::lock;
use crate::metrics::{GaveWay, Metrics};

/// The open connections. One that carries no call gives way to a newcomer where there are too many.
#[derive(Debug)]
pub(crate) struct Connections {
    /// Each with what closes it.
    places: Mutex<Places<oneshot::Sender<()>, Instant>>,
    idle_max: Option<Duration>,
    metrics: Arc<Metrics>,
}

/// The place of an open connection, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    caller: Caller,
    /// Says, or ends without a word, when the connection is to be closed.
    pub(crate) closing: oneshot::Receiver<()>,
}

/// Who makes a call.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) account: Account,
    pub(crate) peer: SocketAddr,
    /// What the connection has proven; a call may prove more.
    pub(crate) identity: Identity,
    connection: Option<(Arc<Connections>, u64)>,
}

impl Connections {
    pub(crate) fn new(
        places: Places<oneshot::Sender<()>, Instant>,
        idle_max: Option<Duration>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            places: Mutex::new(places),
            idle_max,
            metrics,
        })
    }

    /// Gives a new connection its place, unless all are in use.
    pub(crate) fn open(self: &Arc<Self>, peer: SocketAddr) -> Option<ConnectionPlace> {
        let account = Account::of(peer.ip());
        let (close, closing) = oneshot::channel();
        let given = lock(&self.places).take(account, close, Instant::now());
        let Ok(given) = given else {
            self.metrics.connections_refused.inc();
            return None;
        };
        if let Some(idlest) = given.gave_way {
            self.close(idlest);
        }
        self.metrics.connections.inc();
        Some(ConnectionPlace {
            caller: Caller {
                account,
                peer,
                identity: Identity::at(peer),
                connection: Some((self.clone(), given.place)),
            },
            closing,
        })
    }

    /// Closes connections that have carried no call for long.
    pub(crate) fn close_idle(&self) {
        let Some(idle_max) = self.idle_max else {
            return;
        };
        loop {
            let latest = Instant::now().checked_sub(idle_max);
            let expired = latest.and_then(|at| lock(&self.places).take_idle_since(at));
            match expired {
                Some(idle) => self.close(idle),
                None => return,
            }
        }
    }

    fn close(&self, close: oneshot::Sender<()>) {
        self.metrics.gave_way(GaveWay::Connection);
        // It may just have closed by itself.
        let _ = close.send(());
    }
}

impl ConnectionPlace {
    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Notes what the connection has proven.
    pub(crate) fn identify(&mut self, identity: Identity) {
        self.caller.belong_to(&identity);
        self.caller.identity = identity;
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        if let Some((connections, place)) = &self.caller.connection {
            lock(&connections.places).release(*place);
            connections.metrics.connections.dec();
        }
    }
}

impl Caller {
    /// Counts what the caller holds for who it has proven to be.
    pub(crate) fn belong_to(&mut self, identity: &Identity) {
        if identity.proof != Proof::Nothing {
            let task = identity.task.as_ref().map(TaskId::in_certificates);
            self.account = self.account.proven(task.as_deref());
        }
    }

    /// Who makes the call with these extensions.
    pub(crate) fn of(extensions: &http::Extensions) -> Self {
        extensions
            .get::<Self>()
            .cloned()
            .unwrap_or_else(Self::unknown)
    }

    /// Somebody of whom no connection is known.
    pub(crate) fn unknown() -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        Self {
            account: Account::OWN,
            peer: nowhere,
            identity: Identity::at(nowhere),
            connection: None,
        }
    }

    /// Keeps the connection from giving way, until as many calls of [`Caller::end_use`].
    pub(crate) fn begin_use(&self) {
        if let Some((connections, place)) = &self.connection {
            lock(&connections.places).begin_use(*place);
        }
    }

    pub(crate) fn end_use(&self) {
        if let Some((connections, place)) = &self.connection {
            lock(&connections.places).end_use(*place, Instant::now());
        }
    }
}
