//! Orders of code that runs on a shard, as the shard takes them.

use std::time::Duration;

use grpcxx_rpc::{CallOptions, Request, Text};
use grpcxx_transport::Time;

use crate::client::Peer;
use crate::command::{Command, deadline};
use crate::completion::Recipient;
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

    #[inline]
    fn call(
        &mut self,
        peer: &Peer,
        request: Request,
        timeout: Option<Duration>,
        recipient: Recipient,
    ) {
        match &request {
            Request::RecvTensor { step_id, key } => {
                let shares_memory = !recipient.allocates();
                self.receive_from(peer, *step_id, key, timeout, recipient, shares_memory);
            }
            _ => self.call_alone(peer, request, timeout, recipient),
        }
    }

    #[inline]
    fn receive_from(
        &mut self,
        peer: &Peer,
        step_id: i64,
        key: &Text,
        timeout: Option<Duration>,
        recipient: Recipient,
        shares_memory: bool,
    ) {
        match timeout {
            // As a way of its own, on which nothing looks for a deadline.
            None => self.ask(peer, step_id, key, None, recipient, shares_memory),
            Some(_) => self.ask_in_time(peer, step_id, key, timeout, recipient, shares_memory),
        }
    }

    fn order(&mut self, command: Command) {
        self.local.push_back(command);
    }
}

impl<A> Core<A> {
    /// Puts a request for one tensor on its peer's connection where nothing can come between, which saves its way through
    /// the queue of orders. What might end it here and now waits there, for its caller has not returned yet.
    #[inline(always)]
    fn ask(
        &mut self,
        peer: &Peer,
        step_id: i64,
        key: &Text,
        timeout: Option<Duration>,
        recipient: Recipient,
        shares_memory: bool,
    ) {
        if let Some(slot) = self.free_peer(peer)
            && let link = &mut self.peers[slot]
            && let Some(connection) = link.open_connection()
            && connection.takes_receives()
            && timeout.is_none_or(|timeout| !timeout.is_zero())
            && let Some(room) = self.calls.room()
        {
            let options = CallOptions {
                token: room.token(),
                deadline: deadline(self.now, timeout),
                shares_memory,
            };
            connection.receive(self.now, step_id, key, options);
            room.fill(recipient);
            link.mark(slot, &mut self.dirty_peers);
            self.calls.begun += 1;
            return;
        }
        let key = key.clone();
        self.call_alone(
            peer,
            Request::RecvTensor { step_id, key },
            timeout,
            recipient,
        );
    }

    #[inline(never)]
    fn ask_in_time(
        &mut self,
        peer: &Peer,
        step_id: i64,
        key: &Text,
        timeout: Option<Duration>,
        recipient: Recipient,
        shares_memory: bool,
    ) {
        self.ask(peer, step_id, key, timeout, recipient, shares_memory);
    }

    /// The same for any request, most of which have a frame of their own.
    #[inline(never)]
    fn call_alone(
        &mut self,
        peer: &Peer,
        request: Request,
        timeout: Option<Duration>,
        recipient: Recipient,
    ) {
        let Some(slot) = self.free_peer(peer) else {
            return self.local.call(peer, request, timeout, recipient);
        };
        let link = &mut self.peers[slot];
        let (Some(connection), Some(room)) = (link.open_connection(), self.calls.room()) else {
            return self.local.call(peer, request, timeout, recipient);
        };
        let options = CallOptions {
            token: room.token(),
            deadline: deadline(self.now, timeout),
            shares_memory: !recipient.allocates(),
        };
        match connection.call(self.now, request, options) {
            Ok(_call) => {
                room.fill(recipient);
                link.mark(slot, &mut self.dirty_peers);
                self.calls.begun += 1;
            }
            Err(refused) => self.local.call(peer, refused.value, timeout, recipient),
        }
    }

    /// The slot of a peer for whom nothing has to be done before a call to it. Peers of other shards, and the task itself,
    /// have none here.
    #[inline]
    fn free_peer(&self, peer: &Peer) -> Option<usize> {
        if !self.local.is_empty() || self.is_stopping() {
            return None;
        }
        self.find_peer(peer)
    }
}
