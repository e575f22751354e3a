//! What a shard tells of what waits in it. It looks at so much and no more, so that its peers do
//! not wait for a task with much to tell.

use std::time::Duration;

use grpcxx_rpc::{ClientConnection, Features, RequestId, StreamCount};
use grpcxx_transport::Time;

use crate::client::LinkMedium;
use crate::command::{Origin, SlotId, WaitsLong};
use crate::inspection::{
    INSPECTED_ROWS_MAX, InspectedConnection, ParkedTensor, PendingReceive, ShardInspection,
};
use crate::latency::CallSide;
use crate::shard::core::Core;
use crate::shard::outgoing::PeerLink;
use crate::shard::servers::ServerLink;

impl<A> Core<A> {
    /// What waits here, and on which connections the shard works.
    pub(super) fn inspect(&self) -> ShardInspection {
        let mut connections: Vec<InspectedConnection> = Vec::new();
        for (work, found) in self.busiest() {
            connections.push(match found {
                Found::Peer(peer) => inspect_peer(peer),
                Found::Server(id, server) => self.inspect_server(id, server, work),
            });
        }
        ShardInspection {
            shard: self.index,
            receives: self.pending_receives(),
            receives_total: self.steps.waiters(),
            parked: self.parked_tensors(),
            keys_total: self.steps.waiting_keys(),
            parked_bytes: self.steps.stored_bytes(),
            connections,
            connections_total: self.outgoing.peers.len() + self.incoming.servers.len(),
            links: self.links_by_medium(),
            arena: self.arena.statistics(),
            failures: self.failures.tell(self.now),
        }
    }

    /// How many connections each medium carries.
    fn links_by_medium(&self) -> Vec<(LinkMedium, usize)> {
        let connected = (self.outgoing.peers.iter()).filter(|peer| peer.connection.is_some());
        let servers = self.incoming.servers.iter();
        let media = connected
            .map(|peer| peer.medium)
            .chain(servers.map(|(_, server)| server.medium()));
        let mut links: Vec<(LinkMedium, usize)> = Vec::new();
        for medium in media.take(ROWS_LOOKED_AT_MAX) {
            match links.iter_mut().find(|(known, _)| *known == medium) {
                Some((_, count)) => *count += 1,
                None => links.push((medium, 1)),
            }
        }
        links
    }

    /// Says in the log that a request of this shard waits long.
    pub(super) fn log_late(&self, late: &WaitsLong) {
        let peer = match late.origin {
            Origin::Local { .. } => Some("self".to_owned()),
            Origin::Link { server, .. } => {
                let server = self.incoming.servers.find(server);
                server.map(|server| server.peer.to_string())
            }
        };
        // One that is gone meanwhile waits no more.
        if let Some(peer) = peer {
            let key: String = late.key.chars().take(KEY_CHARS_MAX).collect();
            tracing::warn!(
                peer,
                step = late.step_id,
                waited_ms = late.waited.as_millis() as u64,
                "a step waits for a tensor that is not there, under key {key:?}"
            );
        }
    }

    /// The connections with most work under way.
    fn busiest(&self) -> Vec<(usize, Found<'_>)> {
        let peers = self.outgoing.peers.iter().map(|peer| {
            let under_way =
                (peer.connection.as_ref()).map_or(0, ClientConnection::outstanding_calls);
            (under_way + peer.channel.waiting_calls(), Found::Peer(peer))
        });
        let servers = self.incoming.servers.iter().map(|(id, server)| {
            let under_way = server.connection.requests_under_way();
            (under_way, Found::Server(id, server))
        });
        let mut found: Vec<_> = peers.chain(servers).take(ROWS_LOOKED_AT_MAX).collect();
        found.sort_by_key(|(work, _)| std::cmp::Reverse(*work));
        found.truncate(INSPECTED_ROWS_MAX);
        found
    }

