use grpcxx_rpc::{
    Action, Admission, ClientConnection, Code, PeerViolation, Reason, Response, Status, Tensor,
    Unproven,
};
use grpcxx_transport::{
    CloseReason, Frame, Landing, MediumKind, Next, Outcome, PeerName, Progress, Time, Transport,
};

use crate::blame::{A_HANDLER, Blame};
use crate::client::{LinkMedium, Peer, PeerState};
use crate::command::SlotId;
use crate::completion::{Recipient, Target};
use crate::latency::{CallPlace, CallSide, ShardCalls};
use crate::shard::core::Core;
use crate::shard::in_flight::{Entry, from_token};
use crate::shard::landings::CallLandings;
use crate::shard::leaving::Why;
use crate::shard::outgoing::WaitingCall;
use crate::shard::pace::Pace;
use crate::shard::timers::Subject;

impl<A> Core<A> {
    pub(super) fn inspect_peer(&self, peer: &Peer) -> PeerState {
        let link = self
            .outgoing
            .find(peer)
            .map(|slot| &self.outgoing.peers[slot]);
        let connection = link.and_then(|link| link.connection.as_ref());
        PeerState {
            medium: link.map_or(LinkMedium::Tcp, |link| link.medium),
            stays: link.and_then(|link| link.stays.clone()),
            is_connected: connection.is_some(),
            features: connection.and_then(ClientConnection::peer_features),
            status: connection.and_then(ClientConnection::peer_status).cloned(),
        }
    }

    pub(super) fn peer_proven(&mut self, slot: usize, name: Option<&PeerName>) {
        let link = &mut self.outgoing.peers[slot];
        let checked = name.map_or(Ok(()), |name| link.peer.check_name(name));
        let peer = link.peer.address();
        match &checked {
            Ok(()) => tracing::debug!(peer, name = name.map(PeerName::to_string), "certificate"),
            Err(error) => tracing::warn!(peer, %error, "the peer is not called"),
        }
        link.certificate = Some(checked);
    }

    pub(super) fn peer_migrated(&mut self, slot: usize, medium: MediumKind) {
        self.place_peer(slot, medium.into());
        let peer = &mut self.outgoing.peers[slot];
        if let Some(connection) = &mut peer.connection {
            connection.set_lends(medium == MediumKind::SharedMemory);
        }
        tracing::debug!(peer = peer.peer.address(), %medium, "the connection migrated");
    }

    /// Lets what follows be counted for the peer and this medium.
    fn place_peer(&mut self, slot: usize, medium: LinkMedium) {
        let peer = &mut self.outgoing.peers[slot];
        self.call_table.count_traffic(peer.place, &mut peer.traffic);
        let join = || (self.shared.counted_peers).join(CallSide::Client, peer.peer.address());
        let counted = peer.counted.get_or_insert_with(join);
        peer.place = self.call_table.place(counted, medium);
        peer.medium = medium;
    }

    /// What the shard has counted of its calls and links.
    pub(super) fn count_calls(&mut self) -> ShardCalls {
        for peer in &mut self.outgoing.peers {
            self.call_table.count_traffic(peer.place, &mut peer.traffic);
        }
        for server in self.incoming.servers.values_mut() {
            server.count_traffic(&mut self.call_table);
        }
        self.call_table.snapshot(self.index)
    }

    pub(super) fn peer_declined(&mut self, slot: usize, reason: &str) {
        let peer = &mut self.outgoing.peers[slot];
        let is_news = peer.stays.as_deref() != Some(reason);
        if is_news {
            tracing::info!(
                peer = peer.peer.address(),
                reason,
                "the connection stays on TCP"
            );
            peer.stays = Some(reason.to_owned());
        }
    }

    pub(super) fn peer_failed_over(&mut self, slot: usize) {
        self.outgoing.peers[slot].redials = true;
    }

