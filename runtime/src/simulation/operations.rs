use std::sync::Arc;
use std::time::Duration;

use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, GraphCall, Method, NamedTensors, Request, Status, Text, home_shard, proto};
use prost::Message;

use super::calls::{Kind, Record, State};
use super::cluster::{Cluster, Plan};
use super::functions::{ECHO, FAIL, Handler, LATE, NextCall, call_feed};
use super::model::stored;
use super::task::{address_of, host_of};
use super::tensors::tensor;
use crate::call::CallSpec;
use crate::client::Peer;
use crate::command::Command;
use crate::registry::{STORE_PULL, STORE_PUSH};

/// The random operations.
impl Cluster {
    pub(super) fn operate(&mut self) {
        if self.profile.has_hostile_peers && self.random.u32(..4) == 0 {
            self.attack();
        }
        match self.random.u32(..100) {
            0..=14 => self.produce(),
            15..=44 => self.call_receive(),
            45..=54 => self.call_storm(),
            55..=69 => self.call_function(),
            70..=74 => self.call_service_tensors(),
            75..=80 => self.call_status(),
            81..=85 => self.call_cleanup(),
            86..=88 => self.abort_step(),
            89..=92 => self.give_up(),
            93..=94 => self.disturb_link(),
            95..=97 if self.profile.restarts => self.disturb_task(),
            98 if self.profile.partitions => self.cut_off(),
            _ => self.call_function(),
        }
    }

    /// Plans that a call is given up, now and then.
    pub(super) fn maybe_drop(&mut self, id: usize) {
        if self.random.u32(..8) == 0 {
            let delay = self.pause(10);
            self.plan(delay, Plan::Drop(id));
        }
    }

    fn call_function(&mut self) {
        let (Some(caller), Some(callee)) = (self.any_caller(), self.any_task()) else {
            return;
        };
        let Some(peer) = self.peer(caller, callee) else {
            return;
        };
        let id = self.watcher.model().calls.next_id();
        let mut call = GraphCall {
            feeds: NamedTensors::from_buf([call_feed(id)]),
            ..GraphCall::default()
        };
        let fetches: Vec<Text> = (0..self.random.usize(..4))
            .map(|n| Text::from(format!("out_{id}_{n}")))
            .collect();
        let (name, kind) = match self.random.u32(..9) {
            8 if caller != callee => (ECHO, Kind::Malformed),
            0 => (FAIL, Kind::Fail),
            1..=2 => (
                LATE,
                Kind::Late {
                    fetches: fetches.clone(),
                },
            ),
            3 => ("nobody", Kind::Unknown),
            4 => (STORE_PUSH, Kind::Push),
            5 => (STORE_PULL, Kind::Pull),
            _ => (
                ECHO,
                Kind::Echo {
                    fetches: fetches.clone(),
                },
            ),
        };
        match kind {
            Kind::Push => {
                call.feeds = (0..self.random.usize(1..4))
                    .map(|_| self.stored_name())
                    .map(|name| (Text::from(name), tensor(stored(name))))
                    .collect();
                call.feeds.dedup_by(|one, other| one.0 == other.0);
                call.feeds.sort_by(|one, other| one.0.cmp(&other.0));
                call.feeds.dedup_by(|one, other| one.0 == other.0);
            }
            Kind::Pull => {
                call.feeds.clear();
                call.fetches = vec![Text::from(self.stored_name())].into();
            }
            Kind::Echo { .. } | Kind::Late { .. } => call.fetches = fetches.into(),
            Kind::Malformed => call.fetches = vec![Text::from("twice"); 2].into(),
            _ => {}
        }
        if self.random.u32(..10) == 0 {
            let step_id = self.any_step();
            call.step_id = step_id as u64;
            call.ps_graph_count = self.random.i32(1..=2);
            self.watcher.model().maybe_clean(callee, step_id);
        }
        call.graph_handle = Text::from(name);
        let request = Request::StarRunGraph(Box::new(call));
        let timeout = (self.random.u32(..4) == 0).then(|| self.pause(20));
        match self.random.u32(..4) {
            0 => {
                let timeout = timeout.unwrap_or(LONG_TIMEOUT);
                self.call_with_handler(caller, &peer, kind, request, timeout);
            }
            _ => {
                let id = self.call_future(caller, &peer, kind, request, timeout);
                self.maybe_drop(id);
            }
        }
    }

