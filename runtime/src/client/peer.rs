use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Features, Status, Text};

/// A task that can be called, by the address of its star port. The connection is made at the first call, and
/// again after it was lost.
#[derive(Clone)]
pub struct Peer {
    inner: Arc<PeerInner>,
}

struct PeerInner {
    address: Text,
    socket_address: SocketAddr,
    shard: usize,
    number: u64,
    is_self: bool,
}

/// What an engine knows of a peer at a moment.
#[derive(Clone, Debug)]
pub struct PeerState {
    /// Whether there is a connection.
    pub is_connected: bool,
    /// What the peer has announced on this connection; `None` as long as its answer is missing.
    pub features: Option<Features>,
    /// The peer's `GetStatusResponse`, serialized, from the announcement.
    pub status: Option<Buffer>,
    /// What carries the connection now: `tcp` or `shm`.
    pub medium: &'static str,
    /// Why the last connection that should have gone on in shared memory stayed on TCP.
    pub stays: Option<String>,
}

impl Peer {
    /// The peer with this number, at an address as it was given and as it resolves.
    pub(super) fn new(
        (address, socket_address): (&str, SocketAddr),
        shard: usize,
        number: u64,
        is_self: bool,
    ) -> Self {
        Self {
            inner: Arc::new(PeerInner {
                address: Text::from(address),
                socket_address,
                shard,
                number,
                is_self,
            }),
        }
    }

    /// This engine's own task, served by one of its shards without a connection.
    pub(crate) fn own(shard: usize) -> Self {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        Self::new(("self", nowhere), shard, u64::MAX, true)
    }

    /// The address as it was given, `host:port`.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// The address that the name resolved to.
    pub fn socket_address(&self) -> SocketAddr {
        self.inner.socket_address
    }

    /// The shard that owns the connection to this peer.
    pub fn shard(&self) -> usize {
        self.inner.shard
    }

    /// Whether this is the engine's own task, which is served without a connection.
    pub fn is_self(&self) -> bool {
        self.inner.is_self
    }

    pub(crate) fn text(&self) -> Text {
        self.inner.address.clone()
    }

    pub(crate) fn number(&self) -> u64 {
        self.inner.number
    }
}

impl From<&Peer> for Peer {
    fn from(peer: &Peer) -> Self {
        peer.clone()
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({})", self.inner.address)
    }
}

/// The address that a `host:port` stands for now.
pub(super) fn resolve(address: &str) -> Result<SocketAddr, Status> {
    let invalid = |why: &str| {
        Status::new(
            Code::InvalidArgument,
            format!("cannot use \"{address}\" as the address of a peer: {why}; write host:port"),
        )
    };
    let mut addresses = address
        .to_socket_addrs()
        .map_err(|error| invalid(&error.to_string()))?;
    addresses
        .next()
        .ok_or_else(|| invalid("the name has no address"))
}
