use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Features, OtherTask, Status, Text};
use grpcxx_transport::{MediumKind, PeerName};

use crate::caller::Caller;
use crate::cluster::TaskId;

/// A task that can be called, by the address of its star port. The connection is made at the first
/// call, and again after it was lost.
#[derive(Clone)]
pub struct Peer {
    inner: Arc<PeerInner>,
}

struct PeerInner {
    address: Text,
    host: Host,
    shard: usize,
    number: u64,
    /// Whose calls they are, if this process serves them itself.
    served_for: Option<Caller>,
    /// The task that the cluster has there, if that is known.
    task: ArcSwapOption<TaskId>,
}

/// Where a peer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// At this address for ever.
    Address(SocketAddr),
    /// Where this name points to when the peer is dialled.
    Name {
        /// The name of the host.
        host: String,
        /// The port.
        port: u16,
    },
}

/// What carries the bytes of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkMedium {
    /// TCP, on which each connection begins.
    #[default]
    Tcp,
    /// Memory that two processes of a host share.
    SharedMemory,
    /// A device for RDMA.
    Rdma,
}

/// What an engine knows of a peer at a moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerState {
    /// Whether there is a connection.
    pub is_connected: bool,
    /// What the peer has announced on this connection; `None` as long as its answer is missing.
    pub features: Option<Features>,
    /// The peer's `GetStatusResponse`, serialized, from the announcement.
    pub status: Option<Buffer>,
    /// What carries the connection now, or begins to carry the next one.
    pub medium: LinkMedium,
    /// Why the last connection that should have left TCP stayed there.
    pub stays: Option<String>,
}

impl Peer {
    /// The peer with this number, at an address as it was given and as it reads.
    pub(super) fn new(
        (address, host): (&str, Host),
        shard: usize,
        number: u64,
        served_for: Option<Caller>,
        task: Option<Arc<TaskId>>,
    ) -> Self {
        Self {
            inner: Arc::new(PeerInner {
                address: Text::from(address),
                host,
                shard,
                number,
                served_for,
                task: ArcSwapOption::new(task),
            }),
        }
    }

    /// This engine's own task, served by one of its shards without a connection.
    pub(crate) fn own(shard: usize) -> Self {
        Self::own_for(Caller::OWN, shard)
    }

    /// The same, for somebody who came through another door than the star port.
    pub(crate) fn own_for(caller: Caller, shard: usize) -> Self {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        Self::new(
            ("self", Host::Address(nowhere)),
            shard,
            u64::MAX,
            Some(caller),
            None,
        )
    }

    /// The address as it was given, `host:port`.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// The address, if it has no name that may point elsewhere at the next dial.
    pub fn socket_address(&self) -> Option<SocketAddr> {
        match self.inner.host {
            Host::Address(address) => Some(address),
            Host::Name { .. } => None,
        }
    }

    pub(crate) fn host(&self) -> &Host {
        &self.inner.host
    }

    /// The shard that owns the connection to this peer.
    pub fn shard(&self) -> usize {
        self.inner.shard
    }

    /// Whether this is the engine's own task, which is served without a connection.
    pub fn is_self(&self) -> bool {
        self.inner.served_for.is_some()
    }

    /// Who makes the calls that this process serves itself.
    pub(crate) fn served_for(&self) -> Caller {
        self.inner.served_for.unwrap_or(Caller::OWN)
    }

    /// Checks that the task that a certificate names may answer there.
    ///
    /// # Errors
    /// The cluster has another one there.
    pub(crate) fn check_name(&self, name: &PeerName) -> Result<(), Box<OtherTask>> {
        match &*self.inner.task.load() {
            Some(task) => task.check_name(name),
            None => Ok(()),
        }
    }

    /// Says which task the cluster has there.
    pub(super) fn expect(&self, task: &Arc<TaskId>) {
        self.inner.task.store(Some(Arc::clone(task)));
    }

    pub(crate) fn text(&self) -> Text {
        self.inner.address.clone()
    }

    pub(crate) fn number(&self) -> u64 {
        self.inner.number
    }
}

impl LinkMedium {
    /// Its name in logs and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::SharedMemory => MediumKind::SharedMemory.name(),
            Self::Rdma => MediumKind::Rdma.name(),
        }
    }
}

impl From<MediumKind> for LinkMedium {
    fn from(kind: MediumKind) -> Self {
        match kind {
            MediumKind::SharedMemory => Self::SharedMemory,
            MediumKind::Rdma => Self::Rdma,
        }
    }
}

impl fmt::Display for LinkMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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

impl Host {
    /// Reads `host:port`; an IPv6 address stands in brackets.
    pub(super) fn parse(address: &str) -> Result<Self, Status> {
        if let Ok(address) = address.parse() {
            return Ok(Self::Address(address));
        }
        let invalid = |why: &str| {
            Status::new(
                Code::InvalidArgument,
                format!(
                    "cannot use {:?} as the address of a peer: {why}; write host:port",
                    shortened(address)
                ),
            )
        };
        let (host, port) = address
            .rsplit_once(':')
            .ok_or_else(|| invalid("it has no port"))?;
        let port = port
            .parse()
            .map_err(|_| invalid("the port is not a number from 0 to 65535"))?;
        if host.is_empty() {
            return Err(invalid("it has no host"));
        }
        if host.len() > HOST_BYTES_MAX {
            return Err(invalid("the name of a host has at most 253 bytes"));
        }
        if host.contains([':', '/', '[', ']', '\0']) || host.chars().any(char::is_whitespace) {
            return Err(invalid("this is no name of a host"));
        }
        Ok(Self::Name {
            host: host.to_owned(),
            port,
        })
    }
}

/// As much of an address as an error quotes.
fn shortened(address: &str) -> &str {
    match address.char_indices().nth(QUOTED_CHARACTERS_MAX) {
        Some((end, _)) => &address[..end],
        None => address,
    }
}

/// Longest name that the domain name system knows.
const HOST_BYTES_MAX: usize = 253;

/// Most characters of a wrong address in an error.
const QUOTED_CHARACTERS_MAX: usize = 80;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_without_a_look_at_the_network() {
        let address = |text: &str| Host::Address(text.parse().unwrap());
        assert_eq!(Host::parse("10.0.0.1:70"), Ok(address("10.0.0.1:70")));
        assert_eq!(Host::parse("[::1]:70"), Ok(address("[::1]:70")));
        let name = Host::Name {
            host: "ps-0.training.svc".to_owned(),
            port: 7777,
        };
        assert_eq!(Host::parse("ps-0.training.svc:7777"), Ok(name));
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_reason() {
        for (address, why) in [
            ("", "it has no port"),
            ("host", "it has no port"),
            (":70", "it has no host"),
            ("host:", "the port is not a number"),
            ("host:65536", "the port is not a number"),
            ("::1:70", "this is no name of a host"),
            ("http://host:70", "this is no name of a host"),
            ("a b:70", "this is no name of a host"),
        ] {
            let status = Host::parse(address).unwrap_err();
            assert_eq!(status.code, Code::InvalidArgument);
            assert!(status.message.contains(why), "{address}: {status}");
        }
        let long = format!("{}:70", "é".repeat(100_000));
        let status = Host::parse(&long).unwrap_err();
        assert!(status.message.contains("at most 253 bytes"), "{status}");
        assert!(status.message.len() < 400);
    }
}