    fn call_status(&mut self) {
        let (Some(caller), Some(callee)) = (self.any_caller(), self.any_task()) else {
            return;
        };
        if let Some(peer) = self.peer(caller, callee) {
            self.call_future(caller, &peer, Kind::Status, status_request(), None);
        }
    }

    fn call_cleanup(&mut self) {
        let (Some(caller), Some(callee)) = (self.any_caller(), self.any_running()) else {
            return;
        };
        let step_id = self.any_step();
        let Some(peer) = self.peer(caller, callee) else {
            return;
        };
        let request = Request::Message {
            method: Method::CleanupGraph,
            body: Buffer::from(proto::CleanupGraphRequest { step_id }.encode_to_vec()),
        };
        self.watcher.model().maybe_clean(callee, step_id);
        self.call_future(caller, &peer, Kind::Cleanup { step_id }, request, None);
    }

    fn abort_step(&mut self) {
        let Some(index) = self.any_running() else {
            return;
        };
        let step_id = self.any_step();
        let task = self.running(index).expect("it runs");
        let command = Command::Abort {
            step_id,
            status: Status::new(Code::OutOfRange, "End of sequence"),
            origin: None,
        };
        if task.deliver(home_shard(step_id, task.shards.len()), command) {
            let mut model = self.watcher.model();
            let name = model.step_name(index, step_id);
            model.abort(name);
            model.note(format_args!("step {step_id} of {index} aborted"));
        }
    }

    fn give_up(&mut self) {
        let Some(caller) = self.any_running() else {
            return;
        };
        if let Some(task) = &mut self.tasks[caller]
            && !task.calls.is_empty()
        {
            let (id, _) = task.calls[self.random.usize(..task.calls.len())];
            task.drop_call(id);
        }
    }

    fn disturb_link(&mut self) {
        let Some(index) = self.any_running() else {
            return;
        };
        let links_fail = self.profile.links_fail;
        let Some(task) = &mut self.tasks[index] else {
            return;
        };
        let shard = self.random.usize(..task.shards.len());
        let ledger = task.shards[shard].transport_mut().inner_mut();
        let links: Vec<_> = ledger.links().collect();
        let Some(link) = self.random.choice(links) else {
            return;
        };
        let migrating = ledger.inner_mut().inner_mut();
        if links_fail
            && self.random.bool()
            && let Some(rdma) = migrating.migrated_link(link).copied()
            && let Some(medium) = migrating.medium_mut()
        {
            medium.links_mut().break_queue(rdma);
            return;
        }
        let Some(link) = migrating.base_link(link) else {
            return;
        };
        let transport = migrating.base_mut();
        match self.random.u32(..4) {
            0 if links_fail => transport.sever(link),
            1 if links_fail => transport.half_close(link),
            _ => transport.stall(link, Duration::from_millis(self.random.u64(1..=30))),
        };
    }

    fn disturb_task(&mut self) {
        let Some(index) = self.any_running() else {
            return;
        };
        if self.random.bool() {
            self.crash(index);
        } else {
            let grace = self.pause(10);
            self.stop(index, grace);
        }
        let delay = self.pause(20);
        self.plan(delay, Plan::Start(index));
    }

    fn cut_off(&mut self) {
        let (Some(one), Some(other)) = (self.any_task(), self.any_task()) else {
            return;
        };
        if one != other {
            self.note(format_args!(
                "{one} and {other} are cut off from each other"
            ));
            self.network.partition(host_of(one), host_of(other));
            let delay = self.pause(40);
            // So long a frame that has begun need not wait for the rest of it.
            if (self.profile.patience.progress).is_some_and(|patience| delay >= patience) {
                for index in [one, other] {
                    self.watcher.model().tasks[index].was_disturbed = true;
                }
            }
            self.plan(delay, Plan::Heal(one, other));
        }
    }

