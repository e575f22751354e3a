//! Pushes of several calls: each becomes visible as a whole, at its commit, or never, and what is
//! staged is gone when nobody goes on with it.

use std::time::Duration;

use fastrand::Rng;
use grpcxx_rpc::{GraphCall, Request, Text};
use grpcxx_transport::Time;

use super::calls::{Kind, State};
use super::cluster::Cluster;
use super::model::stored;
use super::task::address_of;
use super::tensors::tensor;
use crate::client::Peer;
use crate::staging::{Act, STORE_COMMIT, STORE_DISCARD, STORE_STAGE};

/// All pushes of a run.
#[derive(Debug)]
pub(super) struct Pushes {
    /// Decides on all of pushes, so that it draws nothing of what others do.
    random: Rng,
    begun: u64,
    open: Vec<Push>,
    over: Vec<(Push, Fate)>,
    /// Those whose commit succeeded.
    pub(super) committed: u64,
}

/// A push as its caller sees it.
#[derive(Debug)]
struct Push {
    number: u64,
    caller: (usize, u32),
    callee: (usize, u32),
    peer: Peer,
    /// Batches that are still to be staged.
    batches: usize,
    names: Vec<Text>,
    begun_at: Time,
    last_at: Time,
    /// Calls that it waits for.
    calls: Vec<usize>,
    is_committing: bool,
}

/// What may have become of a push that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Nobody committed it.
    Invisible,
    /// The answer to its commit was lost, or nobody waited for it.
    Unknown,
}

impl Pushes {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed ^ PUSHES_SEED),
            begun: 0,
            open: Vec::new(),
            over: Vec::new(),
            committed: 0,
        }
    }

    /// How long a push of a task waits for its next call, and how long it lasts in all.
    pub(super) fn draw_times(&mut self) -> (Duration, Duration) {
        let patience = Duration::from_millis(self.random.u64(20..=300));
        (patience, patience * self.random.u32(1..=4))
    }
}

impl Cluster {
    /// Goes on with the pushes that are under way, and begins one now and then.
    pub(super) fn operate_pushes(&mut self) {
        for push in std::mem::take(&mut self.pushes.open) {
            self.go_on(push);
        }
        if self.pushes.random.u32(..6) == 0 {
            self.begin_push();
        }
    }

    fn begin_push(&mut self) {
        let running: Vec<usize> = (0..self.tasks.len())
            .filter(|&index| self.running(index).is_some())
            .collect();
        let random = &mut self.pushes.random;
        let (Some(caller), callee) = (random.choice(running), random.usize(..self.tasks.len()))
        else {
            return;
        };
        let (batches, connection) = (random.usize(1..=4), random.usize(..4) / 3);
        let epoch = |index: usize| (index, self.watcher.model().tasks[index].epoch);
        let (caller, callee) = (epoch(caller), epoch(callee));
        let address = address_of(callee.0, callee.1).to_string();
        let task = self.tasks[caller.0].as_ref();
        let peer = task.and_then(|task| task.client.peer_over(&address, connection).ok());
        let Some(peer) = peer.filter(|_| caller.0 != callee.0) else {
            return;
        };
        self.pushes.begun += 1;
        let mut push = Push {
            number: self.pushes.begun,
            caller,
            callee,
            peer,
            batches,
            names: Vec::new(),
            begun_at: self.now,
            last_at: self.now,
            calls: Vec::new(),
            is_committing: false,
        };
        self.call_push(&mut push, Act::Stage, Vec::new());
        self.pushes.open.push(push);
    }

    /// Makes the next call of a push, if all before have succeeded.
    fn go_on(&mut self, mut push: Push) {
        let model = self.watcher.model();
        let states = push.calls.iter().map(|id| model.calls.record(*id).state);
        let states: Vec<State> = states.collect();
        let is_alone = model.tasks[push.caller.0].epoch != push.caller.1;
        drop(model);
        if is_alone || self.running(push.caller.0).is_none() {
            return self.end_push(push);
        }
        if states.contains(&State::Open) {
            return self.pushes.open.push(push);
        }
        if states.iter().any(|state| *state != State::Finished(None)) {
            if !push.is_committing && self.pushes.random.bool() {
                self.call_push(&mut push, Act::Discard, Vec::new());
            }
            return self.end_push(push);
        }
        if push.is_committing {
            return self.check_committed(&push);
        }
        push.calls.clear();
        match self.pushes.random.u32(..16) {
            // Nobody goes on with it.
            0 => return self.end_push(push),
            1 => {
                self.call_push(&mut push, Act::Discard, Vec::new());
                return self.end_push(push);
            }
            // It takes its time.
            2..=5 => return self.pushes.open.push(push),
            _ if push.batches == 0 => {
                push.is_committing = true;
                self.call_push(&mut push, Act::Commit, Vec::new());
            }
            _ => self.stage_some(&mut push),
        }
        push.last_at = self.now;
        self.pushes.open.push(push);
    }

