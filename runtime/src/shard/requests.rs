//! Requests of peers and of this task itself: who serves each, and how.

use std::sync::Arc;
use std::time::Instant;

use grpcxx_memory::Buffer;
use grpcxx_rpc::{
    Account, GraphCall, Method, Request, RequestId, ServerConnection, Status, home_shard,
};
use grpcxx_transport::Time;

use crate::blame::{Blame, THE_SERVICE};
use crate::caller::Caller;
use crate::command::{Command, Keys, Origin, SlotId};
use crate::compute::Job;
use crate::function::{Later, Responder, Served};
use crate::latency::{CallKind, CallStart};
use crate::limits;
use crate::shard::core::Core;
use crate::shard::servers::ServerLink;
use crate::watch::RequestWatch;

impl<A> Core<A> {
    /// Serves what the marked connections have read. Returns how much that was, and whether the
    /// rest shall wait for the next turn.
    pub(super) fn take_requests(&mut self) -> (usize, bool) {
        let mut events = 0;
        let mut fused_keys = 0;
        let mut index = 0;
        while let Some(&id) = self.incoming.dirty.get(index) {
            index += 1;
            while let Some(request) = self
                .incoming
                .servers
                .find_mut(id)
                .and_then(|server| server.connection.poll_cancelled())
            {
                events += 1;
                let Some(server) = self.incoming.servers.find_mut(id) else {
                    break;
                };
                if let Some(watch) = server.take_watch(request) {
                    watch.withdrawn();
                }
                server.end_stream(request);
                let waited_in = server.waits.end(request);
                self.note_request(id, request);
                if let Some(step_id) = waited_in {
                    self.forget_parked(id, request, step_id);
                }
            }
            while let Some(server) = self.incoming.servers.find_mut(id)
                && let Some(incoming) = server.connection.poll_request()
            {
                events += 1;
                let kind = CallKind::of(&incoming.request);
                server.begin(incoming.id, CallStart::new(self.now, kind));
                let origin = Origin::Link {
                    shard: self.index as u16,
                    server: id,
                    request: incoming.id,
                };
                self.counters().requests.add(1);
                if let Request::FuseRecvTensor { keys, .. } = &incoming.request {
                    fused_keys += keys.len();
                }
                self.dispatch(origin, incoming.request, incoming.deadline);
                if fused_keys >= limits::FUSED_KEYS_PER_TURN {
                    return (events, true);
                }
            }
            if (self.incoming.servers.find(id))
                .is_some_and(|server| server.connection.has_stream_news())
            {
                events += self.take_server_streams(id);
            }
        }
        (events, false)
    }

    /// Serves a request, now or later; `origin` gets exactly one answer.
    pub(super) fn dispatch(&mut self, origin: Origin, request: Request, deadline: Option<Time>) {
        let request = match request {
            Request::Unary(envelope) => {
                let caller = self.caller_of(origin, deadline);
                return self.serve_unary(origin, &caller, envelope);
            }
            Request::Stream(envelope) => {
                let caller = self.caller_of(origin, deadline);
                return self.serve_stream(origin, &caller, &envelope);
            }
            request => request,
        };
        if let Request::Message { method, body } = &request
            && let Err(status) = self.admit_to_step(origin, *method, body)
        {
            return self.answer(origin, Err(status), None);
        }
        let request = match self.offer_to_service(origin, request) {
            Some(request) => request,
            None => return,
        };
        if self.is_stopping() {
            return self.answer(origin, Err(self.stopping()), None);
        }
        match request {
            Request::RecvTensor { step_id, key } => {
                self.serve_receive(origin, step_id, Keys::One(key));
            }
            Request::FuseRecvTensor { step_id, keys } => {
                self.serve_receive(origin, step_id, Keys::Many(keys));
            }
            Request::StarRunGraph(call) => self.serve_graph(origin, call),
            Request::Message { method, body } => self.serve_message(origin, method, &body),
            Request::Unary(envelope) => {
                let caller = self.caller_of(origin, deadline);
                self.serve_unary(origin, &caller, envelope);
            }
            Request::Stream(envelope) => {
                let caller = self.caller_of(origin, deadline);
                self.serve_stream(origin, &caller, &envelope);
            }
        }
    }

