//! The operations on tensors of steps: some are put there, some asked for, in either order.

use std::time::Duration;

use grpcxx_rpc::{Request, Text, home_shard};

use super::calls::Kind;
use super::cluster::{Cluster, Plan};
use super::tensors::{self, BODY_BYTES_MIN};
use crate::client::Peer;
use crate::command::Command;

impl Cluster {
    /// A tensor for later receivers.
    pub(super) fn produce(&mut self) {
        if let Some(home) = self.any_running() {
            let step_id = self.any_step();
            let id = self.plan_tensor(home, step_id);
            self.offer(id);
        }
    }

    fn plan_tensor(&mut self, home: usize, step_id: i64) -> usize {
        let len_bytes = match self.random.u32(..8) {
            0..=3 => self.random.usize(BODY_BYTES_MIN..=600),
            4..=6 => self
                .random
                .usize(BODY_BYTES_MIN..=self.profile.tensor_bytes_max.min(5000)),
            _ => self
                .random
                .usize(BODY_BYTES_MIN..=self.profile.tensor_bytes_max),
        };
        self.plan_tensor_of(home, step_id, len_bytes)
    }

    fn plan_tensor_of(&mut self, home: usize, step_id: i64, len_bytes: usize) -> usize {
        let task = self.running(home).expect("the home runs");
        let mut model = self.watcher.model();
        let key = task.key(model.tensors.next_id());
        let epoch = model.tasks[home].epoch;
        model.tensors.plan(home, epoch, step_id, key, len_bytes)
    }

    /// Puts a tensor into its step, if its task still runs.
    pub(super) fn offer(&mut self, id: usize) {
        let mut model = self.watcher.model();
        let record = model.tensors.record(id);
        let (home, step_id, key) = (record.home, record.step_id, record.key.clone());
        let is_due =
            record.epoch == model.tasks[home].epoch && record.state == tensors::State::Planned;
        let Some(task) = self.tasks[home].as_ref().filter(|_| is_due) else {
            return;
        };
        let command = Command::Send {
            step_id,
            key,
            tensor: model.tensors.make(id),
            origin: None,
        };
        if task.deliver(home_shard(step_id, task.shards.len()), command) {
            model.tensors.offered(id);
            model.note(format_args!(
                "tensor {id} sent into step {step_id} of {home}"
            ));
        } else {
            drop(model);
            self.plan(Duration::from_millis(1), Plan::Offer(id));
        }
    }

    /// A receive within the task itself of tensors that nobody has taken.
    pub(super) fn drain(&mut self, home: usize, id: usize) {
        let Some(peer) = self.peer(home, home) else {
            return;
        };
        let (step_id, key) = {
            let model = self.watcher.model();
            let record = model.tensors.record(id);
            (record.step_id, record.key.clone())
        };
        let kind = Kind::Receive {
            step_id,
            tensors: vec![id],
        };
        let request = Request::RecvTensor { step_id, key };
        self.call_future(home, &peer, kind, request, Some(DRAIN_TIMEOUT));
    }

    pub(super) fn call_receive(&mut self) {
        let (Some(caller), Some(home)) = (self.any_caller(), self.any_running()) else {
            return;
        };
        let step_id = self.any_step();
        let count = match self.random.u32(..4) {
            0 => self.random.usize(2..=4),
            _ => 1,
        };
        let Some(peer) = self.peer(caller, home) else {
            return;
        };
        let timeout = (self.random.u32(..3) == 0).then(|| self.pause(20));
        let to_sink = self.random.u32(..4) == 0;
        if let Some(id) = self.out_of_date(home) {
            let step_id = self.watcher.model().tensors.record(id).step_id;
            return self.receive(caller, &peer, step_id, vec![id], timeout, to_sink);
        }
        let mut ids = self.wanted(home, step_id, count);
        while ids.len() < count {
            let id = self.plan_tensor(home, step_id);
            let delay = self.pause(4);
            // One in many never comes, so that its receivers wait for ever.
            if self.random.u32(..16) > 0 {
                self.plan(delay, Plan::Offer(id));
            }
            ids.push(id);
        }
        self.random.shuffle(&mut ids);
        self.receive(caller, &peer, step_id, ids, timeout, to_sink);
    }

    /// Many calls for one tensor each, most of them there already, on one of the few connections
    /// that have such calls all the time: there requests share frames, and answers too.
    pub(super) fn call_storm(&mut self) {
        let caller = self.random.usize(..STORMS);
        let home = caller + 1;
        if self.running(caller).is_none() || self.running(home).is_none() {
            return;
        }
        let Some(peer) = self.peer(caller, home) else {
            return;
        };
        let step_id = self.any_step();
        for _ in 0..self.random.usize(1..=8) {
            let len_bytes = self.random.usize(BODY_BYTES_MIN..=2 * BODY_BYTES_MIN);
            let id = self.plan_tensor_of(home, step_id, len_bytes);
            match self.random.u32(..8) {
                0 => {
                    let delay = self.pause(4);
                    self.plan(delay, Plan::Offer(id));
                }
                _ => self.offer(id),
            }
            self.receive(caller, &peer, step_id, vec![id], None, false);
        }
    }

    /// Tensors of a step that nobody has got yet, also such as were asked for before.
    fn wanted(&mut self, home: usize, step_id: i64, count: usize) -> Vec<usize> {
        let model = self.watcher.model();
        let name = (home, model.tasks[home].epoch, step_id);
        let ids: Vec<usize> = (model.tensors.iter())
            .filter(|(_, record)| (record.home, record.epoch, record.step_id) == name)
            .filter(|(_, record)| record.delivered_to.is_none())
            .map(|(id, _)| id)
            .collect();
        let wanted = self.random.usize(..=count);
        self.random.choose_multiple(ids, wanted)
    }

    /// Now and then a tensor of an earlier run of the task.
    fn out_of_date(&mut self, home: usize) -> Option<usize> {
        let model = self.watcher.model();
        let epoch = model.tasks[home].epoch;
        if epoch == 0 || self.random.u32(..8) > 0 {
            return None;
        }
        let ids: Vec<usize> = (model.tensors.iter())
            .filter(|(_, record)| record.home == home && record.epoch < epoch)
            .map(|(id, _)| id)
            .collect();
        self.random.choice(ids)
    }

    fn receive(
        &mut self,
        caller: usize,
        peer: &Peer,
        step_id: i64,
        ids: Vec<usize>,
        timeout: Option<Duration>,
        to_sink: bool,
    ) {
        let keys: Vec<Text> = {
            let model = self.watcher.model();
            let key = |id: &usize| model.tensors.record(*id).key.clone();
            ids.iter().map(key).collect()
        };
        let request = match &keys[..] {
            [key] if self.random.u32(..4) > 0 => Request::RecvTensor {
                step_id,
                key: key.clone(),
            },
            _ => Request::FuseRecvTensor {
                step_id,
                keys: keys.into(),
            },
        };
        let kind = Kind::Receive {
            step_id,
            tensors: ids,
        };
        if to_sink {
            // Nobody can give up such a call, so it has to end by itself.
            let timeout = timeout.unwrap_or_else(|| self.pause(40));
            self.call_with_handler(caller, peer, kind, request, timeout);
        } else {
            let id = self.call_future(caller, peer, kind, request, timeout);
            self.maybe_drop(id);
        }
    }
}

/// Tasks that call the next one again and again; there are more tasks.
const STORMS: usize = 3;

const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);
