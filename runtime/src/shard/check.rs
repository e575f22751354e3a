//! What holds between the parts of a shard behind each turn, as builds for tests check it.
//!
//! A part that is wrong about another one loses a wake-up or an answer much later and somewhere
//! else; here it is told at the turn that made it so. Nothing is allocated for it, since tests
//! count what turns allocate.

use grpcxx_transport::Time;

use crate::shard::core::Core;
use crate::shard::in_flight::Stage;
use crate::shard::links::Owner;
use crate::shard::timers::Subject;

impl<A> Core<A> {
    /// Panics where parts contradict each other.
    pub(super) fn check(&self) {
        let in_flight = self.outgoing.calls.len();
        if self.links.slots() > LINKS_MAX || in_flight > CALLS_MAX {
            return;
        }
        self.check_links();
        self.check_servers();
        self.check_peers();
        self.check_calls();
    }

    /// Each link is used by who has it.
    fn check_links(&self) {
        for (link, owner) in self.links.iter() {
            let used = match owner {
                Owner::Server(id) => self.incoming.servers.find(id).map(|server| server.link),
                Owner::Peer(slot) => self.outgoing.peers.get(slot).and_then(|peer| peer.link),
                Owner::Leaving(id) => self.departures.leaving.find(id).map(|leaving| leaving.link),
            };
            assert_eq!(used, Some(link), "the link of {owner:?}");
        }
    }

    /// Connections of peers have their link, are listed where they have something to do, wait with
    /// requests that have no answer, and are looked at when they want to be.
    fn check_servers(&self) {
        let dirty = &self.incoming.dirty;
        for (id, server) in self.incoming.servers.iter() {
            let owner = self.links.owner(server.link);
            assert!(
                matches!(owner, Some(Owner::Leaving(_))) || owner == Some(Owner::Server(id)),
                "{owner:?} has the link of server {id:?}"
            );
            assert_eq!(server.is_marked(), dirty.contains(&id), "server {id:?}");
            for request in server.waits.requests() {
                assert!(
                    server.connection.is_outstanding(request),
                    "{request:?} of server {id:?} waits, and nobody waits for its answer"
                );
            }
            self.check_timer(Subject::Server(id), server.armed());
        }
    }

    /// Peers that are called have a link where they have a connection, are listed where they have
    /// something to do, and are looked at when they want to be.
    fn check_peers(&self) {
        let dirty = &self.outgoing.dirty;
        for (slot, peer) in self.outgoing.peers.iter().enumerate() {
            let address = peer.address();
            if let Some(link) = peer.link {
                assert_eq!(self.links.owner(link), Some(Owner::Peer(slot)), "{address}");
            }
            assert!(
                peer.connection.is_none() || peer.link.is_some(),
                "{address}"
            );
            assert_eq!(peer.is_dirty, dirty.contains(&slot), "{address}");
            self.check_timer(Subject::Peer(slot), peer.armed);
        }
    }

    /// Calls are where their stage says that they are.
    fn check_calls(&self) {
        self.outgoing.calls.check();
        for (call, stage) in self.outgoing.calls.stages() {
            let peer_of = |peer: u32| self.outgoing.peers.get(peer as usize);
            match stage {
                Stage::Waiting { peer } => assert!(peer_of(peer).is_some(), "{call:?}"),
                Stage::OnLink { peer, .. } => {
                    let is_connected = peer_of(peer).is_some_and(|peer| peer.connection.is_some());
                    assert!(is_connected, "{call:?} is on a link that is gone");
                }
                Stage::Local { .. } => {}
            }
        }
    }

    /// What wants to be looked at is in the list of those that will be.
    fn check_timer(&self, subject: Subject, at: Option<Time>) {
        let is_noted = |at| self.timers.iter().any(|noted| noted == (at, subject));
        assert!(at.is_none_or(is_noted), "{subject:?} at {at:?}");
    }
}

/// A shard with more than these would do little else.
const LINKS_MAX: usize = 64;
const CALLS_MAX: usize = 1024;
