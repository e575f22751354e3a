//! The client: peers by their addresses, and the way of calls from any thread to their shards.

mod mailboxes;
mod peer;
mod resolver;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_channel::oneshot;
use grpcxx_rpc::{Code, Envelope, Reason, Request, Status, Tensor, Text, home_shard};

pub(crate) use self::mailboxes::{Lender, Mailbox, Mailboxes};
pub(crate) use self::peer::Host;
pub use self::peer::{LinkMedium, Peer, PeerState};
pub(crate) use self::resolver::{Found, Lookups};
pub use self::resolver::{Resolve, SystemResolver};
use crate::call::{Call, CallSpec, CompletionHandler, Take};
use crate::caller::Caller;
use crate::cancellation::Cancel;
use crate::cluster::TaskId;
use crate::command::{Bells, Command, Keys, NewCall, Taken};
use crate::completion::{Completion, Recipient, Target};
use crate::host::{Turnable, wait_for};
use crate::inspection::ShardInspection;
use crate::latency::ShardCalls;
use crate::limits;
use crate::service::{StreamEnds, hang, take_envelope};
use crate::shard::ShardContext;
use crate::trace;

/// Makes calls to peers, from any thread.
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientShared>,
}

struct ClientShared {
    mailboxes: Arc<Mailboxes>,
    next_shard: AtomicUsize,
    own_address: Option<SocketAddr>,
    peers: Mutex<Peers>,
}

/// The peers by address, and by connection where there are several to one address.
#[derive(Default)]
struct Peers {
    by_address: HashMap<String, BTreeMap<usize, Peer>>,
    /// Which tasks the cluster has at which addresses.
    tasks: HashMap<String, Arc<TaskId>>,
    count: usize,
}

/// A call that was not accepted, with all that belongs to it.
pub struct RefusedCall {
    /// The request.
    pub request: Request,
    /// Where its result would have gone.
    pub handler: Arc<dyn CompletionHandler>,
    /// Why: the shard's inbox is full, or the engine has stopped or died.
    pub status: Status,
}

impl Client {
    pub(crate) fn new(mailboxes: Arc<Mailboxes>, own_address: Option<SocketAddr>) -> Self {
        Self {
            shared: Arc::new(ClientShared {
                mailboxes,
                next_shard: AtomicUsize::new(0),
                own_address,
                peers: Mutex::default(),
            }),
        }
    }

    /// The peer at `host:port`. The same address always gives the same peer. Peers are spread over
    /// the shards in turn.
    ///
    /// A name is looked up before each dial, on a thread of the engine, so a name that points
    /// elsewhere later is followed there. A name that is not known yet counts as a failed dial.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the address is no `host:port`, `RESOURCE_EXHAUSTED` if there are too
    /// many peers.
    pub fn peer(&self, address: &str) -> Result<Peer, Status> {
        self.peer_over(address, 0)
    }

    /// The peer at `host:port` over the connection with this number: each number is a connection of
    /// its own, and [`Client::peer`] means number 0. Several connections to one peer spread its
    /// calls over shards.
    ///
    /// # Errors
    /// As [`Client::peer`]; each connection counts as a peer.
    pub fn peer_over(&self, address: &str, connection: usize) -> Result<Peer, Status> {
        self.peer_at(address, connection, None)
    }

    /// The peer over this connection, on this shard or on the next one in turn.
    fn peer_at(
        &self,
        address: &str,
        connection: usize,
        shard: Option<usize>,
    ) -> Result<Peer, Status> {
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
        let next = || {
            let turn = self.shared.next_shard.fetch_add(1, Ordering::Relaxed);
            turn % self.shared.mailboxes.len()
        };
        let is_self =
            matches!(host, Host::Address(address) if self.shared.own_address == Some(address));
        let peer = Peer::new(
            (address, host),
            shard.unwrap_or_else(next),
            peers.count as u64,
            is_self.then_some(Caller::OWN),
            peers.tasks.get(address).cloned(),
        );
        peers.count += 1;
        let connections = peers.by_address.entry(address.to_owned()).or_default();
        connections.insert(connection, peer.clone());
        Ok(peer)
    }

    /// The peer at `host:port` over a connection of its own that belongs to this shard, for code
    /// that stays there: its calls need no hop to another shard.
    ///
    /// # Errors
    /// As [`Client::peer`]; `INVALID_ARGUMENT` if there is no such shard.
    pub fn peer_on(&self, address: &str, shard: usize) -> Result<Peer, Status> {
        self.shared.mailboxes.check(shard)?;
        self.peer_at(address, usize::MAX - shard, Some(shard))
    }

