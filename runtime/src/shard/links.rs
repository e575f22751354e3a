use std::net::SocketAddr;

use grpcxx_memory::{Arena, BufferMut};
use grpcxx_rpc::{
    AtHand, HeldTensor, Landings, PeerViolation, Status, TensorMeta, Text, home_shard,
};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    PeerName, Progress, SlotTable,
};

use crate::blame::{Blame, THE_SERVICE};
use crate::command::SlotId;
use crate::function::AtOnce;
use crate::shard::calls::Calls;
use crate::shard::core::{Core, SharedParts};
use crate::shard::keys::KnownKeys;
use crate::shard::leaving::Why;
use crate::shard::servers::ServerLink;
use crate::shard::steps::Steps;
use crate::shard::windows;

/// Who uses which link.
#[derive(Debug, Default)]
pub(super) struct Links {
    owners: Vec<Option<(LinkId, Owner)>>,
    count: usize,
}

/// The user of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A peer that calls us.
    Server(SlotId),
    /// A peer that we call, by its slot.
    Peer(usize),
    /// Nobody any more; what the peer still sends is taken.
    Leaving(SlotId),
}

impl Links {
    pub(super) fn set(&mut self, link: LinkId, owner: Owner) {
        let slot = link.slot as usize;
        if self.owners.len() <= slot {
            self.owners.resize(slot + 1, None);
        }
        debug_assert!(self.owners[slot].is_none(), "a link has one owner");
        self.owners[slot] = Some((link, owner));
        self.count += 1;
    }

    pub(super) fn owner(&self, link: LinkId) -> Option<Owner> {
        match self.owners.get(link.slot as usize) {
            Some(Some((id, owner))) if *id == link => Some(*owner),
            _ => None,
        }
    }

    /// Gives a link another user.
    pub(super) fn hand_over(&mut self, link: LinkId, owner: Owner) {
        if let Some(Some((id, former))) = self.owners.get_mut(link.slot as usize)
            && *id == link
        {
            *former = owner;
        }
    }

