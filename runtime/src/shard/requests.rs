use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;
use grpcxx_memory::Buffer;
use grpcxx_rpc::{
    Code, GraphCall, Method, PeerViolation, Request, RequestId, Response, ServerConnection, Status,
    Undelivered, home_shard,
};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkId, Next, Outcome, Progress, Time, Transport,
};

use crate::command::{Command, Keys, Origin, SlotId};
use crate::function::{Later, RequestWatch, Responder, Served};
use crate::limits;
use crate::registry::Entry;
use crate::shard::core::{Core, Subject};
use crate::shard::links::ArenaLandings;

/// A connection on which a peer calls us.
#[derive(Debug)]
pub(super) struct ServerLink {
    link: LinkId,
    pub(super) connection: ServerConnection,
    /// The steps in which requests of this connection wait for tensors.
    parked: HashMap<RequestId, i64, RandomState>,
    /// Who wants to hear what becomes of a request, by its token.
    watches: Watches,
    is_dirty: bool,
    /// The link was full when it was last given a frame, or has not had all chunks of one.
    is_held_back: bool,
    armed: Option<Time>,
}

type Watches = HashMap<u64, Watch, RandomState>;

/// Who hears what becomes of a request.
struct Watch(Arc<dyn RequestWatch>);

impl ServerLink {
    pub(super) fn new(link: LinkId, connection: ServerConnection) -> Self {
        Self {
            link,
            connection,
            parked: HashMap::default(),
            watches: HashMap::default(),
            is_dirty: false,
            is_held_back: false,
            armed: None,
        }
    }

    pub(super) fn park(&mut self, request: RequestId, step_id: i64) {
        self.parked.insert(request, step_id);
    }

    pub(super) fn unpark(&mut self, request: RequestId) -> Option<i64> {
        if self.parked.is_empty() {
            return None;
        }
        self.parked.remove(&request)
    }

    /// Takes who watches a request.
    fn take_watch(&mut self, request: RequestId) -> Option<Watch> {
        take_watch(&mut self.watches, request)
    }

    /// The next answer with tensors of a step that did not leave. Those of watched requests belong to their service.
    pub(super) fn poll_undelivered(&mut self) -> Option<Undelivered> {
        loop {
            let undelivered = self.connection.poll_undelivered()?;
            let is_watched = |id: RequestId| self.watches.contains_key(&id.token());
            if !is_watched(undelivered.id) {
                return Some(undelivered);
            }
        }
    }
}

impl<A> Core<A> {
    pub(super) fn server_received(
        &mut self,
        id: SlotId,
        bytes: &[u8],
    ) -> Option<Result<Progress, PeerViolation>> {
        self.server_reads(id, |connection, now, landings| {
            connection.handle_received(now, bytes, landings)
        })
    }

    pub(super) fn server_landed(
        &mut self,
        id: SlotId,
        landing: Landing,
    ) -> Option<Result<Next, PeerViolation>> {
        self.server_reads(id, |connection, now, landings| {
            connection.handle_landed(now, landing, landings)
        })
    }