    /// Closes the connection at the end of the turn; the link then says so, and calls on it end.
    pub(super) fn disconnect_peer(&mut self, peer: &Peer) {
        let Some(slot) = self.outgoing.find(peer) else {
            return;
        };
        let peer = &mut self.outgoing.peers[slot];
        if let Some(link) = peer.link {
            // The link may need some turns to close, and later calls belong to the next one.
            peer.channel.handle_leaving();
            self.depart(link, Why::Asked);
        }
    }

    pub(super) fn admit(
        &mut self,
        slot: usize,
        waiting: WaitingCall,
        timeout: Option<std::time::Duration>,
    ) {
        match self.outgoing.peers[slot]
            .channel
            .admit(self.now, waiting, timeout)
        {
            Admission::SendNow(waiting) => self.dispatch_call(slot, waiting),
            Admission::Waiting => self.mark_peer(slot),
            Admission::Refused(rejected) => {
                self.finish_call(rejected.value.call, Err(rejected.status));
            }
        }
    }

    /// Notes that a peer has something to do before the turn ends.
    pub(super) fn mark_peer(&mut self, slot: usize) {
        self.outgoing.mark(slot);
    }

    pub(super) fn peer_connected(&mut self, slot: usize) -> Next {
        self.place_peer(slot, LinkMedium::Tcp);
        // What comes was asked for, so it may fill the arena.
        let limits = self.limits.with(|changed| changed.arena_bytes = u64::MAX);
        let peer = &mut self.outgoing.peers[slot];
        let credentials = self.shared.authority.credentials(peer.dialled);
        let certificate = peer.certificate.take();
        // Only where there are certificates can the server tell whether it is true.
        let claim = certificate.as_ref().and(self.shared.task.claim());
        let connection = ClientConnection::of_task(limits, self.announce, credentials, claim);
        let order = connection.first_order();
        peer.connection = Some(connection);
        peer.pace = Pace::default();
        peer.candidates.clear();
        peer.channel.handle_connected();
        tracing::debug!(peer = peer.peer.address(), "connected");
        if let Some(Err(other)) = certificate
            && let (Some(connection), Some(link)) = (&mut peer.connection, peer.link)
        {
            let why = Unproven::OtherTask(other);
            connection.distrust(why.clone());
            self.condemn(link, PeerViolation::Unproven(why));
        }
        self.mark_peer(slot);
        order
    }

    pub(super) fn peer_received(
        &mut self,
        slot: usize,
        bytes: &[u8],
    ) -> Option<Result<Progress, PeerViolation>> {
        let mut landings = CallLandings {
            arena: &mut self.arena,
            calls: &self.outgoing.calls,
        };
        let peer = &mut self.outgoing.peers[slot];
        let connection = peer.connection.as_mut()?;
        let progress = connection.handle_received(self.now, bytes, &mut landings);
        if let Ok(Progress {
            consumed_bytes,
            next,
        }) = &progress
        {
            peer.traffic.take(*consumed_bytes, next);
        }
        self.mark_peer(slot);
        Some(progress)
    }

    pub(super) fn peer_landed(
        &mut self,
        slot: usize,
        landing: Landing,
    ) -> Option<Result<Next, PeerViolation>> {
        let mut landings = CallLandings {
            arena: &mut self.arena,
            calls: &self.outgoing.calls,
        };
        let peer = &mut self.outgoing.peers[slot];
        let connection = peer.connection.as_mut()?;
        let unordered_bytes = landing.replaced_beyond_bytes();
        let next = connection.handle_landed(self.now, landing, &mut landings);
        if let Ok(next) = &next {
            peer.traffic.take(unordered_bytes, next);
        }
        self.mark_peer(slot);
        Some(next)
    }

    pub(super) fn peer_sent(&mut self, slot: usize, frame: Box<Frame>, outcome: Outcome) {
        let peer = &mut self.outgoing.peers[slot];
        if let Some(connection) = &mut peer.connection {
            if outcome == Outcome::Done {
                peer.traffic.sent_bytes += frame.len_bytes();
            }
            connection.handle_sent(frame, outcome);
            self.mark_peer(slot);
        }
    }