    pub(super) fn remove(&mut self, link: LinkId) -> Option<Owner> {
        let owner = self.owner(link)?;
        self.owners[link.slot as usize] = None;
        self.count -= 1;
        Some(owner)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LinkId, Owner)> {
        self.owners.iter().flatten().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Slots of links, used or not.
    pub(super) fn slots(&self) -> usize {
        self.owners.len()
    }

    /// The link in a slot, and its user.
    pub(super) fn at(&self, slot: usize) -> Option<(LinkId, Owner)> {
        *self.owners.get(slot)?
    }
}

impl<A> LinkHandler<A> for Core<A> {
    fn accepted(&mut self, _listener: ListenerId, peer: SocketAddr, accepted: A) {
        tracing::debug!(%peer, "connection accepted");
        if !self.is_stopping() && self.shared.authority.admits(peer) {
            self.counters().accepted.add(1);
            self.newcomer(peer, accepted);
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
            Owner::Server(id) => Some(self.servers.find(id)?.peer.to_string()),
            Owner::Peer(slot) => Some(self.peers[slot].peer.address().to_owned()),
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

/// Lands everything in the arena, and knows which tensors are there.
pub(super) struct ArenaLandings<'a> {
    arena: &'a mut Arena,
    keys: &'a mut KnownKeys,
    steps: &'a mut Steps,
    shared: &'a SharedParts,
    /// Unless the shard stops.
    shard: Option<usize>,
    /// Requests whose tensor was there.
    pub(super) answered: u64,
}

impl<'a> ArenaLandings<'a> {
    /// The landings of a shard, and its connections from peers.
    #[inline]
    pub(super) fn of<A>(core: &'a mut Core<A>) -> (Self, &'a mut SlotTable<ServerLink>) {
        let shard = (!core.is_stopping()).then_some(core.index);
        let landings = Self {
            arena: &mut core.arena,
            keys: &mut core.known_keys,
            steps: &mut core.steps,
            shared: &core.shared,
            shard,
            answered: 0,
        };
        (landings, &mut core.servers)
    }

    /// Drops tensors that were held for answers which no longer need them.
    pub(super) fn release(&mut self, held: impl Iterator<Item = HeldTensor>) {
        self.steps.release(held);
    }
}

impl Landings for ArenaLandings<'_> {
    fn tensor(
        &mut self,
        _token: u64,
        _index: usize,
        meta: &TensorMeta,
        there_bytes: usize,
    ) -> Result<BufferMut, Status> {
        windows::begin(self.arena, meta.data_bytes, there_bytes)
    }

    fn message(&mut self, len: usize, there_bytes: usize) -> Result<BufferMut, Status> {
        windows::begin(self.arena, len as u64, there_bytes)
    }

    fn grow(&mut self, memory: BufferMut, whole_len: usize) -> Result<BufferMut, Status> {
        windows::grow(self.arena, memory, whole_len)
    }

    fn block(&mut self, _: u64, _: usize) -> Option<BufferMut> {
        None
    }

    fn known_key(&mut self, bytes: &[u8]) -> Option<Text> {
        self.keys.find(bytes)
    }

    #[inline]
    fn at_hand(&mut self, step_id: i64, key: &Text, data_bytes_max: usize) -> Option<AtHand<'_>> {
        let shard = self.shard?;
        let at_once = match &self.shared.service {
            Some(service) => {
                let blame = Blame::on(THE_SERVICE);
                let at_once = service.at_once(step_id, key);
                blame.lift();
                at_once
            }
            None => AtOnce::Declined,
        };
        let at_hand = match at_once {
            AtOnce::Ask => return None,
            AtOnce::Tensor(tensor) if tensor.data.len() > data_bytes_max => return None,
            AtOnce::Tensor(tensor) => AtHand::Kept(tensor),
            AtOnce::Declined if home_shard(step_id, self.shared.loads.len()) != shard => {
                return None;
            }
            AtOnce::Declined => {
                let key_hash = self.keys.check(key, &self.shared.task).ok()?;
                let (held, tensor) = (self.steps).hold(step_id, key, key_hash, data_bytes_max)?;
                AtHand::Taken(held, tensor)
            }
        };
        self.answered += 1;
        Some(at_hand)
    }
}

/// Lands tensors where the caller wants them, and everything else in the arena.
pub(super) struct CallLandings<'a> {
    pub(super) arena: &'a mut Arena,
    pub(super) calls: &'a Calls,
}

impl Landings for CallLandings<'_> {
    fn tensor(
        &mut self,
        token: u64,
        index: usize,
        meta: &TensorMeta,
        there_bytes: usize,
    ) -> Result<BufferMut, Status> {
        match self.calls.allocate(token, index, meta) {
            Some(memory) => memory,
            None => windows::begin(self.arena, meta.data_bytes, there_bytes),
        }
    }

    fn block(&mut self, token: u64, len: usize) -> Option<BufferMut> {
        if self.calls.allocates(token) {
            return None;
        }
        self.arena.allocate(len).ok()
    }

    fn message(&mut self, len: usize, there_bytes: usize) -> Result<BufferMut, Status> {
        windows::begin(self.arena, len as u64, there_bytes)
    }

    fn grow(&mut self, memory: BufferMut, whole_len: usize) -> Result<BufferMut, Status> {
        windows::grow(self.arena, memory, whole_len)
    }

    fn known_key(&mut self, _: &[u8]) -> Option<Text> {
        None
    }

    fn at_hand(&mut self, _: i64, _: &Text, _: usize) -> Option<AtHand<'_>> {
        None
    }
}

fn ignore(bytes: &[u8]) -> Progress {
    Progress {
        consumed_bytes: bytes.len(),
        next: Next::Pause,
    }
}
