//! How code that runs on a shard makes calls: on an open connection at once, or as a command.

use std::time::Duration;

use grpcxx_rpc::{CallOptions, ClientConnection, Envelope, GraphCall, Request, Text};
use grpcxx_transport::Time;

use crate::call::CallSpec;
use crate::cancellation::Cancel;
use crate::client::Peer;
use crate::command::{Command, NewCall, deadline};
use crate::completion::{Completion, Recipient, Target};
use crate::latency::{CallKind, CallStart};
use crate::shard::context::Commands;
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

    fn call_path(
        &mut self,
        peer: &Peer,
        envelope: &Envelope,
        timeout: Option<Duration>,
        recipient: Recipient,
    ) {
        let refused = self.begin_at_once(
            peer,
            timeout,
            recipient,
            CallKind::SERVICE,
            |link, now, options| {
                let takes = link.takes_path(now, &options);
                if takes {
                    link.call_path(now, envelope, options);
                }
                takes
            },
        );
        if let Err(recipient) = refused {
            let request = Request::Unary(Box::new(envelope.clone()));
            self.submit(
                CallSpec::new(peer, request).with_timeout(timeout),
                recipient,
            );
        }
    }

    fn run(
        &mut self,
        peer: &Peer,
        call: &GraphCall,
        timeout: Option<Duration>,
        recipient: Recipient,
    ) {
        let refused = self.begin_at_once(
            peer,
            timeout,
            recipient,
            CallKind::STAR_RUN_GRAPH,
            |link, now, options| {
                let takes = link.takes_graph(now, call, &options);
                if takes {
                    link.call_graph(now, call, options);
                }
                takes
            },
        );
        if let Err(recipient) = refused {
            let request = Request::StarRunGraph(Box::new(call.clone()));
            self.submit(
                CallSpec::new(peer, request).with_timeout(timeout),
                recipient,
            );
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
            self.submit(
                CallSpec::new(peer, request).with_timeout(timeout),
                recipient,
            );
        }
    }

    fn defer(&mut self, command: Command) {
        self.mail.defer(command);
    }
}

impl<A> Core<A> {
    /// Puts a call on its peer's connection, unless something would come between, or the
    /// connection does not take it, which `begin` says.
    #[inline]
    fn begin_at_once(
        &mut self,
        peer: &Peer,
        timeout: Option<Duration>,
        recipient: Recipient,
        kind: CallKind,
        begin: impl FnOnce(&mut ClientConnection, Time, CallOptions) -> bool,
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
            if begin(connection, self.now, options) {
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
            && connection.takes_receives()
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