    /// Says which task the cluster has at a star address. A server that is dialled there by TLS and
    /// whose certificate names another task is not called. It counts for connections that are made
    /// later, until another task is expected there.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the address is no `host:port`, `RESOURCE_EXHAUSTED` if tasks are
    /// expected at as many addresses as there may be peers.
    pub fn expect_task(&self, address: &str, task: TaskId) -> Result<(), Status> {
        Host::parse(address)?;
        let mut peers = self.shared.peers();
        if peers.tasks.len() >= limits::PEERS && !peers.tasks.contains_key(address) {
            let text = format!(
                "{address} would be one more than {} addresses at which tasks are expected",
                limits::PEERS
            );
            return Err(Status::new(Code::ResourceExhausted, text).because(Reason::Limit));
        }
        let task = Arc::new(task);
        let known = peers.by_address.get(address);
        known
            .into_iter()
            .flat_map(BTreeMap::values)
            .for_each(|peer| peer.expect(&task));
        peers.tasks.insert(address.to_owned(), task);
        Ok(())
    }

    /// This task as a peer of itself, for calls that concern a step: they begin on its home shard.
    pub fn own_peer(&self, step_id: i64) -> Peer {
        Peer::own(home_shard(step_id, self.shared.mailboxes.len()))
    }

    /// Puts tensors back into a step of this task that handed them out, in the order of their keys,
    /// so that the next who asks gets them. They are dropped if the step is over, or if its
    /// producer has sent a key anew.
    pub fn give_back(&self, step_id: i64, keys: Vec<Text>, tensors: Vec<Tensor>) {
        let keys = Keys::Many(keys.into());
        let taken = Taken { step_id, keys };
        self.shared.mailboxes.restore(taken, tensors.into());
    }