    /// Notes which peer makes a step, and lets it end that one. Whoever is known to belong to the
    /// cluster may end each.
    fn admit_to_step(&self, origin: Origin, method: Method, body: &Buffer) -> Result<(), Status> {
        let authority = &self.shared.authority;
        let server = self.server_of(origin);
        match method {
            Method::RunGraph => {
                if let Some(step_id) = crate::task::run_graph_step(body) {
                    authority.note_step(maker_of_step(server), step_id);
                }
                Ok(())
            }
            Method::CleanupGraph => {
                let step_id = crate::task::cleanup_graph_step(body)?;
                let stranger = server.filter(|server| !server.is_known);
                let Some(stranger) = stranger else {
                    authority.step_ended(step_id);
                    return Ok(());
                };
                let ended = match self.shared.service {
                    Some(_) => authority.check_end_of_shared_step(stranger.peer, step_id),
                    None => authority.check_end_of_step(stranger.peer, step_id),
                };
                ended.inspect_err(|_| self.shared.find_tasks_again())
            }
            _ => Ok(()),
        }
    }

    /// Notes who makes a step. Returns whether the graph call counts towards the end of it: not if
    /// its peer is a stranger to a step of another.
    pub(super) fn counts_down(&self, origin: Origin, step_id: i64) -> bool {
        let server = self.server_of(origin);
        let is_own = (self.shared.authority).note_step(maker_of_step(server), step_id);
        is_own || server.is_none_or(|server| server.is_known)
    }

    /// The connection that a request came on, unless this task made it.
    fn server_of(&self, origin: Origin) -> Option<&ServerLink> {
        match origin {
            Origin::Link { server, .. } => self.incoming.servers.find(server),
            Origin::Local { .. } => None,
        }
    }

    fn offer_to_service(&mut self, origin: Origin, request: Request) -> Option<Request> {
        let Some(service) = &self.shared.service else {
            return Some(request);
        };
        let later = Later::new(&self.shared.mailboxes, origin);
        let blame = Blame::on(THE_SERVICE);
        let served = service.serve(request, later);
        blame.lift();
        match served {
            Served::Now(result) => {
                self.answer(origin, result, None);
                None
            }
            Served::Kept(tensors) => {
                self.answer_kept(origin, &tensors);
                None
            }
            Served::Later(promise) => {
                if let Some(watch) = promise.watch {
                    self.watch(origin, watch);
                }
                if let Some(result) = promise.answer {
                    self.answer(origin, result, None);
                }
                None
            }
            Served::Declined(request) => Some(request),
        }
    }

    /// Lets somebody hear what becomes of a request that came some time ago.
    pub(super) fn watch_if_waiting(&mut self, origin: Origin, watch: Arc<dyn RequestWatch>) {
        let is_waiting = match origin {
            Origin::Link {
                server, request, ..
            } => {
                let server = self.incoming.servers.find(server);
                server.is_some_and(|server| server.connection.is_outstanding(request))
            }
            Origin::Local { call, .. } => self.outgoing.calls.has(call),
        };
        if is_waiting {
            self.watch(origin, watch);
        } else {
            watch.withdrawn();
        }
    }

    pub(super) fn watch(&mut self, origin: Origin, watch: Arc<dyn RequestWatch>) {
        match origin {
            Origin::Link {
                server, request, ..
            } => {
                if let Some(server) = self.incoming.servers.find_mut(server) {
                    server.watch(request, watch);
                }
            }
            Origin::Local { call, .. } => self.outgoing.calls.watch(call, watch),
        }
    }