    pub(super) fn peer_closed(&mut self, slot: usize, reason: &CloseReason) {
        let peer = &mut self.outgoing.peers[slot];
        peer.link = None;
        if peer.connection.is_none() && !peer.candidates.is_empty() {
            tracing::debug!(peer = peer.peer.address(), %reason, "not reached at one address");
            return self.mark_peer(slot);
        }
        if let Some(connection) = &mut peer.connection {
            tracing::info!(peer = peer.peer.address(), %reason, "connection lost");
            self.shared.counters[self.index].links_lost.add(1);
            let status = peer.parting.take().unwrap_or_else(|| {
                distrusted(peer.peer.address(), reason).unwrap_or_else(|| {
                    let text = format!(
                        "the connection to {} was lost: {reason}",
                        peer.peer.address()
                    );
                    Status::new(Code::Unavailable, text).because(Reason::ConnectionLost)
                })
            });
            connection.handle_closed(&status);
        }
        let _ = self.drop_connection(slot, &reason.to_string());
        let peer = &mut self.outgoing.peers[slot];
        if let Some(status) = distrusted(peer.peer.address(), reason) {
            tracing::warn!(peer = peer.peer.address(), %reason, "the peer cannot be called");
            peer.channel.refuse(status);
        }
    }

    /// Takes the connection from a peer that is left, whose calls have ended.
    pub(super) fn detach_peer(&mut self, slot: usize, reason: &str) -> Option<ClientConnection> {
        let peer = &mut self.outgoing.peers[slot];
        tracing::info!(peer = peer.peer.address(), reason, "leaving a connection");
        self.shared.counters[self.index].links_lost.add(1);
        peer.link = None;
        self.drop_connection(slot, reason)
    }

    /// Hands out the last results of a connection, and lets later calls dial.
    fn drop_connection(&mut self, slot: usize, reason: &str) -> Option<ClientConnection> {
        self.drain_results(slot);
        let peer = &mut self.outgoing.peers[slot];
        let connection = peer.connection.take();
        self.call_table.count_traffic(peer.place, &mut peer.traffic);
        peer.counted = None;
        peer.place = CallPlace::NONE;
        peer.medium = LinkMedium::Tcp;
        peer.parting = None;
        peer.channel.handle_closed(self.now, reason);
        if std::mem::take(&mut peer.redials) && self.stop_at.is_none() {
            peer.channel.redial();
        }
        self.mark_peer(slot);
        connection
    }

    pub(super) fn peer_timeout(&mut self, slot: usize, at: Time) {
        let peer = &mut self.outgoing.peers[slot];
        if peer.armed == Some(at) {
            peer.armed = None;
        }
        if let Some(connection) = &mut peer.connection {
            connection.handle_timeout(self.now);
        }
        self.mark_peer(slot);
    }

    /// Carries out what the marked peers' connections have finished.
    pub(super) fn take_results(&mut self) -> usize {
        let mut events = 0;
        let mut index = 0;
        while let Some(&slot) = self.outgoing.dirty.get(index) {
            events += self.drain_results(slot);
            index += 1;
        }
        events
    }

    pub(super) fn flush_peers<T: Transport<Accepted = A>>(&mut self, transport: &mut T) -> usize {
        let mut events = 0;
        // What is marked on the way has to be looked at by the other stages first.
        let count = self.outgoing.dirty.len();
        for index in 0..count {
            let slot = self.outgoing.dirty[index];
            self.outgoing.peers[slot].is_dirty = false;
            events += self.drive_channel(slot, transport);
            events += self.flush_peer(slot, transport);
            let peer = &mut self.outgoing.peers[slot];
            let timeout = peer.timeout();
            self.timers
                .arm(Subject::Peer(slot), timeout, &mut peer.armed);
        }
        self.outgoing.dirty.drain(..count);
        events
    }