    /// Runs code on a shard's thread, between two turns of its work. It must not block.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if there is no such shard, `RESOURCE_EXHAUSTED` if its inbox is full.
    pub fn run_on(
        &self,
        shard: usize,
        code: impl FnOnce(&mut ShardContext<'_>) + Send + 'static,
    ) -> Result<(), Status> {
        let mailboxes = &self.shared.mailboxes;
        mailboxes.check(shard)?;
        let command = Command::Run(Box::new(code));
        let delivered = mailboxes.try_deliver(shard, command);
        delivered.map_err(|_| mailboxes.refusal(shard))
    }

    /// Does as [`Client::run_on`] does, but on whatever thread turns the shard, which may be this
    /// one: `code` must not need what [`local`](crate::local) offers, nor a lock that the caller
    /// holds.
    ///
    /// # Errors
    /// As [`Client::run_on`].
    pub fn run_anywhere(
        &self,
        shard: usize,
        code: impl FnOnce(&mut ShardContext<'_>) + Send + 'static,
    ) -> Result<(), Status> {
        let mailboxes = &self.shared.mailboxes;
        mailboxes.check(shard)?;
        let begun = mailboxes.begin(shard, Command::RunAnywhere(Box::new(code)));
        begun.map_err(|_| mailboxes.refusal(shard))
    }

    /// Blocks the calling thread until `future` is ready, at most for `limit`. Meanwhile the thread
    /// turns the shard, of which the future waits for a call, unless another thread does. Not for
    /// use on a shard.
    pub fn wait<F: Future>(
        &self,
        shard: usize,
        future: F,
        limit: Option<Duration>,
    ) -> Option<F::Output> {
        let lender = self.shared.mailboxes.lender(shard);
        wait_for(lender.map(|lender| lender as &dyn Turnable), future, limit)
    }

    /// Calls a peer. `timeout` bounds the whole call; without one it waits as long as the peer
    /// lives.
    pub fn call(&self, peer: &Peer, request: Request, timeout: Option<Duration>) -> Call {
        self.begin(CallSpec::new(peer, request).with_timeout(timeout), Ok)
    }

    /// Calls a peer for what `take` finds in its response.
    pub(crate) fn begin<T>(&self, mut spec: CallSpec<'_>, take: Take<T>) -> Call<T> {
        let span = trace::of_request(&mut spec.request, spec.peer.address());
        let mailboxes = &self.shared.mailboxes;
        let cancel = Cancel::new(mailboxes, spec.peer.shard());
        let (sender, receiver) = oneshot::channel();
        let completion = Completion::future(sender);
        let call = NewCall::new(spec, completion, Some(cancel.cancellable()));
        let shard = call.peer.shard();
        match mailboxes.begin(shard, Command::Call(call)) {
            Ok(()) => Call::new(receiver, cancel, take).in_span(span),
            Err(_) => Call::failed(mailboxes.refusal(shard), take).in_span(span),
        }
    }

    /// Calls a method that streams; its messages go through these pipes.
    pub(crate) fn begin_stream(
        &self,
        peer: &Peer,
        envelope: Result<Envelope, Status>,
        timeout: Option<Duration>,
        mut ends: StreamEnds,
    ) -> Call<Envelope> {
        let envelope = match envelope {
            Ok(envelope) => Box::new(envelope),
            Err(status) => return Call::failed(status, take_envelope),
        };
        let mailboxes = &self.shared.mailboxes;
        let shard = peer.shard();
        let cancel = Cancel::of_stream(mailboxes, shard);
        let cancellable = cancel.cancellable();
        hang(&mut ends, mailboxes, shard, Bells::Call(cancellable.number));
        let (sender, receiver) = oneshot::channel();
        let spec = CallSpec::new(peer, Request::Stream(envelope)).with_timeout(timeout);
        let completion = Completion::future(sender);
        let call = NewCall {
            stream: Some(Box::new(ends)),
            ..NewCall::new(spec, completion, Some(cancellable))
        };
        match mailboxes.try_deliver(shard, Command::Call(call)) {
            Ok(()) => Call::new(receiver, cancel, take_envelope),
            Err(_) => Call::failed(mailboxes.refusal(shard), take_envelope),
        }
    }

    /// Makes a call, whose result goes to `handler` on the peer's shard.
    ///
    /// # Errors
    /// All comes back, with the reason, if the shard's inbox is full or the engine has ended
    /// ([`Client::ended`]); `handler` hears nothing then.
    pub fn submit(
        &self,
        spec: CallSpec<'_>,
        handler: Arc<dyn CompletionHandler>,
        token: u64,
    ) -> Result<(), RefusedCall> {
        let mailboxes = &self.shared.mailboxes;
        let shard = spec.peer.shard();
        let runs_anywhere = handler.runs_anywhere();
        let cancellable = (spec.cancellation)
            .map(|cancellation| cancellation.attach(Cancel::new(mailboxes, shard)));
        let call = NewCall::new(spec, Completion::handler(handler, token), cancellable);
        let call = Command::Call(call);
        let delivered = match runs_anywhere {
            true => mailboxes.begin(shard, call),
            false => {
                mailboxes.bind(shard);
                mailboxes.try_deliver(shard, call)
            }
        };
        match delivered {
            Ok(()) => Ok(()),
            Err(Command::Call(NewCall {
                request,
                completion,
                ..
            })) => match completion.into_target() {
                Target::Handler(Recipient { handler, .. }) => Err(RefusedCall {
                    request,
                    handler,
                    status: mailboxes.refusal(shard),
                }),
                Target::Future(_) | Target::Nobody => unreachable!("a handler was given"),
            },
            Err(_) => unreachable!("the inbox returns the command it was given"),
        }
    }

    /// Tells what is known of a peer, on its shard's thread, without making a connection. `tell` is
    /// dropped unheard if the engine has stopped.
    pub fn inspect(&self, peer: &Peer, tell: impl FnOnce(PeerState) + Send + 'static) {
        let command = Command::Inspect {
            peer: peer.clone(),
            tell: Box::new(tell),
        };
        self.shared.mailboxes.deliver(peer.shard(), command);
    }

    /// Asks each shard how long its calls and requests took, and how many bytes went over its
    /// links. Each tells on its own thread, once; one that has ended drops `tell` unheard. Returns
    /// how many shards there are.
    pub fn shard_calls(&self, tell: impl FnOnce(ShardCalls) + Clone + Send + 'static) -> usize {
        let mailboxes = &self.shared.mailboxes;
        for shard in 0..mailboxes.len() {
            let tell = Box::new(tell.clone());
            mailboxes.deliver(shard, Command::Calls { tell });
        }
        mailboxes.len()
    }

    /// Asks each shard what waits on it and on which connections it works. Each tells on its own
    /// thread, once; one that has ended drops `tell` unheard. Returns how many shards there are.
    pub fn inspect_shards(
        &self,
        tell: impl FnOnce(ShardInspection) + Clone + Send + 'static,
    ) -> usize {
        let mailboxes = &self.shared.mailboxes;
        for shard in 0..mailboxes.len() {
            let tell = Box::new(tell.clone());
            mailboxes.deliver(shard, Command::InspectShard { tell });
        }
        mailboxes.len()
    }

    /// How many shards the engine has.
    pub(crate) fn shards(&self) -> usize {
        self.shared.mailboxes.len()
    }

    /// Lets whatever thread turns a shard run `hear`; it is dropped unheard if the shard has ended.
    pub(crate) fn ask_shard(&self, shard: usize, hear: impl FnOnce() + Send + 'static) {
        let command = Command::RunAnywhere(Box::new(move |_| hear()));
        self.shared.mailboxes.deliver(shard, command);
    }

    /// Closes the connection to a peer, if there is one. Calls on it fail with `UNAVAILABLE`; later
    /// calls connect again.
    pub fn disconnect(&self, peer: &Peer) {
        let command = Command::Disconnect { peer: peer.clone() };
        self.shared.mailboxes.deliver(peer.shard(), command);
    }

    /// Why nothing can be done with the engine if another process has started it, of which this one
    /// is a forked child: it has none of the engine's threads.
    #[inline]
    pub fn inherited(&self) -> Option<Status> {
        let mailboxes = &self.shared.mailboxes;
        (mailboxes.are_inherited()).then(|| mailboxes.end_status())
    }

    /// Whether the engine has stopped or died.
    pub fn is_stopped(&self) -> bool {
        self.shared.mailboxes.is_closed()
    }

    /// Why every later call fails, if the engine has stopped or died.
    pub fn ended(&self) -> Option<Status> {
        let mailboxes = &self.shared.mailboxes;
        mailboxes.is_closed().then(|| mailboxes.end_status())
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

impl fmt::Debug for RefusedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusedCall")
            .field("request", &self.request)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}
