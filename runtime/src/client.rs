mod mailboxes;
mod peer;
mod resolver;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_channel::oneshot;
use grpcxx_rpc::{Code, Reason, Request, Status};

pub(crate) use self::mailboxes::{Mailbox, Mailboxes};
pub(crate) use self::peer::Host;
pub use self::peer::{Peer, PeerState};
pub(crate) use self::resolver::{Found, Lookups};
pub use self::resolver::{Resolve, SystemResolver};
use crate::call::{Call, CallSink, Take};
use crate::cancellation::Cancellation;
use crate::command::{Cancellable, Command, NewCall};
use crate::completion::Completion;
use crate::limits;

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

/// A call that was not accepted, with all that belongs to it.
pub struct RefusedCall {
    /// The request.
    pub request: Request,
    /// Where its result would have gone.
    pub sink: Arc<dyn CallSink>,
    /// Why: the shard's inbox is full, or the engine has stopped or died.
    pub status: Status,
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

    /// The peer at `host:port`. The same address always gives the same peer. Peers are spread over the shards in
    /// turn.
    ///
    /// A name is looked up before each dial, on a thread of the engine, so a name that points elsewhere later is
    /// followed there. A name that is not known yet counts as a failed dial.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the address is no `host:port`, `RESOURCE_EXHAUSTED` if there are too many peers.
    pub fn peer(&self, address: &str) -> Result<Peer, Status> {
        self.peer_over(address, 0)
    }

    /// The peer at `host:port` over the connection with this number: each number is a connection of its own,
    /// and [`Client::peer`] means number 0. Several connections to one peer spread its calls over shards.
    ///
    /// # Errors
    /// As [`Client::peer`]; each connection counts as a peer.
    pub fn peer_over(&self, address: &str, connection: usize) -> Result<Peer, Status> {
        let mut peers = self.shared.peers();
        if let Some(peer) = peers.find(address, connection) {
            return Ok(peer);
        }
        let host = Host::parse(address)?;
        if peers.count >= limits::PEERS {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!(
                    "{address} would be peer {}, the limit is {}",
                    peers.count + 1,
                    limits::PEERS
                ),
            )
            .because(Reason::Limit));
        }
        let turn = self.shared.next_shard.fetch_add(1, Ordering::Relaxed);
        let is_self =
            matches!(host, Host::Address(address) if self.shared.own_address == Some(address));
        let peer = Peer::new(
            (address, host),
            turn % self.shared.mailboxes.len(),
            peers.count as u64,
            is_self,
        );
        peers.count += 1;
        let connections = peers.by_address.entry(address.to_owned()).or_default();
        connections.insert(connection, peer.clone());
        Ok(peer)
    }

    /// Calls a peer. `timeout` bounds the whole call; without one it waits as long as the peer lives.
    pub fn call(&self, peer: &Peer, request: Request, timeout: Option<Duration>) -> Call {
        self.begin(peer, request, timeout, Ok)
    }

    /// Calls a peer for what `take` finds in its response.
    pub(crate) fn begin<T>(
        &self,
        peer: &Peer,
        request: Request,
        timeout: Option<Duration>,
        take: Take<T>,
    ) -> Call<T> {
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
                take,
            ),
            Err(_) => Call::failed(self.shared.mailboxes.refusal(peer.shard()), take),
        }
    }

    /// Calls a peer; the result goes to `sink` on the peer's shard.
    ///
    /// # Errors
    /// The request comes back if the shard's inbox is full or the engine has ended
    /// ([`Client::ended`]); `sink` hears nothing then.
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
    /// All comes back, with the reason, if the shard's inbox is full or the engine has ended.
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
                    status: self.shared.mailboxes.refusal(peer.shard()),
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

    /// Whether the engine has stopped or died.
    pub fn is_stopped(&self) -> bool {
        self.shared.mailboxes.is_closed()
    }

    /// Why every later call fails, if the engine has stopped or died.
    pub fn ended(&self) -> Option<Status> {
        let mailboxes = &self.shared.mailboxes;
        mailboxes.is_closed().then(|| mailboxes.fate().refusal())
    }
}

impl ClientShared {
    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers {
    fn find(&self, address: &str, connection: usize) -> Option<Peer> {
        self.by_address.get(address)?.get(&connection).cloned()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("shards", &self.shared.mailboxes.len())
            .finish()
    }
}

impl Cancel {
    /// Why the call ended that its shard let go of.
    pub(crate) fn status_of_loss(&self) -> Status {
        self.mailboxes.fate().status()
    }

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
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cancel({})", self.number)
    }
}
