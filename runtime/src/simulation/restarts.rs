//! How tasks come and go, and what must be left of them when they are gone: nothing.

use std::time::Duration;

use grpcxx_rpc::{Features, TensorStore};

use super::calls::State;
use super::cluster::{Cluster, Plan};
use super::task::{SimShard, SimTask, Start, address_of, host_of};
use crate::command::Command;
use crate::limits::FLUSH_TIME;

impl Cluster {
    pub(super) fn start(&mut self, index: usize) {
        if self.tasks[index].is_some() {
            // It is still stopping.
            return self.plan(RESTART_RETRY, Plan::Start(index));
        }
        self.runs_started += 1;
        let mut model = self.watcher.model();
        let record = &mut model.tasks[index];
        let incarnation = (index as u64) << 32 | self.runs_started;
        if !record.incarnations.is_empty() {
            record.epoch += 1;
        }
        record.incarnations.push(incarnation);
        record.is_running = true;
        let (announces, epoch) = (record.announces, record.epoch);
        model.note(format_args!("task {index} starts, run {epoch}"));
        drop(model);
        let has_device =
            (self.profile.rdma.as_ref()).is_some_and(|rdma| self.random.f64() < rdma.device_chance);
        let features = if announces {
            Features::ALL
        } else {
            Features::NONE
        };
        self.tasks[index] = Some(SimTask::start(&Start {
            index,
            address: address_of(index, epoch),
            incarnation,
            features,
            shards: self.random.usize(1..=3),
            seed: self
                .seed
                .wrapping_mul(1000)
                .wrapping_add(self.runs_started * 8),
            profile: &self.profile,
            network: &self.network,
            fabric: self.fabric.as_ref().filter(|_| has_device),
            watcher: &self.watcher,
        }));
    }

    pub(super) fn crash(&mut self, index: usize) {
        let Some(mut task) = self.tasks[index].take() else {
            return;
        };
        self.note(format_args!("task {index} crashes"));
        self.down(index);
        self.network.crash(host_of(index));
        let mut model = self.watcher.model();
        let epoch = model.tasks[index].epoch;
        let lost: Vec<usize> = (model.calls.iter())
            .filter(|(_, call)| (call.caller, call.caller_epoch) == (index, epoch))
            .filter(|(_, call)| call.state == State::Open)
            .map(|(id, _)| id)
            .collect();
        for id in lost {
            model.calls.close(id, State::Crashed);
        }
        drop(model);
        task.forget();
        self.bury(task);
    }

    pub(super) fn stop(&mut self, index: usize, grace: Duration) {
        if self.running(index).is_none() {
            return;
        }
        self.note(format_args!("task {index} is told to stop in {grace:?}"));
        self.down(index);
        let stop_by = self.now + grace + self.profile.drain.time + FLUSH_TIME + STOP_SLACK;
        if let Some(task) = &mut self.tasks[index] {
            task.stop_by = Some(stop_by);
            for shard in 0..task.shards.len() {
                task.mailboxes.deliver(shard, Command::Stop { grace });
            }
        }
    }

    /// Notes that a task runs no longer.
    fn down(&mut self, index: usize) {
        let record = &mut self.watcher.model().tasks[index];
        record.is_running = false;
        record.was_disturbed = true;
    }

    pub(super) fn bury_stopped(&mut self) {
        for index in 0..self.tasks.len() {
            let Some(task) = &self.tasks[index] else {
                continue;
            };
            let Some(stop_by) = task.stop_by else {
                continue;
            };
            if task.is_finished()
                && let Some(mut task) = self.tasks[index].take()
            {
                self.note(format_args!("task {index} has stopped"));
                for shard in &mut task.shards {
                    shard.transport().inner().assert_settled();
                }
                task.late.clear();
                task.jobs.clear();
                task.end_streams();
                let shards = std::mem::take(&mut task.shards);
                self.check_arenas(index, &task, shards);
                task.poll_calls();
                let open = (task.calls.iter()).map(|(id, _)| *id).collect::<Vec<_>>();
                assert!(
                    open.is_empty(),
                    "task {index} has stopped, but its calls {open:?} have no result"
                );
                self.check_sinks(index);
            } else {
                assert!(
                    self.now <= stop_by,
                    "task {index} had to be gone by {stop_by:?}"
                );
            }
        }
    }

    /// Checks that no call of a stopped task is without a result.
    fn check_sinks(&self, index: usize) {
        let model = self.watcher.model();
        let epoch = model.tasks[index].epoch;
        for (id, call) in model.calls.iter() {
            let is_own = (call.caller, call.caller_epoch) == (index, epoch);
            assert!(
                !is_own || call.state != State::Open,
                "task {index} has stopped, but the handler of call {id} heard nothing: {call:?}"
            );
        }
    }

    fn bury(&mut self, mut task: SimTask) {
        let shards = std::mem::take(&mut task.shards);
        self.check_arenas(task.index, &task, shards);
    }

    /// Lets go of a task's memory and checks that all of it came home.
    fn check_arenas(&self, index: usize, task: &SimTask, shards: Vec<SimShard>) {
        task.store.store(std::sync::Arc::new(TensorStore::new(
            grpcxx_rpc::StoreLimits::default(),
        )));
        let mut arenas: Vec<_> = shards.into_iter().map(SimShard::into_arena).collect();
        // Methods heard that their clients are gone, and hold what these have sent.
        while task.jobs.len() > 0 {
            task.jobs.clear();
        }
        for arena in &mut arenas {
            arena.reclaim();
            let statistics = arena.statistics();
            assert_eq!(
                statistics.in_use_bytes, 0,
                "task {index} is gone, but memory of it is in use: {statistics:?}"
            );
        }
    }
}

/// How much longer than promised a stop may take: a stalled transport, and turns that come late.
const STOP_SLACK: Duration = Duration::from_millis(20);

const RESTART_RETRY: Duration = Duration::from_millis(5);
