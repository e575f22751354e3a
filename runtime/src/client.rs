use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_queue::SegQueue;
use futures_channel::oneshot;
use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Features, Request, Status, Text};

use crate::call::{Call, CallSink};
use crate::cancellation::Cancellation;
use crate::command::{Cancellable, Command, NewCall};
use crate::completion::Completion;
use crate::limits;
use crate::mesh::{Doorbell, InboxSender};

/// The inboxes of all shards of an engine.
pub(crate) struct Mailboxes {
    inboxes: Vec<InboxSender<Command>>,
    doorbells: Vec<Doorbell>,
    overflow: Vec<SegQueue<Command>>,
}

/// Makes calls to peers, from any thread.
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientShared>,
}

struct ClientShared {
    mailboxes: Arc<Mailboxes>,
    next_call: AtomicU64,
    next_shard: AtomicUsize,
    own_address: Option<SocketAddr>,
    peers: Mutex<Peers>,
}

/// The peers by address, and by connection where there are several to one address.
#[derive(Default)]
struct Peers {
    by_address: HashMap<String, BTreeMap<usize, Peer>>,
    count: usize,
}

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

/// A call that was not accepted, with all that belongs to it.
pub struct RefusedCall {
    /// The request.
    pub request: Request,
    /// Where its result would have gone.
    pub sink: Arc<dyn CallSink>,
    /// Whether the engine has stopped; otherwise the shard's inbox is full.
    pub is_stopped: bool,
}

/// Withdraws a call.
#[derive(Clone)]
pub(crate) struct Cancel {
    mailboxes: Arc<Mailboxes>,
    shard: usize,
    number: u64,
}

impl Client {
    pub(crate) fn new(mailboxes: Arc<Mailboxes>, own_address: Option<SocketAddr>) -> Self {
        Self {
            shared: Arc::new(ClientShared {
                mailboxes,
                next_call: AtomicU64::new(1),
                next_shard: AtomicUsize::new(0),
                own_address,
                peers: Mutex::default(),
            }),
        }
    }

    /// The peer at `host:port`. The name is resolved once, in the calling thread; the same address always
    /// gives the same peer. Peers are spread over the shards in turn.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the address is no `host:port` or does not resolve, `RESOURCE_EXHAUSTED` if there
    /// are too many peers.
    pub fn peer(&self, address: &str) -> Result<Peer, Status> {
        self.peer_over(address, 0)
    }

