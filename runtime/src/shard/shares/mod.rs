//! What a peer may hold of an engine, on one connection and over all of them, and what it holds.

#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use grpcxx_memory::ArenaOptions;
use grpcxx_rpc::{
    Account, Code, PeerHolding, Reason, RendezvousLimits, RequestId, Status, WaitingSteps, has_part,
};

use crate::watch::RequestWatch;

/// What one peer may hold, so that others get their part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerShares {
    /// Most connections of one peer.
    pub connections: usize,
    /// Most connections of all peers together, on all shards.
    pub all_connections: usize,
    /// Most steps in which requests of one connection wait.
    pub connection_steps: usize,
    /// Most steps in which requests of one peer wait, each connection by itself. One connection has
    /// at most half of them, and the fewer the more others have.
    pub steps: usize,
    /// Most requests of one peer that wait for tensors; for each of its connections as of `steps`.
    pub waiting: usize,
    /// Bytes of answers that have not left the connections of one peer, from which on those that
    /// owe some are not read, and long answers of functions are refused.
    pub unsent_bytes: u64,
    /// Bytes of keys that all connections of one peer keep, from which on those that keep some are
    /// closed for more. From half of them on, new ones keep none.
    pub key_bytes: u64,
    /// Most streams of one peer that have not ended; for each of its connections as of `steps`.
    pub streams: usize,
    /// Most streams of all peers together that have not ended.
    pub all_streams: usize,
    /// Most pushes that one connection stages at once.
    pub staged_pushes: usize,
    /// How long a push that is staged waits for its next call, before it is dropped.
    pub staged_patience: Duration,
    /// How long a push may be staged in all, and a second more for each MiB of it.
    pub staged_life: Duration,
    /// Most bytes that one peer stages while others stage something too. Of what the store and
    /// these leave of the store's limits, it stages half in any case.
    pub staged_bytes: u64,
    /// Most bytes that one peer stages while no other does, and seven eighths of what the store
    /// leaves of its limits in any case.
    pub staged_bytes_alone: u64,
}

impl PeerShares {
    /// These shares with what `change` sets; fields that it leaves alone keep their values.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Half of everything that is limited for all peers for one of them, and half of its steps for
    /// one of its connections.
    pub fn of(limits: &RendezvousLimits, connections: usize) -> Self {
        let half = |limit: usize| (limit / 2).max(1);
        Self {
            connections: half(connections),
            all_connections: usize::MAX,
            connection_steps: half(half(limits.steps)),
            steps: half(limits.steps),
            waiting: half(limits.waiters),
            unsent_bytes: PEER_UNSENT_BYTES,
            key_bytes: PEER_KEY_BYTES,
            streams: half(ALL_STREAMS),
            all_streams: ALL_STREAMS,
            staged_pushes: STAGED_PUSHES,
            staged_patience: STAGED_PATIENCE,
            staged_life: STAGED_LIFE,
            staged_bytes: of_memory(|usable_bytes| usable_bytes / 2),
            // A model that fits is taken, and whoever comes meanwhile finds something left.
            staged_bytes_alone: of_memory(|usable_bytes| usable_bytes / 8 * 7),
        }
    }
}

/// Most streams of all peers together that have not ended: together they hold no more than some
/// gigabytes if nobody reads.
const ALL_STREAMS: usize = 1024;

/// Pushes that one connection stages at once, if nothing else is said: more than a program has
/// threads that push over one.
const STAGED_PUSHES: usize = 64;

/// How long a push waits for its next call, if nothing else is said: as long as 256 MiB take over a
/// link of 20 Mbit/s.
const STAGED_PATIENCE: Duration = Duration::from_secs(120);

/// How long a push may be staged beside the time for its bytes, if nothing else is said: far longer
/// than a client that works needs.
const STAGED_LIFE: Duration = Duration::from_secs(3600);

