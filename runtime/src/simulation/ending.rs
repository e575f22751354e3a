use std::time::Duration;

use grpcxx_rpc::{Code, Status};
use grpcxx_transport::Time;

use super::Outcome;
use super::calls::{Kind, State};
use super::cluster::Cluster;
use super::task::SimShard;
use super::tensors;
use crate::command::Command;

/// A whole run, and what must be true when it is over.
impl Cluster {
    pub(super) fn play(&mut self) -> Outcome {
        let mut next = Time::ZERO;
        let mut operations = 0;
        while operations < self.profile.operations {
            let pace_ns = self.profile.pace.as_nanos() as u64;
            next = next + Duration::from_nanos(self.random.u64(1..=2 * pace_ns));
            self.run_until(next);
            let burst = self.random.usize(1..=self.profile.burst);
            for _ in 0..burst {
                self.operate();
                self.operate_streams();
                self.operate_pushes();
            }
            operations += burst;
        }
        self.calm_down();
        self.drain_steps();
        self.abort_all();
        self.stop_all();
        self.outcome()
    }

    /// Lets everything come to its end that does so by itself, and gives up what cannot.
    fn calm_down(&mut self) {
        self.note(format_args!("no more operations"));
        self.network.heal_all();
        let planned = self.run_while(PATIENCE, |cluster| cluster.has_plans());
        assert!(planned, "plans are left over");
        self.run_while(SETTLING, |cluster| cluster.has_open_calls());
        self.check_waiting();
        self.give_up_receives();
        self.give_up_streams();
        let ended = self.run_while(PATIENCE, |cluster| cluster.has_open_calls());
        // Where few calls may be under way on a connection, they can wait behind receives that
        // never end.
        assert!(
            ended || self.profile.is_tight,
            "calls without a result: {}",
            self.open_calls()
        );
        self.hostile.leave();
        let left = self.run_while(PATIENCE, |cluster| cluster.hostile.links() > 0);
        assert!(
            left,
            "a connection is kept on which a frame has begun and does not go on"
        );
        self.come_to_rest();
    }

    /// Lets everything arrive that is on its way: between hosts by then, and between the shards of
    /// a task, where a ring of one message takes a turn for each.
    fn come_to_rest(&mut self) {
        self.run_until(self.now + QUIET);
        let arrived = self.run_while(PATIENCE, |cluster| {
            let shards = cluster.tasks.iter().flatten().flat_map(|task| &task.shards);
            shards.map(SimShard::audit).any(|audit| audit.has_mail)
        });
        assert!(arrived, "messages between shards go on for ever");
    }

    /// Checks that calls still wait for a reason.
    fn check_waiting(&self) {
        if self.profile.is_tight {
            return;
        }
        let model = self.watcher.model();
        for (id, call) in model.calls.iter() {
            let Kind::Receive { tensors, .. } = &call.kind else {
                continue;
            };
            let is_old = self.now.since(call.issued_at) > SETTLING / 2;
            let is_served = (tensors.iter()).all(|tensor| model.tensors.is_there(*tensor));
            let is_excused = (tensors.iter()).any(|tensor| model.excuse(*tensor).is_some());
            assert!(
                call.state != State::Open || !is_old || !is_served || is_excused,
                "call {id} waits, but its tensors are there: {call:?}"
            );
            let record = model.tensors.record(tensors[0]);
            assert!(
                call.state != State::Open
                    || !is_old
                    || record.epoch == model.tasks[call.callee].epoch,
                "call {id} waits for an earlier run of its callee: {call:?}"
            );
        }
    }

    /// Receives every tensor that must still be in its step.
    fn drain_steps(&mut self) {
        for round in 0.. {
            let wanted: Vec<(usize, usize)> = {
                let model = self.watcher.model();
                (model.tensors.iter())
                    .filter(|(_, record)| record.state == tensors::State::Offered)
                    .filter(|(_, record)| record.delivered_to.is_none())
                    .filter(|(id, _)| model.excuse(*id).is_none())
                    .map(|(id, record)| (record.home, id))
                    .take(DRAINED_AT_ONCE)
                    .collect()
            };
            if wanted.is_empty() {
                break;
            }
            for &(home, id) in &wanted {
                self.drain(home, id);
            }
            let ended = self.run_while(PATIENCE, |cluster| cluster.has_open_drains());
            assert!(ended, "calls without a result: {}", self.open_calls());
            // Where limits are low a receive may be refused.
            if !self.profile.is_tight || round >= DRAIN_ROUNDS {
                self.check_found(&wanted);
            }
        }
        // The last of them have only just ended.
        self.come_to_rest();
        for task in self.tasks.iter().flatten() {
            let audits = || task.shards.iter().map(SimShard::audit);
            let waiters: usize = audits().map(|audit| audit.waiters).sum();
            let askers: usize = audits().map(|audit| audit.calls + audit.requests).sum();
            assert!(
                waiters <= askers,
                "in steps of task {} wait {waiters} requests of {askers} askers",
                task.index
            );
            for audit in audits() {
                assert!(!audit.has_mail, "task {}: {audit:?}", task.index);
                assert!(
                    audit.calls == 0 || self.profile.is_tight,
                    "task {}: {audit:?}",
                    task.index
                );
            }
        }
    }

