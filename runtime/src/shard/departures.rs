//! How a shard leaves connections, by the rules of [`leaving`](super::leaving).

use grpcxx_rpc::Features;
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkId, Next, Outcome, Progress, SlotId, Time, Transport,
};

use crate::shard::core::Core;
use crate::shard::landings::CallLandings;
use crate::shard::leaving::{Leaving, Left, Progressed, User, Why};
use crate::shard::links::Owner;
use crate::shard::timers::Subject;

/// Whether a peer has said that it is none that must be left with care.
fn announces(features: Option<Features>) -> bool {
    features.is_some_and(|features| !features.is_empty())
}

impl<A> Core<A> {
    /// Leaves a connection before the turn is over.
    pub(super) fn depart(&mut self, link: LinkId, why: Why) {
        self.departures.due.push((link, why));
    }

    /// Whether nothing that comes on a link is read any more.
    #[inline]
    pub(super) fn is_departing(&self, link: LinkId) -> bool {
        !self.departures.due.is_empty()
            && self.departures.due.iter().any(|(other, _)| *other == link)
    }

    /// Carries out what the turn has brought. Returns the number of events.
    pub(super) fn part<T: Transport<Accepted = A>>(&mut self, transport: &mut T) -> usize {
        let mut events = 0;
        while let Some((link, why)) = self.departures.due.pop() {
            self.leave(link, why, transport);
            events += 1;
        }
        while let Some(id) = self.departures.heard.pop() {
            self.look_at_leaving(id, transport);
            events += 1;
        }
        events
    }

    /// Whether connections are still taking what their peers send.
    pub(super) fn is_leaving(&self) -> bool {
        !self.departures.leaving.is_empty()
    }

    pub(super) fn leave<T: Transport<Accepted = A>>(
        &mut self,
        link: LinkId,
        why: Why,
        transport: &mut T,
    ) {
        let peer = self.peer_of(link);
        let left = match self.links.owner(link) {
            Some(Owner::Peer(slot)) => self.leave_peer(slot, &why),
            Some(Owner::Server(id)) => self.leave_client_of(id, &why),
            Some(Owner::Leaving(_)) | None => return,
        };
        let Some(Left { user, owes }) = left else {
            return transport.close(link, why.flushes());
        };
        let leaving = Leaving {
            link,
            peer,
            user,
            until: self.now + self.departures.limits.time,
            heard: (!owes).then_some(self.now),
            bytes_left: self.departures.limits.bytes,
            is_closing: false,
            armed: None,
        };
        let Ok(id) = self.departures.leaving.insert(leaving) else {
            return transport.close(link, false);
        };
        self.links.hand_over(link, Owner::Leaving(id));
        transport.end_stream(link);
        // A link that was paused, for its peer broke the protocol or asked for too much at once,
        // goes on.
        let _ = transport.resume(link, Next::Head { at_least_bytes: 1 });
        self.look_at_leaving(id, transport);
    }

    /// Takes the connection from a peer that we call, if it has announced nothing. Its calls end;
    /// others connect anew.
    fn leave_peer(&mut self, slot: usize, why: &Why) -> Option<Left> {
        let peer = &mut self.outgoing.peers[slot];
        let status = why.status(peer.address());
        if announces(peer.features()) {
            peer.parts_with(status);
            return None;
        }
        let connection = peer.connection_mut()?;
        let is_readable = !matches!(why, Why::Violation(_));
        // The call whose answer cannot be read is one of them.
        let owes = is_readable || connection.outstanding_calls() > 1;
        if is_readable {
            connection.leave(&status);
        } else {
            connection.handle_closed(&status);
        }
        let connection = self.detach_peer(slot, &status.message);
        let connection = connection.filter(|_| is_readable).map(Box::new);
        Some(Left {
            user: User::Client(connection),
            owes,
        })
    }

    /// Takes the connection from a peer that calls us, if it has announced nothing. Its requests
    /// are withdrawn.
    fn leave_client_of(&mut self, id: SlotId, why: &Why) -> Option<Left> {
        let server = self.incoming.servers.find(id)?;
        if announces(server.connection.peer_features()) {
            return None;
        }
        self.withdraw_requests(id, &why.status("a peer"));
        Some(Left {
            user: User::Server(id),
            owes: false,
        })
    }