/// A part of the memory that this process may use; all, if the system does not tell.
fn of_memory(part: impl FnOnce(u64) -> u64) -> u64 {
    static USABLE_BYTES: OnceLock<u64> = OnceLock::new();
    match *USABLE_BYTES.get_or_init(grpcxx_memory::usable_memory_bytes) {
        0 => u64::MAX,
        usable_bytes => part(usable_bytes),
    }
}

/// What each peer with a connection, or with streams that have not ended, holds of the engine.
/// Locked only where a connection begins or ends, or the last stream of a peer.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    arriving: Arriving,
    open: Mutex<HashMap<Account, Open, RandomState>>,
    /// Streams of all peers that have not ended.
    streams: AtomicUsize,
}

/// What frames of one peer that are not complete may have of memory.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    bytes_max: u64,
    arenas: usize,
}

#[derive(Debug)]
struct Open {
    connections: usize,
    held: Arc<Held>,
    /// Streams that came through another door than the star port, as if they were of one
    /// connection.
    visits: Option<Arc<Mutex<OpenStreams>>>,
}

/// What one peer holds, over all its connections, whatever shards have them.
#[derive(Debug)]
struct Held {
    steps: AtomicUsize,
    waiting: AtomicUsize,
    of_connections: Arc<PeerHolding>,
    /// Streams that have not ended. They may outlive the connections that they came on, and may
    /// have come through another door than the star port.
    streams: AtomicUsize,
    /// Messages of streams that are not complete.
    parts_bytes: AtomicU64,
}

impl Default for Arriving {
    fn default() -> Self {
        Self {
            bytes_max: u64::MAX,
            arenas: 1,
        }
    }
}

impl Open {
    fn new(shares: &PeerShares, arriving: Arriving) -> Self {
        let of_connections = PeerHolding::new(shares.unsent_bytes, shares.key_bytes)
            .with_arriving(arriving.bytes_max, arriving.arenas);
        Self {
            connections: 0,
            held: Arc::new(Held {
                steps: AtomicUsize::new(0),
                waiting: AtomicUsize::new(0),
                of_connections: Arc::new(of_connections),
                streams: AtomicUsize::new(0),
                parts_bytes: AtomicU64::new(0),
            }),
            visits: None,
        }
    }
}

/// The part of one stream in what its peer holds, and all peers. It is given back when this is
/// dropped.
#[derive(Debug)]
pub(crate) struct StreamShare {
    accounts: Arc<Accounts>,
    connection: Arc<Mutex<OpenStreams>>,
}

/// The streams of a connection that have not ended, and whose share they count against.
#[derive(Debug)]
struct OpenStreams {
    count: usize,
    parts_bytes: u64,
    account: Account,
    held: Arc<Held>,
}

/// The requests of one connection that wait for tensors, and the part of the connection in what its
/// peer holds. All of it is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Waits {
    by_request: HashMap<RequestId, i64, RandomState>,
    steps: WaitingSteps,
    accounts: Arc<Accounts>,
    pub(super) account: Account,
    held: Arc<Held>,
    streams: Arc<Mutex<OpenStreams>>,
    /// Whether the connection counts no more, though it has not ended yet.
    has_given_way: bool,
}

impl Accounts {
    /// No peer yet, in a task whose shards have such an arena each. A peer has half of each, or of
    /// the machine's memory where they take what is free of that.
    pub(crate) fn of_arenas(arena: &ArenaOptions, shards: usize) -> Self {
        let capacity_bytes = arena.capacity_bytes as u64;
        let arriving = match &arena.headroom {
            Some(headroom) => Arriving {
                bytes_max: headroom.usable_bytes().max(capacity_bytes) / 2,
                arenas: 1,
            },
            None => Arriving {
                bytes_max: capacity_bytes / 2,
                arenas: shards,
            },
        };
        Self {
            arriving,
            ..Self::default()
        }
    }

