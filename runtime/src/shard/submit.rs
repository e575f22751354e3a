//! How code that runs on a shard makes calls: on an open connection at once, or as a command.

use std::time::Duration;

use grpcxx_rpc::{CallOptions, ClientConnection, Request, Text};
use grpcxx_transport::Time;

use crate::call::CallSpec;
use crate::cancellation::Cancel;
use crate::client::Peer;
use crate::command::{Command, NewCall, deadline};
use crate::completion::{Completion, Recipient, Target};
use crate::latency::{CallKind, CallStart};
use crate::shard::context::{Commands, KeptCall};
use crate::shard::core::Core;
use crate::shard::in_flight::Entry;

impl<A> Commands for Core<A> {
    fn index(&self) -> usize {
        self.index
    }

    fn now(&self) -> Time {
        self.now
    }

    fn shards(&self) -> usize {
        self.shared.loads.len()
    }

    /// What might end the call here and now waits in the queue of commands, for the code that makes
    /// it has not returned yet.
    fn submit(&mut self, mut spec: CallSpec<'_>, recipient: Recipient) {
        if spec.cancellation.is_none()
            && let Some(slot) = self.ready_peer(spec.peer)
            && let link = &mut self.outgoing.peers[slot]
            && let Some(connection) = link.open_connection()
            && let Some(entry) = self.outgoing.calls.vacant()
        {
            let options = CallOptions {
                token: entry.key().raw(),
                deadline: deadline(self.now, spec.timeout),
                shares_memory: !recipient.allocates(),
            };
            let begun = CallStart::new(self.now, CallKind::of(&spec.request));
            match connection.call(self.now, spec.request, options) {
                Ok(_call) => {
                    entry.insert_with(|| Entry {
                        target: Target::Handler(recipient),
                        begun,
                    });
                    link.mark(slot, &mut self.outgoing.dirty);
                    self.outgoing.calls.begun += 1;
                    return;
                }
                Err(refused) => spec.request = refused.value,
            }
        }
        let cancellable = spec.cancellation.map(|cancellation| {
            cancellation.attach(Cancel::new(&self.shared.mailboxes, spec.peer.shard()))
        });
        let completion = Completion::new(Target::Handler(recipient));
        self.defer(Command::Call(NewCall::new(spec, completion, cancellable)));
    }

    fn submit_kept(
        &mut self,
        peer: &Peer,
        call: KeptCall<'_>,
        timeout: Option<Duration>,
        recipient: Recipient,
    ) {
        if let Err(recipient) = self.begin_at_once(peer, call, timeout, recipient) {
            self.submit_request(peer, call.to_request(), timeout, recipient);
        }
    }

    #[inline]
    fn receive(
        &mut self,
        peer: &Peer,
        step_id: i64,
        key: &Text,
        timeout: Option<Duration>,
        recipient: Recipient,
        shares_memory: bool,
    ) {
        let refused = match timeout {
            // On its way nothing looks for a deadline.
            None => self.receive_at_once(peer, step_id, key, None, recipient, shares_memory),
            Some(_) => self.receive_in_time(peer, step_id, key, timeout, recipient, shares_memory),
        };
        if let Err(recipient) = refused {
            let key = key.clone();
            let request = Request::RecvTensor { step_id, key };
            self.submit_request(peer, request, timeout, recipient);
        }
    }

    fn defer(&mut self, command: Command) {
        self.mail.defer(command);
    }

    fn defer_to_next_turn(&mut self, command: Command) {
        self.mail.defer_to_next_turn(command);
    }
}

impl<A> Core<A> {
    /// Puts a call on its peer's connection, unless something would come between, or the
    /// connection does not take it.
    #[inline]
    fn begin_at_once(
        &mut self,
        peer: &Peer,
        call: KeptCall<'_>,
        timeout: Option<Duration>,
        recipient: Recipient,
    ) -> Result<(), Recipient> {
        if let Some(slot) = self.ready_peer(peer)
            && let link = &mut self.outgoing.peers[slot]
            && let Some(connection) = link.open_connection()
            && let Some(entry) = self.outgoing.calls.vacant()
        {
            let options = CallOptions {
                token: entry.key().raw(),
                deadline: deadline(self.now, timeout),
                shares_memory: !recipient.allocates(),
            };
            if let Some(kind) = call.begin(connection, self.now, options) {
                entry.insert_with(|| Entry {
                    target: Target::Handler(recipient),
                    begun: CallStart::new(self.now, kind),
                });
                link.mark(slot, &mut self.outgoing.dirty);
                self.outgoing.calls.begun += 1;
                return Ok(());
            }
        }
        Err(recipient)
    }

    /// Puts a small receive on its peer's connection, unless something would come between.
    #[inline(always)]
    fn receive_at_once(
        &mut self,
        peer: &Peer,
        step_id: i64,
        key: &Text,
        timeout: Option<Duration>,
        recipient: Recipient,
        shares_memory: bool,
    ) -> Result<(), Recipient> {
        if let Some(slot) = self.ready_peer(peer)
            && let link = &mut self.outgoing.peers[slot]
            && let Some(connection) = link.open_connection()
            && connection.takes_receives(key)
            && timeout.is_none_or(|timeout| !timeout.is_zero())
            && let Some(entry) = self.outgoing.calls.vacant()
        {
            let options = CallOptions {
                token: entry.key().raw(),
                deadline: deadline(self.now, timeout),
                shares_memory,
            };
            connection.receive(self.now, step_id, key, options);
            entry.insert_with(|| Entry {
                target: Target::Handler(recipient),
                begun: CallStart::new(self.now, CallKind::RECV_TENSOR),
            });
            link.mark(slot, &mut self.outgoing.dirty);
            self.outgoing.calls.begun += 1;
            return Ok(());
        }
        Err(recipient)
    }

    #[inline(never)]
    fn receive_in_time(
        &mut self,
        peer: &Peer,
        step_id: i64,
        key: &Text,
        timeout: Option<Duration>,
        recipient: Recipient,
        shares_memory: bool,
    ) -> Result<(), Recipient> {
        self.receive_at_once(peer, step_id, key, timeout, recipient, shares_memory)
    }

    /// The slot of a peer for whom nothing has to be done before a call to it. Peers of other
    /// shards, and the task itself, have none here.
    #[inline]
    fn ready_peer(&self, peer: &Peer) -> Option<usize> {
        if self.mail.has_deferred() || self.is_stopping() {
            return None;
        }
        self.outgoing.find(peer)
    }
}

impl KeptCall<'_> {
    /// The call as one that is given away.
    pub(super) fn to_request(self) -> Request {
        match self {
            Self::Graph(call) => Request::StarRunGraph(Box::new(call.clone())),
            Self::Path(envelope) => Request::Unary(Box::new(envelope.clone())),
        }
    }

    /// Begins the call if the connection takes it; then returns of which kind it is.
    #[inline]
    fn begin(
        self,
        connection: &mut ClientConnection,
        now: Time,
        options: CallOptions,
    ) -> Option<CallKind> {
        match self {
            Self::Graph(call) if connection.takes_graph(now, call, &options) => {
                connection.call_graph(now, call, options);
                Some(CallKind::STAR_RUN_GRAPH)
            }
            Self::Path(envelope) if connection.takes_path(now, &options) => {
                connection.call_path(now, envelope, options);
                Some(CallKind::SERVICE)
            }
            Self::Graph(_) | Self::Path(_) => None,
        }
    }
}