    /// The peer at `host:port` over the connection with this number: each number is a connection of its own,
    /// and [`Client::peer`] means number 0. Several connections to one peer spread its calls over shards.
    ///
    /// # Errors
    /// As [`Client::peer`]; each connection counts as a peer.
    pub fn peer_over(&self, address: &str, connection: usize) -> Result<Peer, Status> {
        let known = self.shared.peers().find(address, connection);
        let socket_address = match known {
            Known::Peer(peer) => return Ok(peer),
            Known::Address(socket_address) => socket_address,
            Known::Nothing => resolve(address)?,
        };
        let mut peers = self.shared.peers();
        // Another thread may have been faster meanwhile.
        if let Known::Peer(peer) = peers.find(address, connection) {
            return Ok(peer);
        }
        if peers.count >= limits::PEERS {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!(
                    "{address} would be peer {}, the limit is {}",
                    peers.count + 1,
                    limits::PEERS
                ),
            ));
        }
        let turn = self.shared.next_shard.fetch_add(1, Ordering::Relaxed);
        let peer = Peer {
            inner: Arc::new(PeerInner {
                address: Text::from(address),
                socket_address,
                shard: turn % self.shared.mailboxes.len(),
                number: peers.count as u64,
                is_self: self.shared.own_address == Some(socket_address),
            }),
        };
        peers.count += 1;
        let connections = peers.by_address.entry(address.to_owned()).or_default();
        connections.insert(connection, peer.clone());
        Ok(peer)
    }

    /// Calls a peer. `timeout` bounds the whole call; without one it waits as long as the peer lives.
    pub fn call(&self, peer: &Peer, request: Request, timeout: Option<Duration>) -> Call {
        let number = self.shared.next_call.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        let command = Command::Call(NewCall {
            peer: peer.clone(),
            request,
            timeout,
            completion: Completion::future(sender),
            cancellable: Some(Cancellable { number, flag: None }),
        });
        match self.shared.mailboxes.try_deliver(peer.shard(), command) {
            Ok(()) => Call::new(
                receiver,
                Cancel {
                    mailboxes: Arc::clone(&self.shared.mailboxes),
                    shard: peer.shard(),
                    number,
                },
            ),
            Err(_) => Call::failed(inbox_full()),
        }
    }

    /// Calls a peer; the result goes to `sink` on the peer's shard.
    ///
    /// # Errors
    /// The request comes back if the shard's inbox is full; `sink` hears nothing then.
    pub fn call_with(
        &self,
        peer: &Peer,
        request: Request,
        timeout: Option<Duration>,
        sink: Arc<dyn CallSink>,
        token: u64,
    ) -> Result<(), Request> {
        let command = Command::Call(NewCall {
            peer: peer.clone(),
            request,
            timeout,
            completion: Completion::sink(sink, token),
            cancellable: None,
        });
        match self.shared.mailboxes.try_deliver(peer.shard(), command) {
            Ok(()) => Ok(()),
            Err(Command::Call(call)) => {
                call.completion.withdraw();
                Err(call.request)
            }
            Err(_) => unreachable!("the inbox returns the command it was given"),
        }
    }

    /// The same with a result that goes to `sink` for certain, and a call that `cancellation` withdraws. A
    /// cancellation is for one call; one that was used before withdraws only its first.
    ///
    /// # Errors
    /// All comes back if the shard's inbox is full or the engine has stopped.
    pub fn call_cancellable(
        &self,
        peer: &Peer,
        request: Request,
        timeout: Option<Duration>,
        sink: Arc<dyn CallSink>,
        token: u64,
        cancellation: &Cancellation,
    ) -> Result<(), RefusedCall> {
        let number = self.shared.next_call.fetch_add(1, Ordering::Relaxed);
        let flag = cancellation.attach(Cancel {
            mailboxes: Arc::clone(&self.shared.mailboxes),
            shard: peer.shard(),
            number,
        });
        let command = Command::Call(NewCall {
            peer: peer.clone(),
            request,
            timeout,
            completion: Completion::sink(Arc::clone(&sink), token),
            cancellable: Some(Cancellable {
                number,
                flag: Some(flag),
            }),
        });
        match self.shared.mailboxes.try_deliver(peer.shard(), command) {
            Ok(()) => Ok(()),
            Err(Command::Call(call)) => {
                call.completion.withdraw();
                Err(RefusedCall {
                    request: call.request,
                    sink,
                    is_stopped: self.is_stopped(),
                })
            }
            Err(_) => unreachable!("the inbox returns the command it was given"),
        }
    }

    /// Tells what is known of a peer, on its shard's thread, without making a connection. `tell` is dropped unheard
    /// if the engine has stopped.
    pub fn inspect(&self, peer: &Peer, tell: impl FnOnce(PeerState) + Send + 'static) {
        let command = Command::Inspect {
            peer: peer.clone(),
            tell: Box::new(tell),
        };
        self.shared.mailboxes.deliver(peer.shard(), command);
    }

    /// Closes the connection to a peer, if there is one. Calls on it fail with `UNAVAILABLE`; later calls
    /// connect again.
    pub fn disconnect(&self, peer: &Peer) {
        let command = Command::Disconnect { peer: peer.clone() };
        self.shared.mailboxes.deliver(peer.shard(), command);
    }

    /// Whether the engine has stopped.
    pub fn is_stopped(&self) -> bool {
        self.shared.mailboxes.is_closed()
    }
}

