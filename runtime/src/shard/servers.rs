//! Connections on which peers call us: what their links tell, and what their links are given.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use grpcxx_rpc::{
    Certified, Code, PeerViolation, Proving, Reason, RequestId, ServerConnection, Status, Text,
    Undelivered,
};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkId, MediumKind, Next, Outcome, PeerName, Progress, SlotTable,
    Time, Transport,
};

use crate::client::LinkMedium;
use crate::cluster::TaskId;
use crate::command::{AcceptedConnection, SlotId};
use crate::compute::Job;
use crate::latency::{CallKind, CallPlace, CallSide, CallStart, CallTable, CountedPeer, Traffic};
use crate::policy::{Authority, Identity, Proof};
use crate::service::StreamEnds;
use crate::shard::core::Core;
use crate::shard::landings::ArenaLandings;
use crate::shard::pace::Pace;
use crate::shard::shares::{PeerShares, Waits};
use crate::shard::timers::Subject;
use crate::shard::watches::Watches;
use crate::staging::Staging;
use crate::watch::RequestWatch;

/// The incoming side of a shard.
pub(super) struct Incoming<A> {
    pub(super) servers: SlotTable<ServerLink>,
    /// Connections that have something to do before the turn ends.
    pub(super) dirty: Vec<SlotId>,
    /// Connections that this shard has accepted and not yet given to one.
    pub(super) accepted: Vec<AcceptedConnection<A>>,
}

/// A connection on which a peer calls us.
#[derive(Debug)]
pub(super) struct ServerLink {
    pub(super) link: LinkId,
    /// When the connection began.
    pub(super) since: Time,
    pub(super) peer: SocketAddr,
    /// Who the peer is, as far as it has been proven.
    identity: Identity,
    /// Whether the peer is known to belong to the cluster.
    pub(super) is_known: bool,
    pub(super) connection: ServerConnection,
    /// What carries the connection.
    medium: LinkMedium,
    /// Why it could not move on from TCP.
    pub(super) declined: Option<String>,
    /// For whom the connection counts.
    counted: CountedPeer,
    /// Where its requests are counted.
    place: CallPlace,
    /// What went over it, as far as it is not counted there.
    traffic: Traffic,
    /// When each request that was handed out had come, by its slot.
    pub(super) begun: Vec<CallStart>,
    /// Its requests that wait for tensors.
    pub(super) waits: Waits,
    /// Who wants to hear what becomes of a request, by its token.
    watches: Watches,
    /// What the shard has of its streams, by the tokens of their requests.
    pub(super) streams: HashMap<u64, StreamEnds, RandomState>,
    /// What it has staged, once it has.
    pub(super) staging: Option<Arc<Staging>>,
    is_dirty: bool,
    /// The link was full when it was last given a frame, or has not had all chunks of one.
    is_held_back: bool,
    armed: Option<Time>,
    pub(super) pace: Pace,
}

/// How long a peer has asked for nothing on a connection; the least is that which gives way first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unused {
    /// Since the connection began.
    Ever(Time),
    /// Since it was last in use.
    Since(Time),
}

impl<A> Incoming<A> {
    /// Nobody yet, over at most so many links.
    pub(super) fn new(links: usize) -> Self {
        Self {
            servers: SlotTable::new(links),
            dirty: Vec::new(),
            accepted: Vec::new(),
        }
    }

    /// Whether something waits that no event of a link will announce.
    pub(super) fn has_work(&self) -> bool {
        !self.dirty.is_empty() || !self.accepted.is_empty()
    }

    /// Adds a connection to those that have something to do before the turn ends.
    pub(super) fn mark(&mut self, id: SlotId) {
        if let Some(server) = self.servers.find_mut(id)
            && !server.is_dirty
        {
            server.is_dirty = true;
            self.dirty.push(id);
        }
    }

    /// Whether all requests have an answer that its link has taken.
    pub(super) fn is_idle(&self) -> bool {
        self.servers.values().all(|server| {
            !server.is_held_back
                && !server.connection.has_endings()
                && server.connection.outstanding_requests().next().is_none()
        })
    }

    #[cfg(all(any(test, fuzzing), not(loom)))]
    pub(super) fn outstanding_requests(&self) -> usize {
        let requests = |server: &ServerLink| server.connection.outstanding_requests().count();
        self.servers.values().map(requests).sum()
    }
}