    fn check_found(&self, wanted: &[(usize, usize)]) {
        let model = self.watcher.model();
        for &(home, id) in wanted {
            let record = model.tensors.record(id);
            assert!(
                record.delivered_to.is_some() || record.has_left,
                "tensor {id} of task {home} is lost: {record:?}"
            );
        }
    }

    /// Ends all steps, so that nothing is left to wait for.
    fn abort_all(&mut self) {
        for task in self.tasks.iter().flatten() {
            for shard in 0..task.shards.len() {
                let status = Status::new(Code::OutOfRange, "End of sequence");
                task.mailboxes.deliver(shard, Command::AbortAll { status });
            }
        }
        let ended = self.run_while(PATIENCE, |cluster| cluster.has_open_calls());
        assert!(ended, "calls without a result: {}", self.open_calls());
        self.run_until(self.now + self.profile.staged_patience);
        self.come_to_rest();
        self.check_pushes();
        for task in self.tasks.iter().flatten() {
            for shard in &task.shards {
                let audit = shard.audit();
                assert!(
                    (audit.calls, audit.waiters, audit.stored_bytes) == (0, 0, 0),
                    "task {} has nothing to do: {audit:?}",
                    task.index
                );
            }
            assert_eq!(
                task.served_streams(),
                (0, 0),
                "task {} serves streams that nobody has",
                task.index
            );
            assert!(
                task.late.service_tensors.is_at_rest(),
                "answers of task {} hold tensors that they do not need any more",
                task.index
            );
        }
    }

    /// Stops what runs, some of it at once.
    fn stop_all(&mut self) {
        let mut order: Vec<usize> = (0..self.tasks.len()).collect();
        self.random.shuffle(&mut order);
        for index in order {
            if self.random.u32(..8) == 0 {
                self.crash(index);
            } else {
                // Nothing is under way, so nobody needs the grace.
                self.stop(index, PATIENCE);
            }
        }
        let gone = self.run_while(PATIENCE / 10, |cluster| {
            cluster.tasks.iter().any(Option::is_some)
        });
        assert!(gone, "a task does not stop though it has nothing to do");
        let model = self.watcher.model();
        assert_eq!(model.calls.open(), 0, "calls without a result");
        assert_eq!(
            model.tensors.live(),
            0,
            "tensors are still held by somebody"
        );
    }

    fn give_up_receives(&mut self) {
        for task in self.tasks.iter_mut().flatten() {
            let receives: Vec<usize> = {
                let model = self.watcher.model();
                let is_receive =
                    |id: &usize| matches!(model.calls.record(*id).kind, Kind::Receive { .. });
                let ids = task.calls.iter().map(|(id, _)| *id);
                ids.filter(is_receive).collect()
            };
            for id in receives {
                task.drop_call(id);
            }
        }
    }

    fn has_open_calls(&self) -> bool {
        self.watcher.model().calls.open() > 0
    }

    fn has_open_drains(&self) -> bool {
        let model = self.watcher.model();
        (model.calls.iter())
            .any(|(_, call)| call.state == State::Open && matches!(call.kind, Kind::Receive { .. }))
    }

    fn open_calls(&self) -> String {
        let model = self.watcher.model();
        let open = model
            .calls
            .iter()
            .filter(|(_, call)| call.state == State::Open);
        format!("{:?}", open.collect::<Vec<_>>())
    }

    fn outcome(&self) -> Outcome {
        let model = self.watcher.model();
        let count = |count: usize| count as u64;
        let succeeded = |state: State| state == State::Finished(None);
        Outcome {
            hash: model.journal.hash(),
            events: model.journal.count(),
            calls: count(model.calls.iter().count()),
            calls_succeeded: count(
                model
                    .calls
                    .iter()
                    .filter(|(_, call)| succeeded(call.state))
                    .count(),
            ),
            tensors: count(model.tensors.iter().count()),
            tensors_delivered: count(
                (model.tensors.iter())
                    .filter(|(_, record)| record.delivered_to.is_some())
                    .count(),
            ),
            tensors_returned: count(model.tensors.returned()),
            chunks: model.chunks,
            migrated: model.migrated,
            failed_over: model.failed_over,
            messages: model.streams.messages,
            pushes: self.pushes.committed,
        }
    }
}

/// How long something may take that must come to an end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Enough for calls to end that do so by themselves: the longest wait for a connection, and more.
const SETTLING: Duration = Duration::from_secs(3);

/// Enough for everything that is on its way between hosts to arrive.
const QUIET: Duration = Duration::from_millis(100);

const DRAINED_AT_ONCE: usize = 16;
const DRAIN_ROUNDS: usize = 1000;