    /// Counts a connection of a peer; `None` if it has as many as it may.
    pub(super) fn join(self: &Arc<Self>, account: Account, shares: &PeerShares) -> Option<Waits> {
        let held = self.welcome(account, shares)?;
        Some(Waits {
            by_request: HashMap::default(),
            steps: WaitingSteps::default(),
            accounts: Arc::clone(self),
            account,
            streams: OpenStreams::new(account, &held),
            held,
            has_given_way: false,
        })
    }

    /// Counts a connection that moves to another account; `None` if that has as many as it may.
    fn welcome(&self, account: Account, shares: &PeerShares) -> Option<Arc<Held>> {
        let mut accounts = self.lock();
        let open = accounts.entry(account);
        let open = open.or_insert_with(|| Open::new(shares, self.arriving));
        if open.connections >= shares.connections {
            return None;
        }
        open.connections += 1;
        Some(Arc::clone(&open.held))
    }

    /// Who of these has most connections, and no fewer than `newcomer`, who goes first among those
    /// with as many.
    pub(super) fn with_most(
        &self,
        of: impl Iterator<Item = Account>,
        newcomer: Account,
    ) -> Option<Account> {
        let accounts = self.lock();
        let connections =
            |account: &Account| accounts.get(account).map_or(0, |open| open.connections);
        let greediest = of.max_by_key(|account| (connections(account), *account == newcomer))?;
        (connections(&greediest) >= connections(&newcomer)).then_some(greediest)
    }

    /// Streams of all peers that have not ended.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn open_streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Counts a stream of a peer that came through another door than the star port.
    ///
    /// # Errors
    /// As [`Waits::begin_stream`].
    pub(super) fn visit(
        self: &Arc<Self>,
        account: Account,
        shares: &PeerShares,
    ) -> Result<Arc<StreamShare>, Status> {
        // Locked until the stream is counted: nothing else keeps the account.
        let mut accounts = self.lock();
        let open = accounts.entry(account);
        let open = open.or_insert_with(|| Open::new(shares, self.arriving));
        let held = Arc::clone(&open.held);
        let visits = (open.visits).get_or_insert_with(|| OpenStreams::new(account, &held));
        let visits = Arc::clone(visits);
        let counts = lock(&visits).add();
        drop(accounts);
        self.share_of(visits, counts, shares)
    }

    /// The share of a stream that is counted for its connection and its peer, which had so many
    /// before.
    fn share_of(
        self: &Arc<Self>,
        streams: Arc<Mutex<OpenStreams>>,
        (own, of_peer): (usize, usize),
        shares: &PeerShares,
    ) -> Result<Arc<StreamShare>, Status> {
        let of_all = self.streams.fetch_add(1, Ordering::Relaxed);
        let share = StreamShare {
            accounts: Arc::clone(self),
            connection: streams,
        };
        let text = if !has_part(own, of_peer, shares.streams) {
            format!(
                "{of_peer} streams of this peer are open, {own} of them of this connection, which \
                 has no larger part of the {} allowed; end some",
                shares.streams
            )
        } else if of_all >= shares.all_streams {
            format!("{of_all} streams of all peers are open, as many as are allowed; try again")
        } else {
            return Ok(Arc::new(share));
        };
        Err(Status::new(Code::ResourceExhausted, text).because(Reason::Limit))
    }

    fn leave(&self, account: Account) {
        let mut accounts = self.lock();
        if let Some(open) = accounts.get_mut(&account) {
            open.connections -= 1;
        }
        Self::forget_if_empty(&mut accounts, account);
    }