impl ServerLink {
    /// Since when its peer has asked for nothing. `None` if it is in use, or has given way.
    pub(super) fn unused(&self) -> Option<Unused> {
        if self.waits.has_given_way() {
            return None;
        }
        let frames = self.connection.frames();
        if frames == 0 {
            return Some(Unused::Ever(self.since));
        }
        let idle_since = self.pace.idle_since(frames)?;
        (!self.is_in_use()).then_some(Unused::Since(idle_since))
    }

    /// Whether its peer has something under way here.
    pub(super) fn is_in_use(&self) -> bool {
        let stages = |staging: &Arc<Staging>| staging.next_end().is_some();
        !self.connection.is_unused()
            || self.is_held_back
            || !self.streams.is_empty()
            || self.staging.as_ref().is_some_and(stages)
    }

    /// Whether its peer has proven to belong to the cluster, or is where a task of it is.
    pub(super) fn is_task(&self, authority: &Authority) -> bool {
        authority.knows_task(&self.identity)
    }

    pub(super) fn new(
        (link, since): (LinkId, Time),
        peer: SocketAddr,
        (identity, is_known): (Identity, bool),
        connection: ServerConnection,
        waits: Waits,
        (counted, place): (CountedPeer, CallPlace),
    ) -> Self {
        Self {
            link,
            since,
            peer,
            identity,
            is_known,
            connection,
            medium: LinkMedium::Tcp,
            declined: None,
            counted,
            place,
            traffic: Traffic::default(),
            begun: Vec::new(),
            waits,
            watches: Watches::new(),
            streams: HashMap::default(),
            staging: None,
            is_dirty: false,
            is_held_back: false,
            armed: None,
            pace: Pace::default(),
        }
    }

    /// Whether it says that it has something to do before the turn ends.
    #[cfg(debug_assertions)]
    pub(super) fn is_marked(&self) -> bool {
        self.is_dirty
    }

    /// When it is looked at next, as far as it knows.
    pub(super) fn armed(&self) -> Option<Time> {
        self.armed
    }

    /// What carries the connection.
    pub(super) fn medium(&self) -> LinkMedium {
        self.medium
    }

    /// Lets what follows be counted for its peer and its medium.
    fn count_at(&mut self, table: &mut CallTable) {
        table.count_traffic(self.place, &mut self.traffic);
        self.place = table.place(&self.counted, self.medium);
    }

    /// Hands over what went over the connection so far.
    pub(super) fn count_traffic(&mut self, table: &mut CallTable) {
        table.count_traffic(self.place, &mut self.traffic);
    }

    /// Notes when a request has come.
    pub(super) fn begin(&mut self, request: RequestId, begun: CallStart) {
        let slot = request.slot();
        if self.begun.len() <= slot {
            self.begun.resize(slot + 1, begun);
        }
        self.begun[slot] = begun;
    }

    /// Lets somebody hear what becomes of a request.
    pub(super) fn watch(&mut self, request: RequestId, watch: Arc<dyn RequestWatch>) {
        self.watches.insert(request.token(), watch);
    }

    /// Takes who watches a request.
    pub(super) fn take_watch(&mut self, request: RequestId) -> Option<Arc<dyn RequestWatch>> {
        self.watches.take(request.token())
    }

    /// Lets go of the stream of a request that is over.
    #[inline]
    pub(super) fn end_stream(&mut self, request: RequestId) {
        if !self.streams.is_empty() {
            self.streams.remove(&request.token());
        }
    }

    /// Tells all watches that nobody wants their answers any more.
    pub(super) fn withdraw(&mut self) {
        self.streams.clear();
        self.watches.withdraw_all();
    }

    /// Notes what the peer has proven meanwhile, and tells what it was refused. Returns whether
    /// somebody was refused who may be a task of the cluster that has moved.
    #[cold]
    fn report_to(&mut self, authority: &Authority, shares: &PeerShares) -> bool {
        match self.connection.poll_proving() {
            Some(Proving::Proven) => self.identify(Proof::Token, shares),
            Some(Proving::Failed) => authority.disproved(self.peer),
            None => {}
        }
        self.count_for_identity(shares);
        if let Some(claimed) = self.connection.take_false_claim() {
            authority.misnamed(self.peer, &claimed, self.identity.task.as_ref());
        }
        let Some(refused) = self.connection.take_refused() else {
            return false;
        };
        authority.forbade(self.peer, refused.right, refused.count);
        !self.is_known
    }

    /// Notes what proves that the peer belongs to the cluster, which gives it a share of its own.
    fn identify(&mut self, proof: Proof, shares: &PeerShares) {
        tracing::debug!(peer = %self.peer, %proof, "the peer belongs to the cluster");
        self.identity = self.identity.clone().proven(proof);
        self.is_known = true;
        self.count_for_identity(shares);
    }