    pub(super) fn call_future(
        &mut self,
        caller: usize,
        peer: &Peer,
        kind: Kind,
        request: Request,
        timeout: Option<Duration>,
    ) -> usize {
        let id = self.issue(caller, peer, kind, timeout);
        if let Some(task) = &mut self.tasks[caller] {
            let call = task.client.call(peer, request, timeout);
            task.calls.push((id, call));
        }
        id
    }

    pub(super) fn call_with_handler(
        &mut self,
        caller: usize,
        peer: &Peer,
        kind: Kind,
        request: Request,
        timeout: Duration,
    ) {
        let id = self.issue(caller, peer, kind, Some(timeout));
        let next = (self.random.u32(..4) == 0).then(|| self.next_call(caller, peer));
        let next_id = next.as_ref().map(|next| next.call);
        let brings_memory = self.random.bool();
        let spec = CallSpec::new(peer, request).with_timeout(timeout);
        let handler = Arc::new(Handler::new(self.watcher.clone(), brings_memory, next));
        let task = self.tasks[caller].as_ref().expect("the caller runs");
        let refused = (task.client).submit(spec, handler, id as u64).is_err();
        if refused {
            let mut model = self.watcher.model();
            model.calls.close(id, State::Dropped);
            if let Some(next) = next_id {
                model.calls.close(next, State::Dropped);
            }
        }
    }

    /// A call that the end of another one makes.
    fn next_call(&mut self, caller: usize, peer: &Peer) -> NextCall {
        let (kind, request) = match self.random.bool() {
            true => self.service_tensor(),
            false => (Kind::Status, status_request()),
        };
        let timeout = (self.random.u32(..3) == 0).then(|| self.pause(20));
        NextCall {
            call: self.issue(caller, peer, kind, timeout),
            peer: peer.clone(),
            request,
            timeout,
            by_receive: self.random.bool(),
        }
    }

    pub(super) fn issue(
        &mut self,
        caller: usize,
        peer: &Peer,
        kind: Kind,
        timeout: Option<Duration>,
    ) -> usize {
        let callee = super::task::index_of(peer.socket_address().unwrap());
        let mut model = self.watcher.model();
        let id = model.calls.next_id();
        model.note(format_args!(
            "call {id}: {caller} -> {callee} {kind:?} {timeout:?}"
        ));
        let record = Record {
            caller,
            caller_epoch: model.tasks[caller].epoch,
            callee,
            kind,
            state: State::Open,
            issued_at: self.now,
            timeout,
            executions: 0,
            is_responder_dropped: false,
        };
        model.calls.issue(record)
    }

    pub(super) fn peer(&mut self, caller: usize, callee: usize) -> Option<Peer> {
        let epoch = self.watcher.model().tasks[callee].epoch;
        let address = address_of(callee, epoch).to_string();
        let connection = self.random.usize(..10) / 9;
        let client = &self.tasks[caller].as_ref()?.client;
        client.peer_over(&address, connection).ok()
    }

    pub(super) fn any_task(&mut self) -> Option<usize> {
        Some(self.random.usize(..self.tasks.len()))
    }

    pub(super) fn any_step(&mut self) -> i64 {
        // New steps come up as old ones end.
        let age = self.now.as_nanos() / STEP_LIFE.as_nanos() as u64;
        age as i64 * 2 + self.random.i64(0..6)
    }

    fn stored_name(&mut self) -> &'static str {
        self.random.choice(STORED_NAMES).expect("there are names")
    }

    /// A random time, up to so many times the pace of operations.
    pub(super) fn pause(&mut self, times: u32) -> Duration {
        let ns = (self.profile.pace * times).as_nanos() as u64;
        Duration::from_nanos(self.random.u64(1..=ns))
    }
}

fn status_request() -> Request {
    Request::Message {
        method: Method::GetStatus,
        body: Buffer::new(),
    }
}

const STORED_NAMES: [&str; 4] = ["bias", "kernel", "embedding", "moment"];

/// How long the steps in use stay the same.
const STEP_LIFE: Duration = Duration::from_millis(15);

/// Timeout of calls that nobody can give up.
pub(super) const LONG_TIMEOUT: Duration = Duration::from_secs(5);