    /// Forgets the account if nothing of its peer is left.
    fn forget_if_empty(accounts: &mut HashMap<Account, Open, RandomState>, account: Account) {
        let is_empty =
            |open: &Open| open.connections == 0 && open.held.streams.load(Ordering::Relaxed) == 0;
        if accounts.get(&account).is_some_and(is_empty) {
            accounts.remove(&account);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Account, Open, RandomState>> {
        lock(&self.open)
    }
}

impl Waits {
    /// Counts the connection, and all that waits on it, for who its peer has proven to be. It stays
    /// where it is if that peer has as many connections as it may.
    pub(super) fn belong_to(&mut self, account: Account, shares: &PeerShares) {
        if account == self.account || self.has_given_way {
            return;
        }
        let Some(held) = self.accounts.welcome(account, shares) else {
            return;
        };
        let (waiting, steps) = (self.by_request.len(), self.steps.len());
        self.held.waiting.fetch_sub(waiting, Ordering::Relaxed);
        self.held.steps.fetch_sub(steps, Ordering::Relaxed);
        held.waiting.fetch_add(waiting, Ordering::Relaxed);
        held.steps.fetch_add(steps, Ordering::Relaxed);
        lock(&self.streams).belong_to(account, &held);
        self.accounts.leave(self.account);
        self.account = account;
        self.held = held;
    }

    /// Lets another connection of the peer have the place of this one, which ends.
    pub(super) fn give_way(&mut self) {
        if !std::mem::replace(&mut self.has_given_way, true) {
            self.accounts.leave(self.account);
        }
    }

    /// Whether it has given way.
    pub(super) fn has_given_way(&self) -> bool {
        self.has_given_way
    }

    /// What all connections of the peer hold.
    pub(super) fn holding(&self) -> Arc<PeerHolding> {
        Arc::clone(&self.held.of_connections)
    }

    /// Whether a request may wait in a step.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: others of this connection, or of this peer, hold its whole share.
    #[inline]
    pub(super) fn may_begin(&self, step_id: i64, shares: &PeerShares) -> Result<(), Status> {
        let steps = self.held.steps.load(Ordering::Relaxed);
        let waiting = self.held.waiting.load(Ordering::Relaxed);
        if self.steps.len() < shares.connection_steps
            && has_part(self.steps.len(), steps, shares.steps)
            && has_part(self.by_request.len(), waiting, shares.waiting)
        {
            return Ok(());
        }
        self.may_begin_at_limit(step_id, shares)
    }

    #[cold]
    fn may_begin_at_limit(&self, step_id: i64, shares: &PeerShares) -> Result<(), Status> {
        let waiting = self.held.waiting.load(Ordering::Relaxed);
        let own = self.by_request.len();
        let text = if !has_part(own, waiting, shares.waiting) {
            format!(
                "{waiting} requests of this peer wait for tensors, {own} of them of this \
                 connection, which has no larger part of the {} allowed",
                shares.waiting
            )
        } else if !self.steps.may_begin(step_id, shares.connection_steps) {
            format!(
                "requests of this connection wait in {} steps, as many as are allowed",
                shares.connection_steps
            )
        } else if self.steps.may_begin(step_id, 0) {
            return Ok(());
        } else {
            let (own, steps) = (self.steps.len(), self.held.steps.load(Ordering::Relaxed));
            if has_part(own, steps, shares.steps) {
                return Ok(());
            }
            format!(
                "requests of this peer wait in {steps} steps, {own} of them of this connection, \
                 which has no larger part of the {} allowed",
                shares.steps
            )
        };
        Err(Status::new(Code::ResourceExhausted, text).because(Reason::Limit))
    }

    /// Counts a stream of this peer.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: this peer, or all together, have as many as are allowed.
    pub(super) fn begin_stream(&self, shares: &PeerShares) -> Result<Arc<StreamShare>, Status> {
        let counts = lock(&self.streams).add();
        (self.accounts).share_of(Arc::clone(&self.streams), counts, shares)
    }

    /// The requests that wait.
    #[cfg(debug_assertions)]
    pub(super) fn requests(&self) -> impl Iterator<Item = RequestId> {
        self.by_request.keys().copied()
    }

    pub(super) fn begin(&mut self, request: RequestId, step_id: i64) {
        self.by_request.insert(request, step_id);
        self.held.waiting.fetch_add(1, Ordering::Relaxed);
        if self.steps.begin(step_id) {
            self.held.steps.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A request waits no longer, if it did; its step.
    #[inline]
    pub(super) fn end(&mut self, request: RequestId) -> Option<i64> {
        if self.by_request.is_empty() {
            return None;
        }
        let step_id = self.by_request.remove(&request)?;
        self.give_back(step_id);
        Some(step_id)
    }

    /// Ends all, and says which requests waited in which steps.
    pub(super) fn end_all(&mut self) -> Vec<(RequestId, i64)> {
        let ended: Vec<(RequestId, i64)> = self.by_request.drain().collect();
        for (_, step_id) in &ended {
            self.give_back(*step_id);
        }
        ended
    }

    fn give_back(&mut self, step_id: i64) {
        self.held.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.steps.end(step_id) {
            self.held.steps.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl StreamShare {
    /// Counts `more` bytes of a message that is not complete, of which the stream has `before`.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: such messages of this peer have a quarter of the memory, and not all
    /// of them are of this stream.
    pub(crate) fn hold_parts(&self, before: u64, more: u64) -> Result<(), Status> {
        let limit = self.accounts.arriving.bytes_max / 2;
        lock(&self.connection).hold_parts(before, more, limit)
    }

    /// Counts bytes no more that [`StreamShare::hold_parts`] has counted.
    pub(crate) fn release_parts(&self, bytes: u64) {
        lock(&self.connection).release_parts(bytes);
    }
}

impl OpenStreams {
    fn new(account: Account, held: &Arc<Held>) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            count: 0,
            parts_bytes: 0,
            account,
            held: Arc::clone(held),
        }))
    }

    /// Counts one more. Returns how many there were before, here and of the peer.
    fn add(&mut self) -> (usize, usize) {
        self.count += 1;
        let of_peer = self.held.streams.fetch_add(1, Ordering::Relaxed);
        (self.count - 1, of_peer)
    }

    /// Counts one less. Returns the account if its peer has none any more.
    fn remove(&mut self) -> Option<Account> {
        self.count -= 1;
        let before = self.held.streams.fetch_sub(1, Ordering::Relaxed);
        (before == 1).then_some(self.account)
    }

    /// Counts them for another peer.
    fn belong_to(&mut self, account: Account, held: &Arc<Held>) {
        self.held.streams.fetch_sub(self.count, Ordering::Relaxed);
        held.streams.fetch_add(self.count, Ordering::Relaxed);
        let parts_bytes = self.parts_bytes;
        (self.held.parts_bytes).fetch_sub(parts_bytes, Ordering::Relaxed);
        held.parts_bytes.fetch_add(parts_bytes, Ordering::Relaxed);
        self.account = account;
        self.held = Arc::clone(held);
    }

    fn hold_parts(&mut self, before: u64, more: u64, limit: u64) -> Result<(), Status> {
        self.parts_bytes += more;
        let all = self.held.parts_bytes.fetch_add(more, Ordering::Relaxed) + more;
        if all == before + more || all <= limit {
            return Ok(());
        }
        self.release_parts(more);
        let text = format!(
            "messages of this peer's streams that are not complete would have {all} bytes, of \
             {limit} allowed; complete some first"
        );
        Err(Status::new(Code::ResourceExhausted, text).because(Reason::Memory))
    }

    fn release_parts(&mut self, bytes: u64) {
        self.parts_bytes -= bytes;
        self.held.parts_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for StreamShare {
    fn drop(&mut self) {
        self.accounts.streams.fetch_sub(1, Ordering::Relaxed);
        let last_of = lock(&self.connection).remove();
        if let Some(account) = last_of {
            Accounts::forget_if_empty(&mut self.accounts.lock(), account);
        }
    }
}

/// Nobody is told of anything: it is kept until all of the stream has left.
impl RequestWatch for StreamShare {}

impl Drop for Waits {
    fn drop(&mut self) {
        self.end_all();
        self.give_way();
    }
}

/// Bytes of answers that have not left the connections of a peer, if nothing else is said.
const PEER_UNSENT_BYTES: u64 = 8 << 30;

/// Bytes of keys that the connections of a peer keep, if nothing else is said.
const PEER_KEY_BYTES: u64 = 256 << 20;
