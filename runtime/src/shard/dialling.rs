//! The way from a channel that wants a connection to a link: addresses are looked up, then dialled
//! one after the other.

use std::sync::Arc;

use grpcxx_transport::Transport;

use crate::client::{Found, Host};
use crate::command::Command;
use crate::shard::core::Core;
use crate::shard::links::Owner;

impl<A> Core<A> {
    /// Begins a dial. Its end is told to the channel.
    pub(super) fn dial(&mut self, slot: usize) {
        let peer = &mut self.outgoing.peers[slot];
        if self.has_ended {
            peer.channel
                .handle_closed(self.now, "the engine has stopped");
            return;
        }
        match peer.peer.host() {
            Host::Address(address) => peer.candidates.push_back(*address),
            Host::Name { host, port } => {
                let (shard, mailboxes) = (self.index, Arc::clone(&self.shared.mailboxes));
                let tell = move |found| {
                    mailboxes.deliver(shard, Command::Resolved { slot, found });
                };
                self.shared.lookups.begin(host, *port, Box::new(tell));
            }
        }
    }

    /// Goes on with a dial whose name was looked up.
    pub(super) fn peer_resolved(&mut self, slot: usize, found: Found) {
        let peer = &mut self.outgoing.peers[slot];
        match found {
            Ok(addresses) => {
                tracing::debug!(peer = peer.peer.address(), ?addresses, "looked up");
                peer.candidates
                    .extend(addresses.into_iter().take(ADDRESSES_MAX));
            }
            Err(reason) => {
                let reason = format!("the host was not found: {reason}");
                peer.channel.handle_closed(self.now, &reason);
            }
        }
        self.mark_peer(slot);
    }

    /// Dials the next address, if the dial has come to that.
    pub(super) fn dial_next<T: Transport<Accepted = A>>(
        &mut self,
        slot: usize,
        transport: &mut T,
    ) -> usize {
        let peer = &mut self.outgoing.peers[slot];
        if peer.link.is_some() {
            return 0;
        }
        let mut events = 0;
        while let Some(address) = peer.candidates.pop_front() {
            events += 1;
            if self.has_ended {
                peer.candidates.clear();
                peer.channel
                    .handle_closed(self.now, "the engine has stopped");
                return events;
            }
            peer.dialled = Some(address);
            match transport.connect(address) {
                Ok(link) => {
                    peer.link = Some(link);
                    self.links.set(link, Owner::Peer(slot));
                    return events;
                }
                Err(error) if peer.candidates.is_empty() => {
                    peer.channel.handle_closed(self.now, &error.to_string());
                }
                Err(error) => {
                    tracing::debug!(peer = peer.peer.address(), %address, %error, "not dialled");
                }
            }
        }
        events
    }
}

/// Most addresses of a name that one dial tries.
const ADDRESSES_MAX: usize = 16;
