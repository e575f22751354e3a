//! What links tell a shard, handed to the users of the links.

use std::net::SocketAddr;

use grpcxx_rpc::PeerViolation;
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    PeerName, Progress,
};

use crate::shard::core::Core;
use crate::shard::leaving::Why;
use crate::shard::links::Owner;

impl<A> LinkHandler<A> for Core<A> {
    fn accepted(&mut self, _listener: ListenerId, peer: SocketAddr, accepted: A) {
        tracing::debug!(%peer, "connection accepted");
        if !self.is_stopping() && self.shared.authority.admits(peer) {
            self.counters().accepted.add(1);
            self.accepted(peer, accepted);
        }
    }

    fn connected(&mut self, link: LinkId) -> Next {
        match self.links.owner(link) {
            Some(Owner::Peer(slot)) => self.peer_connected(slot),
            _ => Next::Pause,
        }
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        if self.is_departing(link) {
            return ignore(bytes);
        }
        let progress = match self.links.owner(link) {
            Some(Owner::Server(id)) => self.server_received(id, bytes),
            Some(Owner::Peer(slot)) => self.peer_received(slot, bytes),
            Some(Owner::Leaving(id)) => return self.leaving_received(id, bytes),
            None => None,
        };
        match progress {
            Some(Ok(progress)) => progress,
            Some(Err(violation)) => {
                self.condemn(link, violation);
                ignore(bytes)
            }
            None => ignore(bytes),
        }
    }

    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next {
        if self.is_departing(link) {
            return Next::Pause;
        }
        let owner = self.links.owner(link);
        if outcome == Outcome::Lost && !matches!(owner, Some(Owner::Leaving(_))) {
            return Next::Pause;
        }
        let next = match owner {
            Some(Owner::Server(id)) => self.server_landed(id, landing),
            Some(Owner::Peer(slot)) => self.peer_landed(slot, landing),
            Some(Owner::Leaving(id)) => return self.leaving_landed(id, landing, outcome),
            None => None,
        };
        match next {
            Some(Ok(next)) => next,
            Some(Err(violation)) => {
                self.condemn(link, violation);
                Next::Pause
            }
            None => Next::Pause,
        }
    }

    fn sent(&mut self, link: LinkId, frame: Box<Frame>, outcome: Outcome) {
        match self.links.owner(link) {
            Some(Owner::Server(id)) => self.server_sent(id, frame, outcome),
            Some(Owner::Peer(slot)) => self.peer_sent(slot, frame, outcome),
            Some(Owner::Leaving(id)) => self.leaving_sent(id, frame, outcome),
            None => {}
        }
    }

    fn closed(&mut self, link: LinkId, reason: &CloseReason) {
        match self.links.remove(link) {
            Some(Owner::Server(id)) => self.server_closed(id, reason),
            Some(Owner::Peer(slot)) => self.peer_closed(slot, reason),
            Some(Owner::Leaving(id)) => self.leaving_closed(id, reason),
            None => {}
        }
    }

    fn proven(&mut self, link: LinkId, name: Option<&PeerName>) {
        match self.links.owner(link) {
            Some(Owner::Server(id)) => self.server_proven(id, name),
            Some(Owner::Peer(slot)) => self.peer_proven(slot, name),
            Some(Owner::Leaving(_)) | None => {}
        }
    }

    fn migration(&mut self, link: LinkId, news: Migration<'_>) {
        let owner = self.links.owner(link);
        match news {
            Migration::Migrated(medium) => {
                self.counters().links_moved.add(1);
                match owner {
                    Some(Owner::Peer(slot)) => self.peer_migrated(slot, medium),
                    Some(Owner::Server(id)) => self.server_migrated(id, medium),
                    Some(Owner::Leaving(_)) | None => {}
                }
            }
            Migration::Declined(reason) => {
                self.counters().links_stayed.add(1);
                match owner {
                    Some(Owner::Peer(slot)) => self.peer_declined(slot, reason),
                    Some(Owner::Server(_) | Owner::Leaving(_)) | None => {
                        tracing::info!(
                            peer = self.peer_of(link),
                            reason,
                            "the connection of a peer stays on TCP"
                        );
                        if let Some(Owner::Server(id)) = owner
                            && let Some(server) = self.incoming.servers.find_mut(id)
                        {
                            server.declined = Some(reason.to_owned());
                        }
                    }
                }
            }
            Migration::FailedOver(reason) => {
                self.counters().links_fallen_back.add(1);
                tracing::warn!(
                    peer = self.peer_of(link),
                    reason,
                    "RDMA failed under a connection; the next one begins on TCP"
                );
                if let Some(Owner::Peer(slot)) = owner {
                    self.peer_failed_over(slot);
                }
            }
        }
    }
}

impl<A> Core<A> {
    /// The address of the other end, for the log.
    pub(super) fn peer_of(&self, link: LinkId) -> Option<String> {
        match self.links.owner(link)? {
            Owner::Server(id) => Some(self.incoming.servers.find(id)?.peer.to_string()),
            Owner::Peer(slot) => Some(self.outgoing.peers[slot].peer.address().to_owned()),
            Owner::Leaving(_) => None,
        }
    }

    pub(super) fn condemn(&mut self, link: LinkId, violation: PeerViolation) {
        let peer = self.peer_of(link);
        tracing::warn!(peer, %violation, "closing the connection of a peer that broke the protocol");
        self.counters().violations.add(1);
        self.depart(link, Why::Violation(violation));
    }
}

fn ignore(bytes: &[u8]) -> Progress {
    Progress {
        consumed_bytes: bytes.len(),
        next: Next::Pause,
    }
}