    /// Stages one batch, or two at once.
    fn stage_some(&mut self, push: &mut Push) {
        let at_once = self.pushes.random.usize(1..=2).min(push.batches);
        push.batches -= at_once;
        for _ in 0..at_once {
            let count = self.pushes.random.usize(1..=3);
            let first = push.names.len();
            let name = |index| Text::from(format!("pushed_{}_{index}", push.number));
            let names: Vec<Text> = (first..first + count).map(name).collect();
            push.names.extend(names.iter().cloned());
            self.call_push(push, Act::Stage, names);
        }
    }

    fn call_push(&mut self, push: &mut Push, act: Act, names: Vec<Text>) {
        let function = match act {
            Act::Stage => STORE_STAGE,
            Act::Commit => STORE_COMMIT,
            Act::Discard => STORE_DISCARD,
        };
        let feed = |name: Text| {
            let bytes = stored(&name);
            (name, tensor(bytes))
        };
        let call = GraphCall {
            step_id: push.number,
            feeds: names.into_iter().map(feed).collect(),
            ..GraphCall::new(function)
        };
        let request = Request::StarRunGraph(Box::new(call));
        let random = &mut self.pushes.random;
        let timeout = (random.u32(..12) == 0).then(|| Duration::from_micros(random.u64(1..50_000)));
        let kind = Kind::Staged {
            act,
            begun_at: push.begun_at,
            last_at: push.last_at,
        };
        let id = self.call_future(push.caller.0, &push.peer, kind, request, timeout);
        push.calls.push(id);
    }

    fn end_push(&mut self, push: Push) {
        let fate = match push.is_committing {
            true => Fate::Unknown,
            false => Fate::Invisible,
        };
        self.pushes.over.push((push, fate));
    }

    /// Checks a push whose commit succeeded, and makes room for others.
    fn check_committed(&mut self, push: &Push) {
        self.pushes.committed += 1;
        let (callee, epoch) = push.callee;
        let is_same_run = self.watcher.model().tasks[callee].epoch == epoch;
        let Some(task) = self.tasks[callee].as_ref().filter(|_| is_same_run) else {
            return;
        };
        let store = task.store.load_full();
        for name in &push.names {
            let tensor = store.fetch(name).expect("what was committed is visible");
            let holds = tensor.data[..] == stored(name)[..];
            assert!(holds, "{name} of task {callee} has other bytes");
        }
        let mut store = (*store).clone();
        for name in &push.names {
            store.remove(name);
        }
        task.store.store(store.into());
    }

    /// Checks what is left of all pushes when nobody makes calls any more.
    pub(super) fn check_pushes(&mut self) {
        for push in std::mem::take(&mut self.pushes.open) {
            self.end_push(push);
        }
        for (push, fate) in &self.pushes.over {
            let Some(task) = &self.tasks[push.callee.0] else {
                continue;
            };
            let store = task.store.load();
            let is_visible = |name: &&Text| store.contains(name.as_str());
            let visible = push.names.iter().filter(is_visible).count();
            let is_whole = visible == push.names.len() && *fate == Fate::Unknown;
            assert!(
                visible == 0 || is_whole,
                "{visible} tensors are visible of a push: {push:?} {fate:?}"
            );
        }
        for task in self.tasks.iter().flatten() {
            let staged = (task.staged.tensors(), task.staged.data_bytes());
            assert_eq!(
                staged,
                (0, 0),
                "task {} keeps what was staged and nobody goes on with",
                task.index
            );
        }
    }
}

/// Makes another seed of a seed.
const PUSHES_SEED: u64 = 0x7075_7368_6573;