    /// Counts the connection for who its peer has proven to be, and says that it is.
    fn count_for_identity(&mut self, shares: &PeerShares) {
        let certified = self.identity.task.as_ref().map(TaskId::in_certificates);
        let claimed = self.connection.claimed_task().map(Text::as_str);
        let task = certified.as_deref().or(claimed);
        let account = match self.identity.proof {
            Proof::Nothing => return,
            Proof::SameUser => self.waits.account.of_same_user(task),
            Proof::Token | Proof::Certificate => self.waits.account.proven(task),
        };
        self.waits.belong_to(account, shares);
        self.connection.belong_to(self.waits.holding());
    }

    /// Gives the peer its rights if its address is that of a task of the cluster by now.
    pub(super) fn admit_if_known(&mut self, authority: &Authority) {
        if !self.is_known && authority.knows(&self.identity) {
            self.is_known = true;
            self.connection.set_rights(authority.rights(&self.identity));
        }
    }

    /// The next answer with tensors of a step that did not leave. Those of watched requests belong
    /// to their service.
    pub(super) fn poll_undelivered(&mut self) -> Option<Undelivered> {
        loop {
            let undelivered = self.connection.poll_undelivered()?;
            let is_watched = |id: RequestId| self.watches.has(id.token());
            if !is_watched(undelivered.id) {
                return Some(undelivered);
            }
        }
    }
}

impl<A> Core<A> {
    pub(super) fn server_received(
        &mut self,
        id: SlotId,
        bytes: &[u8],
    ) -> Option<Result<Progress, PeerViolation>> {
        self.server_reads(id, |connection, traffic, now, landings| {
            let progress = connection.handle_received(now, bytes, landings);
            if let Ok(Progress {
                consumed_bytes,
                next,
            }) = &progress
            {
                traffic.take(*consumed_bytes, next);
            }
            progress
        })
    }

    pub(super) fn server_landed(
        &mut self,
        id: SlotId,
        landing: Landing,
    ) -> Option<Result<Next, PeerViolation>> {
        let unordered_bytes = landing.replaced_beyond_bytes();
        self.server_reads(id, |connection, traffic, now, landings| {
            let next = connection.handle_landed(now, landing, landings);
            if let Ok(next) = &next {
                traffic.take(unordered_bytes, next);
            }
            next
        })
    }