    fn serve_receive(&mut self, origin: Origin, step_id: i64, keys: Keys) {
        if let Err(status) = self.check_keys(&keys) {
            return self.answer(origin, Err(status), None);
        }
        if let Origin::Link { server, .. } = origin
            && let Some(server) = self.incoming.servers.find(server)
            && let Err(status) = server.waits.may_begin(step_id, &self.shares)
        {
            self.counters().waits_refused.add(1);
            return self.answer(origin, Err(status), None);
        }
        let home = home_shard(step_id, self.shared.loads.len());
        if let Origin::Local { call, .. } = origin {
            self.outgoing.calls.set_home(call, home);
        }
        if home == self.index {
            if self.receive(origin, step_id, keys) {
                self.park(origin, step_id);
            }
            return;
        }
        self.park(origin, step_id);
        self.route(
            home,
            Command::Receive {
                origin,
                step_id,
                keys,
            },
        );
    }

    /// Notes on a connection that one of its requests waits in a step.
    fn park(&mut self, origin: Origin, step_id: i64) {
        if let Origin::Link {
            server, request, ..
        } = origin
            && let Some(server) = self.incoming.servers.find_mut(server)
        {
            server.waits.begin(request, step_id);
        }
    }

    /// Takes a call out of its box, which goes back to the connection that it came on.
    pub(super) fn unboxed(&mut self, origin: Origin, mut boxed: Box<GraphCall>) -> GraphCall {
        let call = std::mem::take(&mut *boxed);
        if let Some(connection) = self.connection_of(origin) {
            connection.reuse_call(boxed);
        }
        call
    }

    /// The connection on which a request has come, if it has come on one that is still there.
    pub(super) fn connection_of(&mut self, origin: Origin) -> Option<&mut ServerConnection> {
        let Origin::Link { server, .. } = origin else {
            return None;
        };
        let server = self.incoming.servers.find_mut(server)?;
        Some(&mut server.connection)
    }

    /// Whose share a request counts against.
    pub(super) fn account_of(&self, origin: Origin) -> Account {
        match origin {
            Origin::Link { .. } => {
                let server = self.server_of(origin);
                server.map_or(Account::OWN, |server| server.waits.account)
            }
            Origin::Local { call, .. } => self.outgoing.calls.caller(call).account,
        }
    }

    /// Who calls a method, and until when.
    pub(super) fn caller_of(&self, origin: Origin, deadline: Option<Time>) -> Caller {
        let caller = match origin {
            Origin::Link { .. } => {
                let server = self.server_of(origin);
                server.map_or(Caller::OWN, |server| {
                    Caller::at(server.peer, server.waits.account)
                })
            }
            Origin::Local { call, .. } => self.outgoing.calls.caller(call),
        };
        caller.until(deadline.map(|deadline| Instant::now() + deadline.since(self.now)))
    }

    fn serve_message(&mut self, origin: Origin, method: Method, body: &Buffer) {
        let shards = self.shared.loads.len();
        match method {
            Method::CleanupGraph => match crate::task::cleanup_graph_step(body) {
                Ok(step_id) => {
                    let origin = Some(origin);
                    self.route(
                        home_shard(step_id, shards),
                        Command::Cleanup { step_id, origin },
                    );
                }
                Err(status) => self.answer(origin, Err(status), None),
            },
            Method::CleanupAll => {
                let responder = Responder::new(Arc::clone(&self.shared.mailboxes), origin);
                let (store, body) = (Arc::clone(&self.shared.store), body.clone());
                // Away from the shard: it may be many tensors.
                let empty = Job::new(move || {
                    responder.answer(crate::registry::cleanup_all(&store, &body));
                });
                let account = self.account_of(origin);
                self.shared.chores.spawn(account, empty);
            }
            _ => {
                let result = self.shared.task.serve(method, body);
                self.answer(origin, result, None);
            }
        }
    }

    pub(super) fn forget_parked(&mut self, server: SlotId, request: RequestId, step_id: i64) {
        let origin = Origin::Link {
            shard: self.index as u16,
            server,
            request,
        };
        let home = home_shard(step_id, self.shared.loads.len());
        self.route(home, Command::Forget { origin });
    }
}

/// Who makes a step by a graph call: all at an address are one, for a peer may call before and
/// after it has proven who it is.
fn maker_of_step(server: Option<&ServerLink>) -> Account {
    server.map_or(Account::OWN, |server| Account::of(server.peer.ip()))
}