    /// Lets a connection read, and counts the requests that it has answered meanwhile.
    #[inline]
    fn server_reads<R>(
        &mut self,
        id: SlotId,
        read: impl FnOnce(&mut ServerConnection, Time, &mut ArenaLandings<'_>) -> R,
    ) -> Option<R> {
        let now = self.now;
        let (mut landings, servers) = ArenaLandings::of(self);
        let connection = &mut servers.find_mut(id)?.connection;
        let result = read(connection, now, &mut landings);
        landings.release(connection.drain_released());
        let answered = landings.answered;
        self.counters().requests.add(answered);
        self.mark_server(id);
        Some(result)
    }

    pub(super) fn server_sent(&mut self, id: SlotId, frame: Box<Frame>, outcome: Outcome) {
        let Some(server) = self.servers.find_mut(id) else {
            return;
        };
        let watches = &mut server.watches;
        (server.connection).handle_sent_with(frame, outcome, |request| {
            if let Some(Watch(watch)) = take_watch(watches, request) {
                watch.delivered();
            }
        });
        self.steps.release(server.connection.drain_released());
        self.mark_server(id);
        if outcome == Outcome::Lost {
            self.take_undelivered(id);
        }
    }

    pub(super) fn server_moved(&mut self, id: SlotId, medium: &'static str) {
        if let Some(server) = self.servers.find_mut(id) {
            server.connection.set_lends(medium == grpcxx_shm::MEDIUM);
        }
    }

    /// Takes back what a lost connection still held: tensors whose answer never left, and places in steps.
    pub(super) fn server_closed(&mut self, id: SlotId, reason: &CloseReason) {
        let Some(server) = self.servers.find_mut(id) else {
            return;
        };
        tracing::debug!(%reason, "a peer's connection ended");
        server.connection.handle_closed(&Status::new(
            Code::Unavailable,
            format!("the connection ended: {reason}"),
        ));
        while let Some(request) = server.connection.poll_cancelled() {
            if let Some(Watch(watch)) = server.take_watch(request) {
                watch.withdrawn();
            }
        }
        // First the places in steps, so that nothing goes back to those who are gone.
        let parked: Vec<(RequestId, i64)> = server.parked.drain().collect();
        for (request, step_id) in parked {
            self.forget_parked(id, request, step_id);
        }
        self.take_undelivered(id);
        self.servers.remove(id);
        self.counters().closed.add(1);
        self.leave_load();
    }

    pub(super) fn server_timeout(&mut self, id: SlotId, at: Time) {
        if let Some(server) = self.servers.find_mut(id) {
            if server.armed == Some(at) {
                server.armed = None;
            }
            server.connection.handle_timeout(self.now);
            self.mark_server(id);
        }
    }

    /// Whether all requests have an answer that its link has taken.
    pub(super) fn servers_are_idle(&self) -> bool {
        self.servers.ids().all(|id| {
            self.servers.find(id).is_none_or(|server| {
                !server.is_held_back && server.connection.outstanding_requests().next().is_none()
            })
        })
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn outstanding_requests(&self) -> usize {
        let ids = self.servers.ids();
        ids.filter_map(|id| self.servers.find(id))
            .map(|server| server.connection.outstanding_requests().count())
            .sum()
    }

    pub(super) fn mark_server(&mut self, id: SlotId) {
        if let Some(server) = self.servers.find_mut(id)
            && !server.is_dirty
        {
            server.is_dirty = true;
            self.dirty_servers.push(id);
        }
    }

    /// Serves what the marked connections have read. Returns how much that was, and whether the rest shall wait for the
    /// next turn.
    pub(super) fn take_requests(&mut self) -> (usize, bool) {
        let mut events = 0;
        let mut fused_keys = 0;
        let mut index = 0;
        while let Some(&id) = self.dirty_servers.get(index) {
            index += 1;
            while let Some(request) = self
                .servers
                .find_mut(id)
                .and_then(|server| server.connection.poll_cancelled())
            {
                events += 1;
                let Some(server) = self.servers.find_mut(id) else {
                    break;
                };
                if let Some(Watch(watch)) = server.take_watch(request) {
                    watch.withdrawn();
                }
                if let Some(step_id) = server.unpark(request) {
                    self.forget_parked(id, request, step_id);
                }
            }
            while let Some(incoming) = self
                .servers
                .find_mut(id)
                .and_then(|server| server.connection.poll_request())
            {
                events += 1;
                let origin = Origin::Link {
                    shard: self.index as u16,
                    server: id,
                    request: incoming.id,
                };
                self.counters().requests.add(1);
                if let Request::FuseRecvTensor { keys, .. } = &incoming.request {
                    fused_keys += keys.len();
                }
                self.dispatch(origin, incoming.request);
                if fused_keys >= limits::FUSED_KEYS_PER_TURN {
                    return (events, true);
                }
            }
        }
        (events, false)
    }

    pub(super) fn flush_servers<T: Transport<Accepted = A>>(&mut self, transport: &mut T) -> usize {
        let mut events = 0;
        let count = self.dirty_servers.len();
        for index in 0..count {
            let id = self.dirty_servers[index];
            let Some(server) = self.servers.find_mut(id) else {
                continue;
            };
            server.is_dirty = server.connection.has_requests();
            if server.is_dirty {
                self.dirty_servers.push(id);
            }
            server.is_held_back = false;
            while let Some(frame) = server.connection.poll_frame() {
                if let Err(refused) = transport.send(server.link, frame) {
                    server.connection.unpoll_frame(refused.value);
                    server.is_held_back = true;
                    break;
                }
                events += 1;
            }
            server.is_held_back |= server.connection.is_cutting();
            if let Some(next) = server.connection.poll_resume() {
                // A link that closed in this very turn refuses; its end is on the way.
                let _ = transport.resume(server.link, next);
            }
            let timeout = server.connection.poll_timeout();
            self.timers
                .arm(Subject::Server(id), timeout, &mut server.armed);
        }
        self.dirty_servers.drain(..count);
        events
    }

    /// Serves a request, now or later; `origin` gets exactly one answer.
    pub(super) fn dispatch(&mut self, origin: Origin, request: Request) {
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
            Request::StarRunGraph(call) => self.serve_graph(origin, *call),
            Request::Message { method, body } => self.serve_message(origin, method, &body),
        }
    }

    fn offer_to_service(&mut self, origin: Origin, request: Request) -> Option<Request> {
        let Some(service) = &self.shared.service else {
            return Some(request);
        };
        let later = Later::new(&self.shared.mailboxes, origin);
        match service.serve(request, later) {
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

    fn watch(&mut self, origin: Origin, watch: Arc<dyn RequestWatch>) {
        match origin {
            Origin::Link {
                server, request, ..
            } => {
                if let Some(server) = self.servers.find_mut(server) {
                    server.watches.insert(request.token(), Watch(watch));
                }
            }
            Origin::Local { call, .. } => self.calls.watch(call, watch),
        }
    }

    fn serve_receive(&mut self, origin: Origin, step_id: i64, keys: Keys) {
        if let Err(status) = self.check_keys(&keys) {
            return self.answer(origin, Err(status), None);
        }
        let home = home_shard(step_id, self.shared.loads.len());
        if let Origin::Local { call, .. } = origin {
            self.calls.set_home(call, home);
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
            && let Some(server) = self.servers.find_mut(server)
        {
            server.park(request, step_id);
        }
    }

    fn serve_graph(&mut self, origin: Origin, call: GraphCall) {
        if call.ps_graph_count < 0 {
            let text = format!(
                "ps_graph_count is {}; send the number of graph calls of the step on this task, or 0",
                call.ps_graph_count
            );
            return self.answer(origin, Err(Status::new(Code::InvalidArgument, text)), None);
        }
        let functions = self.shared.functions.load();
        match functions.find(&call.graph_handle) {
            Some(Entry::Pull) => {
                let result = crate::registry::pull(&self.shared.store.load(), &call.fetches);
                self.answer_graph(origin, &call, result);
            }
            Some(Entry::Function(function)) => {
                let function = function.clone();
                let mailboxes = self.shared.mailboxes.clone();
                let responder = Responder::of_graph(mailboxes, origin, &call);
                self.shared
                    .compute
                    .spawn(Box::new(move || function.start(call, responder)));
            }
            None => {
                let text = functions.unknown(&call.graph_handle);
                self.answer_graph(origin, &call, Err(Status::new(Code::NotFound, text)));
            }
        }
    }

    fn answer_graph(&mut self, origin: Origin, call: &GraphCall, result: Result<Response, Status>) {
        self.answer(origin, result, None);
        if call.ps_graph_count > 0 {
            let step_id = call.step_id as i64;
            let home = home_shard(step_id, self.shared.loads.len());
            self.route(
                home,
                Command::GraphDone {
                    step_id,
                    ps_graph_count: call.ps_graph_count,
                },
            );
        }
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
                let result = crate::registry::cleanup_all(&self.shared.store, body);
                self.answer(origin, result, None);
            }
            _ => {
                let result = self.shared.task.serve(method, body);
                self.answer(origin, result, None);
            }
        }
    }

    fn forget_parked(&mut self, server: SlotId, request: RequestId, step_id: i64) {
        let origin = Origin::Link {
            shard: self.index as u16,
            server,
            request,
        };
        let home = home_shard(step_id, self.shared.loads.len());
        self.route(home, Command::Forget { origin });
    }
}

fn take_watch(watches: &mut Watches, request: RequestId) -> Option<Watch> {
    if watches.is_empty() {
        return None;
    }
    watches.remove(&request.token())
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}