    fn inspect_server(&self, id: SlotId, server: &ServerLink, work: usize) -> InspectedConnection {
        let requests = server.connection.outstanding_requests();
        let begun = requests
            .filter_map(|request| server.begun_at(request))
            .min();
        InspectedConnection {
            side: CallSide::Server,
            peer: server.peer.to_string(),
            is_connected: true,
            medium: server.medium(),
            stays: server.stays(self.announce),
            failure: None,
            waiting: 0,
            under_way: work,
            unsent_bytes: server.connection.unsent_bytes(),
            streams: server.connection.stream_count(),
            oldest: begun.map(|begun| self.now.since(begun)),
            name: Some((self.index, id.raw())),
        }
    }

    fn pending_receives(&self) -> Vec<PendingReceive> {
        let mut waiting: Vec<_> = self.steps.waiting().take(ROWS_LOOKED_AT_MAX).collect();
        waiting.sort_by_key(|waiter| waiter.since);
        waiting.truncate(INSPECTED_ROWS_MAX);
        let tell = |waiter: &&super::steps::Waiter| {
            let (peer, asker) = match waiter.origin {
                Origin::Local { .. } => (Some("self".to_owned()), None),
                Origin::Link { shard, server, .. } => {
                    let is_here = usize::from(shard) == self.index;
                    let found = is_here
                        .then(|| self.incoming.servers.find(server))
                        .flatten();
                    let peer = found.map(|server| server.peer.to_string());
                    (peer, Some((usize::from(shard), server.raw())))
                }
            };
            PendingReceive {
                step_id: waiter.step_id,
                key: self.steps.first_missing(waiter),
                keys: waiter.keys.len(),
                age: self.now.since(waiter.since),
                peer,
                asker,
            }
        };
        waiting.iter().map(tell).collect()
    }

    fn parked_tensors(&self) -> Vec<ParkedTensor> {
        let parked = self.steps.parked(ROWS_LOOKED_AT_MAX);
        let tell =
            |(step_id, key, tensor): (i64, &grpcxx_rpc::Text, &grpcxx_rpc::Tensor)| ParkedTensor {
                step_id,
                key: key.clone(),
                bytes: tensor.data.len() as u64,
            };
        parked.take(INSPECTED_ROWS_MAX).map(tell).collect()
    }
}

/// A connection that a shard has.
enum Found<'a> {
    Peer(&'a PeerLink),
    Server(SlotId, &'a ServerLink),
}

fn inspect_peer(peer: &PeerLink) -> InspectedConnection {
    let connection = peer.connection.as_ref();
    InspectedConnection {
        side: CallSide::Client,
        peer: peer.address().to_owned(),
        is_connected: connection.is_some(),
        medium: peer.medium,
        stays: peer.stays.clone(),
        failure: peer.channel.last_failure().map(str::to_owned),
        waiting: peer.channel.waiting_calls(),
        under_way: connection.map_or(0, ClientConnection::outstanding_calls),
        unsent_bytes: 0,
        streams: connection.map_or_else(StreamCount::default, ClientConnection::stream_count),
        oldest: None::<Duration>,
        name: None,
    }
}

impl ServerLink {
    /// Why the connection is on TCP, as far as a task knows that has announced these features.
    fn stays(&self, announced: Features) -> Option<String> {
        if self.medium() != LinkMedium::Tcp {
            return None;
        }
        if let Some(reason) = &self.declined {
            return Some(reason.clone());
        }
        let media = announced & Features::MEDIA;
        let reason = match self.connection.peer_features() {
            _ if media.is_empty() => "this task has no other medium",
            None => "the peer has not said that it knows another medium",
            Some(known) if !known.intersects(media) => {
                "the peer knows no other medium that this task has"
            }
            Some(_) => "the peer has not moved it; ask the peer for its reason",
        };
        Some(reason.to_owned())
    }

    /// When a request has come that was handed out.
    fn begun_at(&self, request: RequestId) -> Option<Time> {
        self.begun.get(request.slot()).map(|begun| begun.at())
    }
}

/// Most letters of a key in the log.
const KEY_CHARS_MAX: usize = 300;

/// Most connections, requests and places of tensors that a shard looks at to tell of them.
const ROWS_LOOKED_AT_MAX: usize = 1 << 16;