    /// Lets a connection read, and counts the requests that it has answered meanwhile.
    #[inline]
    fn server_reads<R>(
        &mut self,
        id: SlotId,
        read: impl FnOnce(&mut ServerConnection, &mut Traffic, Time, &mut ArenaLandings<'_>) -> R,
    ) -> Option<R> {
        let now = self.now;
        let (mut landings, servers) = ArenaLandings::of(self);
        let ServerLink {
            connection,
            place,
            traffic,
            ..
        } = servers.find_mut(id)?;
        let place = *place;
        let result = read(connection, traffic, now, &mut landings);
        landings.release(connection.drain_released());
        let answered = landings.answered;
        if connection.has_news() {
            // The borrow of the landings is over.
            if let Some(server) = self.incoming.servers.find_mut(id)
                && server.report_to(&self.shared.authority, &self.shares)
            {
                self.shared.find_tasks_again();
            }
        }
        if answered > 0 {
            self.counters().requests.add(answered);
            let begun = CallStart::new(now, CallKind::RECV_TENSOR);
            self.call_table.record(place, begun, now, answered);
        }
        self.mark_server(id);
        Some(result)
    }

    /// Notes how long a request took that has its answer, or needs none any more.
    pub(super) fn note_request(&mut self, id: SlotId, request: RequestId) {
        if let Some(server) = self.incoming.servers.find(id)
            && let Some(&begun) = server.begun.get(request.slot())
        {
            self.call_table.record(server.place, begun, self.now, 1);
        }
    }

    pub(super) fn server_sent(&mut self, id: SlotId, frame: Box<Frame>, outcome: Outcome) {
        let Some(server) = self.incoming.servers.find_mut(id) else {
            return;
        };
        if outcome == Outcome::Done {
            server.traffic.sent_bytes += frame.len_bytes();
        }
        let watches = &mut server.watches;
        (server.connection).handle_sent_with(frame, outcome, |request| {
            if let Some(watch) = watches.take(request.token()) {
                watch.delivered();
            }
        });
        self.steps.release(server.connection.drain_released());
        self.mark_server(id);
        if outcome == Outcome::Lost {
            self.take_undelivered(id);
        }
    }

    pub(super) fn server_proven(&mut self, id: SlotId, name: Option<&PeerName>) {
        if let Some(server) = self.incoming.servers.find_mut(id) {
            server.identity = server.identity.clone().certified(name);
            if let Some(name) = name {
                let peers = &self.shared.counted_peers;
                server.counted =
                    peers.join(CallSide::Server, &format!("{}:{}", name.job, name.index));
                server.count_at(&mut self.call_table);
                server.connection.certify(Certified {
                    task: TaskId::new(&*name.job, name.index).in_certificates().into(),
                    name: name.to_string().into(),
                });
            }
            server.identify(Proof::Certificate, &self.shares);
            let rights = self.shared.authority.rights(&server.identity);
            server.connection.set_rights(rights);
        }
    }

    pub(super) fn server_migrated(&mut self, id: SlotId, medium: MediumKind) {
        if let Some(server) = self.incoming.servers.find_mut(id) {
            server.medium = medium.into();
            server.count_at(&mut self.call_table);
            let is_shared = medium == MediumKind::SharedMemory;
            server.connection.set_lends(is_shared);
            if is_shared {
                // Both ends have asked the kernel for the other's user.
                server.identify(Proof::SameUser, &self.shares);
                let rights = self.shared.authority.rights(&server.identity);
                server.connection.set_rights(rights);
            }
        }
    }

    /// Takes back what a lost connection still held: tensors whose answer never left, and places in
    /// steps.
    pub(super) fn server_closed(&mut self, id: SlotId, reason: &CloseReason) {
        let Some(server) = self.incoming.servers.find(id) else {
            return;
        };
        tracing::debug!(peer = %server.peer, %reason, "a peer's connection ended");
        let text = format!("the connection ended: {reason}");
        let status = Status::new(Code::Unavailable, text).because(Reason::ConnectionLost);
        self.withdraw_requests(id, &status);
        if let Some(mut server) = self.incoming.servers.remove(id) {
            server.count_traffic(&mut self.call_table);
            self.free_staging(&mut server);
        }
        self.counters().closed.add(1);
        self.leave_load();
    }

    /// Ends all requests of a connection whose peer gets no answer any more.
    pub(super) fn withdraw_requests(&mut self, id: SlotId, status: &Status) {
        let Some(server) = self.incoming.servers.find_mut(id) else {
            return;
        };
        server.connection.handle_closed(status);
        server.streams.clear();
        while let Some(request) = server.connection.poll_cancelled() {
            if let Some(watch) = server.take_watch(request) {
                watch.withdrawn();
            }
        }
        // First the places in steps, so that nothing goes back to those who are gone.
        for (request, step_id) in server.waits.end_all() {
            self.forget_parked(id, request, step_id);
        }
        self.take_undelivered(id);
    }

    pub(super) fn server_timeout(&mut self, id: SlotId, at: Time) {
        if let Some(server) = self.incoming.servers.find_mut(id) {
            if server.armed == Some(at) {
                server.armed = None;
            }
            server.connection.handle_timeout(self.now);
            self.mark_server(id);
        }
    }

    pub(super) fn mark_server(&mut self, id: SlotId) {
        self.incoming.mark(id);
    }

    pub(super) fn flush_servers<T: Transport<Accepted = A>>(&mut self, transport: &mut T) -> usize {
        let mut events = 0;
        let count = self.incoming.dirty.len();
        for index in 0..count {
            let id = self.incoming.dirty[index];
            let Some(server) = self.incoming.servers.find_mut(id) else {
                continue;
            };
            // A turn may end before it comes to this connection.
            server.is_dirty = server.connection.has_requests()
                || server.connection.has_stream_news()
                || server.connection.has_cancelled();
            if server.is_dirty {
                self.incoming.dirty.push(id);
            }
            server.is_held_back = false;
            while let Some(frame) = server.connection.poll_frame() {
                if let Err(refused) = transport.send(server.link, frame) {
                    server.connection.unpoll_frame(refused.value);
                    server.is_held_back = true;
                    break;
                }
                events += 1;
            }
            server.is_held_back |= server.connection.is_chunking();
            if let Some(next) = server.connection.poll_resume() {
                // A link that closed in this very turn refuses; its end is on the way.
                let _ = transport.resume(server.link, next);
            }
            if let Some(expired) = server.expire_staged(self.now, transport) {
                let free = Job::new(move || drop(expired));
                self.shared.chores.spawn(server.waits.account, free);
            }
            let timeout = server.next_timeout();
            self.timers
                .arm(Subject::Server(id), timeout, &mut server.armed);
        }
        self.incoming.dirty.drain(..count);
        events
    }
}