    /// Does what the state of a connection that leaves asks for.
    fn look_at_leaving<T: Transport<Accepted = A>>(&mut self, id: SlotId, transport: &mut T) {
        let (now, limits) = (self.now, self.departures.limits);
        let Some(leaving) = self.departures.leaving.find_mut(id) else {
            return;
        };
        match leaving.progressed(now, &limits) {
            Progressed::Going { next } => {
                (self.timers).arm(Subject::Leaving(id), Some(next), &mut leaving.armed);
            }
            Progressed::Done => {
                leaving.is_closing = true;
                let until = Some(leaving.until);
                (self.timers).arm(Subject::Leaving(id), until, &mut leaving.armed);
                transport.close(leaving.link, true);
            }
            Progressed::Over(what) => {
                tracing::warn!(
                    peer = leaving.peer,
                    what,
                    "leaving a peer that may still send: an original may stop sending to everybody"
                );
                transport.close(leaving.link, false);
            }
        }
    }

    pub(super) fn leaving_timeout<T: Transport<Accepted = A>>(
        &mut self,
        id: SlotId,
        at: Time,
        transport: &mut T,
    ) {
        if let Some(leaving) = self.departures.leaving.find_mut(id)
            && leaving.armed == Some(at)
        {
            leaving.armed = None;
        }
        self.look_at_leaving(id, transport);
    }

    pub(super) fn leaving_received(&mut self, id: SlotId, bytes: &[u8]) -> Progress {
        let all = Progress {
            consumed_bytes: bytes.len(),
            next: Next::Head { at_least_bytes: 1 },
        };
        let Some(leaving) = self.departures.leaving.find_mut(id) else {
            return all;
        };
        self.departures.heard.push(id);
        if let Some(heard) = &mut leaving.heard {
            *heard = self.now;
        }
        if let User::Client(Some(connection)) = &mut leaving.user {
            let mut landings = CallLandings {
                arena: &mut self.arena,
                calls: &self.outgoing.calls,
            };
            match connection.handle_received(self.now, bytes, &mut landings) {
                Ok(progress) => return progress,
                Err(violation) => {
                    tracing::debug!(%violation, "the last answers of a peer cannot be read");
                    leaving.user = User::Client(None);
                }
            }
        }
        leaving.bytes_left = leaving.bytes_left.saturating_sub(bytes.len() as u64);
        all
    }

    pub(super) fn leaving_landed(
        &mut self,
        id: SlotId,
        landing: Landing,
        outcome: Outcome,
    ) -> Next {
        let head = Next::Head { at_least_bytes: 1 };
        let Some(leaving) = self.departures.leaving.find_mut(id) else {
            return head;
        };
        self.departures.heard.push(id);
        let User::Client(Some(connection)) = &mut leaving.user else {
            return head;
        };
        let mut landings = CallLandings {
            arena: &mut self.arena,
            calls: &self.outgoing.calls,
        };
        let next = match outcome {
            Outcome::Done => connection
                .handle_landed(self.now, landing, &mut landings)
                .ok(),
            Outcome::Lost => connection.handle_landing_dropped().then_some(head),
        };
        match next {
            Some(next) => next,
            None => {
                leaving.user = User::Client(None);
                Next::Head { at_least_bytes: 1 }
            }
        }
    }

    pub(super) fn leaving_sent(&mut self, id: SlotId, frame: Box<Frame>, outcome: Outcome) {
        match self
            .departures
            .leaving
            .find_mut(id)
            .map(|leaving| &mut leaving.user)
        {
            Some(User::Client(Some(connection))) => connection.handle_sent(frame, outcome),
            Some(User::Server(server)) => {
                let server = *server;
                self.server_sent(server, frame, outcome);
            }
            Some(User::Client(None)) | None => {}
        }
    }

    pub(super) fn leaving_closed(&mut self, id: SlotId, reason: &CloseReason) {
        if let Some(Leaving {
            user: User::Server(server),
            ..
        }) = self.departures.leaving.remove(id)
        {
            self.server_closed(server, reason);
        }
    }
}