impl ClientShared {
    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of a connection to an address.
enum Known {
    Peer(Peer),
    /// There are other connections to it.
    Address(SocketAddr),
    Nothing,
}

impl Peers {
    fn find(&self, address: &str, connection: usize) -> Known {
        let Some(connections) = self.by_address.get(address) else {
            return Known::Nothing;
        };
        match connections.get(&connection) {
            Some(peer) => Known::Peer(peer.clone()),
            None => match connections.values().next() {
                Some(peer) => Known::Address(peer.socket_address()),
                None => Known::Nothing,
            },
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("shards", &self.shared.mailboxes.len())
            .finish()
    }
}

impl Peer {
    /// This engine's own task, served by one of its shards without a connection.
    pub(crate) fn own(shard: usize) -> Self {
        Self {
            inner: Arc::new(PeerInner {
                address: Text::from("self"),
                socket_address: SocketAddr::from(([0, 0, 0, 0], 0)),
                shard,
                number: u64::MAX,
                is_self: true,
            }),
        }
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

impl fmt::Debug for Mailboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailboxes")
            .field("shards", &self.inboxes.len())
            .finish_non_exhaustive()
    }
}

impl Mailboxes {
    pub(crate) fn new(inboxes: Vec<InboxSender<Command>>, doorbells: Vec<Doorbell>) -> Self {
        let overflow = inboxes.iter().map(|_| SegQueue::new()).collect();
        Self {
            inboxes,
            doorbells,
            overflow,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.inboxes.len()
    }

    /// Hands a command over, or back if the inbox is full.
    #[expect(
        clippy::result_large_err,
        reason = "the command comes back whole, without an allocation"
    )]
    pub(crate) fn try_deliver(&self, shard: usize, command: Command) -> Result<(), Command> {
        self.inboxes[shard]
            .push(command)
            .map_err(|refused| refused.value)
    }

    /// Whether the shards have ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.inboxes.iter().any(InboxSender::is_closed)
    }

    /// Hands over an answer, which must not be lost. Answers that do not fit into the inbox wait beside it;
    /// there are never more of them than requests under way.
    pub(crate) fn deliver(&self, shard: usize, command: Command) {
        if let Err(command) = self.try_deliver(shard, command) {
            if self.inboxes[shard].is_closed() {
                return;
            }
            self.overflow[shard].push(command);
            self.doorbells[shard].ring();
        }
    }

    /// Whether an answer that did not fit into the shard's inbox waits.
    pub(crate) fn has_overflow(&self, shard: usize) -> bool {
        !self.overflow[shard].is_empty()
    }

    /// The next answer that did not fit into the shard's inbox.
    pub(crate) fn overflow(&self, shard: usize) -> Option<Command> {
        // A look costs less than an attempt, which is a full fence, and there is nearly never one.
        if self.overflow[shard].is_empty() {
            return None;
        }
        self.overflow[shard].pop()
    }
}

impl Cancel {
    pub(crate) fn send(self) {
        // If the inbox is full the call runs to its end and its result is dropped.
        let _ = self.mailboxes.try_deliver(
            self.shard,
            Command::Cancel {
                number: self.number,
            },
        );
    }

    /// The same where somebody waits for the end of the call.
    pub(crate) fn send_surely(&self) {
        self.mailboxes.deliver(
            self.shard,
            Command::Cancel {
                number: self.number,
            },
        );
    }
}

impl fmt::Debug for RefusedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusedCall")
            .field("request", &self.request)
            .field("is_stopped", &self.is_stopped)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cancel({})", self.number)
    }
}

pub(crate) fn inbox_full() -> Status {
    Status::new(
        Code::ResourceExhausted,
        format!(
            "the shard's inbox already holds {} commands; make fewer calls at once",
            limits::INBOX_COMMANDS
        ),
    )
}

fn resolve(address: &str) -> Result<SocketAddr, Status> {
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
