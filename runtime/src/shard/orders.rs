//! Orders of code that runs on a shard, as the shard takes them.

use std::time::Duration;

use grpcxx_rpc::{CallOptions, Request};
use grpcxx_transport::Time;

use crate::client::Peer;
use crate::command::{Command, deadline};
use crate::completion::Target;
use crate::shard::calls::token;
use crate::shard::context::Orders;
use crate::shard::core::Core;

impl<A> Orders for Core<A> {
    fn index(&self) -> usize {
        self.index
    }

    fn now(&self) -> Time {
        self.now
    }

    fn shards(&self) -> usize {
        self.shared.loads.len()
    }

    /// Puts the call on its peer's connection where nothing can come between, which saves its way through the queue
    /// of orders. What might end it here and now waits there, for its caller has not returned yet.
    #[inline]
    fn call(&mut self, peer: &Peer, request: Request, timeout: Option<Duration>, target: Target) {
        let Some(slot) = self.open_peer(peer) else {
            return self.local.call(peer, request, timeout, target);
        };
        let deadline = deadline(self.now, timeout);
        let options = CallOptions {
            token: token(self.calls.next()),
            deadline,
            shares_memory: !target.allocates(),
        };
        let connection = self.peers[slot].connection_mut();
        let connection = connection.expect("an open peer has a connection");
        let call = match connection.call(self.now, request, options) {
            Ok(call) => call,
            Err(refused) => return self.local.call(peer, refused.value, timeout, target),
        };
        self.calls.take_in(target, slot, call);
        self.counters().calls.add(1);
        self.mark_peer(slot);
    }

    fn order(&mut self, command: Command) {
        self.local.push_back(command);
    }
}

impl<A> Core<A> {
    /// The slot of a peer to whose connection a call may go at once: there is nothing that has to be done before.
    #[inline]
    fn open_peer(&self, peer: &Peer) -> Option<usize> {
        let is_free = self.local.is_empty() && !self.is_stopping() && !self.calls.is_full();
        if !is_free || peer.shard() != self.index || peer.is_self() {
            return None;
        }
        let slot = self.find_peer(peer)?;
        self.peers[slot].is_open().then_some(slot)
    }
}
