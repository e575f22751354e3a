//! The peers that a shard calls, and its calls under way.

use std::collections::VecDeque;
use std::net::SocketAddr;

use grpcxx_rpc::{Channel, ChannelOptions, ClientConnection, Features, OtherTask, Request, Status};
use grpcxx_transport::{LinkId, Time};

use crate::client::{LinkMedium, Peer};
use crate::command::SlotId;
use crate::latency::{CallPlace, CountedPeer, Traffic};
use crate::shard::in_flight::InFlight;
use crate::shard::pace::Pace;

/// The outgoing side of a shard.
pub(super) struct Outgoing {
    pub(super) peers: Vec<PeerLink>,
    /// The slots of peers by their numbers, which the client gives out one after the other.
    slots: Vec<Option<usize>>,
    /// Peers that have something to do before the turn ends.
    pub(super) dirty: Vec<usize>,
    pub(super) calls: InFlight,
    channel_options: ChannelOptions,
}

/// A task that this shard calls: the road to it, and the connection while there is one.
#[derive(Debug)]
pub(super) struct PeerLink {
    pub(super) peer: Peer,
    pub(super) channel: Channel<WaitingCall>,
    /// Addresses that the dial under way has not tried yet.
    pub(super) candidates: VecDeque<SocketAddr>,
    /// The address that was dialled last.
    pub(super) dialled: Option<SocketAddr>,
    pub(super) link: Option<LinkId>,
    pub(super) connection: Option<ClientConnection>,
    /// What carries the connection.
    pub(super) medium: LinkMedium,
    /// For whom the connection counts.
    pub(super) counted: Option<CountedPeer>,
    /// Where its calls are counted.
    pub(super) place: CallPlace,
    /// What went over it, as far as it is not counted there.
    pub(super) traffic: Traffic,
    /// Why it did not move though it should.
    pub(super) stays: Option<String>,
    /// Why the connection is being closed, if this side does it for a reason that callers should
    /// hear.
    pub(super) parting: Option<Status>,
    /// Whether the connection is to be made anew without waiting for a call, for another medium
    /// will carry it.
    pub(super) redials: bool,
    /// That a certificate has been shown in a handshake, and whether it is that of the task that
    /// was called; taken when the connection begins.
    pub(super) certificate: Option<Result<(), Box<OtherTask>>>,
    pub(super) is_dirty: bool,
    pub(super) armed: Option<Time>,
    pub(super) pace: Pace,
}

impl PeerLink {
    fn new(peer: &Peer, channel_options: ChannelOptions) -> Self {
        Self {
            peer: peer.clone(),
            channel: Channel::new(peer.text(), channel_options),
            candidates: VecDeque::new(),
            dialled: None,
            link: None,
            connection: None,
            medium: LinkMedium::Tcp,
            counted: None,
            place: CallPlace::NONE,
            traffic: Traffic::default(),
            stays: None,
            parting: None,
            redials: false,
            certificate: None,
            is_dirty: false,
            armed: None,
            pace: Pace::default(),
        }
    }

    pub(super) fn connection_mut(&mut self) -> Option<&mut ClientConnection> {
        self.connection.as_mut()
    }

    pub(super) fn address(&self) -> &str {
        self.peer.address()
    }

    /// What the peer has announced on this connection, if it has answered.
    pub(super) fn features(&self) -> Option<Features> {
        (self.connection.as_ref()).and_then(ClientConnection::peer_features)
    }

    /// Says why the connection is being closed.
    pub(super) fn parts_with(&mut self, status: Status) {
        self.parting = Some(status);
    }

    /// The connection, and what was seen of it when the shard looked last.
    pub(super) fn connection_and_pace(&mut self) -> Option<(&ClientConnection, &mut Pace)> {
        Some((self.connection.as_ref()?, &mut self.pace))
    }

    /// The connection, if calls go there without a wait.
    #[inline]
    pub(super) fn open_connection(&mut self) -> Option<&mut ClientConnection> {
        if !self.channel.is_open() {
            return None;
        }
        self.connection.as_mut()
    }

    /// Adds the peer to those that have something to do before the turn ends.
    #[inline]
    pub(super) fn mark(&mut self, slot: usize, dirty: &mut Vec<usize>) {
        if !self.is_dirty {
            self.is_dirty = true;
            dirty.push(slot);
        }
    }

    /// The earliest time at which the channel or the connection wants to be asked.
    pub(super) fn timeout(&self) -> Option<Time> {
        let connection = self
            .connection
            .as_ref()
            .and_then(ClientConnection::poll_timeout);
        [self.channel.poll_timeout(), connection]
            .into_iter()
            .flatten()
            .min()
    }
}

/// A call on its way through a peer's channel.
#[derive(Debug)]
pub(super) struct WaitingCall {
    pub(super) call: SlotId,
    pub(super) request: Request,
    pub(super) deadline: Option<Time>,
}

impl Outgoing {
    pub(super) fn new(channel_options: ChannelOptions) -> Self {
        Self {
            peers: Vec::new(),
            slots: Vec::new(),
            dirty: Vec::new(),
            calls: InFlight::new(),
            channel_options,
        }
    }

    /// The slot of a peer that was called before: one of this shard, and not this engine's own
    /// task.
    #[inline]
    pub(super) fn find(&self, peer: &Peer) -> Option<usize> {
        *self.slots.get(peer.number() as usize)?
    }

    /// The slot of a peer, made at its first call.
    pub(super) fn slot_of(&mut self, peer: &Peer) -> usize {
        if let Some(slot) = self.find(peer) {
            return slot;
        }
        let slot = self.peers.len();
        let number = peer.number() as usize;
        if self.slots.len() <= number {
            self.slots.resize(number + 1, None);
        }
        self.slots[number] = Some(slot);
        self.peers.push(PeerLink::new(peer, self.channel_options));
        slot
    }

    /// Adds a peer to those that have something to do before the turn ends.
    pub(super) fn mark(&mut self, slot: usize) {
        self.peers[slot].mark(slot, &mut self.dirty);
    }
}