    fn drain_results(&mut self, slot: usize) -> usize {
        let mut events = self.drain_answers(slot);
        if (self.outgoing.peers[slot].connection.as_ref())
            .is_some_and(ClientConnection::has_stream_news)
        {
            events += self.take_peer_streams(slot);
        }
        while let Some(connection) = &mut self.outgoing.peers[slot].connection
            && let Some(finished) = connection.poll_finished()
        {
            let call = from_token(finished.token);
            if let Some(Entry { target, begun }) = self.outgoing.calls.take(call) {
                self.note_call(self.outgoing.peers[slot].place, begun);
                let _nobody_waits = self.complete(target, finished.result);
            }
            events += 1;
        }
        events
    }

    /// Hands out the small tensors among the results. Calls that began in the same turn are noted
    /// together.
    fn drain_answers(&mut self, slot: usize) -> usize {
        let mut events = 0;
        loop {
            let peer = &mut self.outgoing.peers[slot];
            let Some(connection) = &mut peer.connection else {
                break;
            };
            let Some(answer) = connection.poll_answer() else {
                break;
            };
            events += 1;
            let call = from_token(answer.token());
            if let Some((recipient, begun)) = self.outgoing.calls.take_handler(call) {
                self.call_table.count_answer(begun, peer.place, self.now);
                let Recipient { handler, token } = recipient;
                // Made as the argument that it is: a move waits until its parts are written.
                let blame = Blame::on(A_HANDLER);
                handler.on_tensor(token, answer.take(), &mut self.context());
                blame.lift();
            } else {
                let tensor = answer.take();
                self.finish_received(slot, call, tensor);
            }
        }
        if events > 0 {
            let place = self.outgoing.peers[slot].place;
            self.call_table.end_answers(place, self.now);
        }
        events
    }

    /// Ends a call that is not like most, with the tensor that it was for.
    #[inline(never)]
    fn finish_received(&mut self, slot: usize, call: SlotId, tensor: Tensor) {
        let Some(Entry { target, begun }) = self.outgoing.calls.take(call) else {
            return;
        };
        self.note_call(self.outgoing.peers[slot].place, begun);
        match target {
            Target::Handler(Recipient { handler, token }) => {
                let blame = Blame::on(A_HANDLER);
                handler.on_tensor(token, tensor, &mut self.context());
                blame.lift();
            }
            Target::Future(_) | Target::Nobody => {
                let result = Ok(Response::from(tensor));
                let _nobody_waits = target.complete(result, &mut self.context());
            }
        }
    }

    fn drive_channel<T: Transport<Accepted = A>>(
        &mut self,
        slot: usize,
        transport: &mut T,
    ) -> usize {
        let mut events = 0;
        while let Some(action) = self.outgoing.peers[slot].channel.poll_action(self.now) {
            events += 1;
            match action {
                Action::Dial => self.dial(slot),
                Action::Release(waiting) => self.dispatch_call(slot, waiting),
                Action::Fail(waiting, status) => self.finish_call(waiting.call, Err(status)),
            }
        }
        events + self.dial_next(slot, transport)
    }

    fn flush_peer<T: Transport<Accepted = A>>(&mut self, slot: usize, transport: &mut T) -> usize {
        let mut events = 0;
        let peer = &mut self.outgoing.peers[slot];
        let (Some(link), Some(connection)) = (peer.link, &mut peer.connection) else {
            return 0;
        };
        if let Some(offer) = connection.take_offer() {
            transport.upgrade(link, &offer);
        }
        while let Some(frame) = connection.poll_frame() {
            if let Err(refused) = transport.send(link, frame) {
                connection.unpoll_frame(refused.value);
                break;
            }
            events += 1;
        }
        events
    }
}

/// What callers hear if one end does not accept the certificate of the other.
fn distrusted(address: &str, reason: &CloseReason) -> Option<Status> {
    let CloseReason::Untrusted(error) = reason else {
        return None;
    };
    let text = format!("{address} was not called, for a certificate: {error}");
    Some(Status::new(Code::Unauthenticated, text).because(Reason::Unproven))
}
