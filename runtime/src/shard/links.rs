//! Who uses which link.

use grpcxx_transport::LinkId;

use crate::command::SlotId;

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
