use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use foldhash::fast::RandomState;
use grpcxx_memory::Buffer;
use grpcxx_rpc::{
    HeldTensor, Reason, Rendezvous, RendezvousLimits, Response, Status, StepCountdown, Tensor, Text,
};
use grpcxx_transport::{SlotTable, Time};
use smallvec::SmallVec;

use crate::command::{GraphDone, Keys, Origin, SlotId, Taken, WaitsLong};
use crate::shard::core::Core;
use crate::shard::in_flight::{from_token, token};
use crate::shard::keys::KnownKeys;

/// The steps whose home is this shard, and who waits in them.
#[derive(Debug)]
pub(super) struct Steps {
    rendezvous: Rendezvous,
    countdown: StepCountdown,
    waiters: SlotTable<Waiter>,
    by_origin: HashMap<Origin, SlotId, RandomState>,
    pub(super) keys: KnownKeys,
    /// Where to look next for requests that wait long.
    looks_at: u32,
    /// Steps of which it was said that they wait, the latest last.
    told_steps: VecDeque<i64>,
    /// Hashes of the keys of the request that is being served.
    key_hashes: Vec<u64>,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) origin: Origin,
    pub(super) step_id: i64,
    pub(super) keys: Keys,
    pub(super) since: Time,
    is_told: bool,
}

impl Steps {
    pub(super) fn new(limits: RendezvousLimits) -> Self {
        let (waiters, steps) = (limits.waiters, limits.steps);
        let rendezvous = Rendezvous::new(limits);
        Self {
            waiters: SlotTable::new(waiters),
            countdown: StepCountdown::new(steps),
            keys: KnownKeys::new(rendezvous.key_hasher()),
            rendezvous,
            by_origin: HashMap::default(),
            looks_at: 0,
            told_steps: VecDeque::new(),
            key_hashes: Vec::new(),
        }
    }

    /// Takes the tensor of a key, if it is there with at most so many bytes and nobody else waits
    /// for it, and holds it.
    #[inline]
    pub(super) fn hold(
        &mut self,
        step_id: i64,
        key: &Text,
        key_hash: u64,
        data_bytes_max: usize,
    ) -> Option<(HeldTensor, &Tensor)> {
        (self.rendezvous).hold(step_id, key, key_hash, data_bytes_max)
    }

    /// Drops tensors that were held.
    #[inline]
    pub(super) fn release(&mut self, held: impl Iterator<Item = HeldTensor>) {
        held.for_each(|held| self.rendezvous.release(held));
    }

    /// Takes a tensor that was held from where it is, with its step and its key.
    pub(super) fn take_held(&mut self, held: HeldTensor) -> Option<(i64, Text, Tensor)> {
        self.rendezvous.take_held(held)
    }
}

/// What is told of the steps.
impl Steps {
    /// Requests that wait.
    pub(super) fn waiters(&self) -> usize {
        self.waiters.len()
    }

    /// The requests that wait, in no order.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.values()
    }

    /// The first key of a request whose tensor is not there.
    pub(super) fn first_missing(&self, waiter: &Waiter) -> Text {
        let is_missing = |key: &&Text| !self.rendezvous.has_tensor(waiter.step_id, key);
        let keys = waiter.keys.iter();
        let missing = keys.take(KEYS_LOOKED_AT_MAX).find(is_missing);
        missing.or(waiter.keys.first()).cloned().unwrap_or_default()
    }

    /// Tensors that wait, among the first places where some may be.
    pub(super) fn parked(&self, places: usize) -> impl Iterator<Item = (i64, &Text, &Tensor)> {
        self.rendezvous.parked(places)
    }

    /// Requests that have waited so long, one of each step of which none was told before. Looks at
    /// some, and at the others the next times.
    pub(super) fn late(&mut self, now: Time, step_wait: Duration) -> Vec<WaitsLong> {
        let mut late = Vec::new();
        let slots = self.waiters.slots().end;
        for _ in 0..slots.min(WAITERS_PER_LOOK) {
            let slot = self.looks_at % slots;
            self.looks_at = slot + 1;
            let Some((id, waiter)) = self.waiters.at(slot) else {
                continue;
            };
            let waited = now.since(waiter.since);
            if waited < step_wait || std::mem::replace(&mut waiter.is_told, true) {
                continue;
            }
            let (origin, step_id) = (waiter.origin, waiter.step_id);
            if self.told_steps.contains(&step_id) {
                continue;
            }
            if self.told_steps.len() >= TOLD_STEPS_MAX {
                self.told_steps.pop_front();
            }
            self.told_steps.push_back(step_id);
            let key = self
                .waiters
                .find(id)
                .map(|waiter| self.first_missing(waiter));
            late.push(WaitsLong {
                origin,
                step_id,
                key: key.unwrap_or_default(),
                waited,
            });
        }
        late
    }

    /// Keys under which something waits.
    pub(super) fn waiting_keys(&self) -> usize {
        self.rendezvous.waiting_keys()
    }

    /// Bytes of the tensors that wait.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.rendezvous.stored_bytes()
    }

    #[cfg(all(any(test, fuzzing), not(loom)))]
    pub(super) fn unfinished_steps(&self) -> usize {
        self.countdown.unfinished_steps()
    }
}

impl<A> Core<A> {
    /// Hashes the keys of a request for [`Core::receive`].
    pub(super) fn hash_keys(&mut self, keys: &Keys) {
        self.steps.key_hashes.clear();
        for key in keys.iter() {
            let hash = self.steps.keys.hash(key.as_buffer());
            self.steps.key_hashes.push(hash);
        }
    }

    /// Hashes the keys of a request if tensors with all of them can come from this task.
    pub(super) fn check_keys(&mut self, keys: &Keys) -> Result<(), Status> {
        self.steps.key_hashes.clear();
        for key in keys.iter() {
            let hash = self.steps.keys.check(key, &self.shared.task)?;
            self.steps.key_hashes.push(hash);
        }
        Ok(())
    }

    /// Receives from a step of this shard, once its keys are hashed. Returns whether the answer has
    /// to wait.
    pub(super) fn receive(&mut self, origin: Origin, step_id: i64, keys: Keys) -> bool {
        if self.is_stopping() {
            self.answer(origin, Err(self.stopping()), None);
            return false;
        }
        let rendezvous = &mut self.steps.rendezvous;
        if let Some(tensors) = rendezvous.take(step_id, &keys, &self.steps.key_hashes) {
            let taken = Taken { step_id, keys };
            self.answer(origin, Ok(Response::Tensors(tensors)), Some(taken));
            return false;
        }
        let all = keys.iter().cloned().collect();
        let waiter = Waiter {
            origin,
            step_id,
            keys,
            since: self.now,
            is_told: false,
        };
        let Ok(id) = self.steps.waiters.insert(waiter) else {
            let status = Status::new(
                grpcxx_rpc::Code::ResourceExhausted,
                "too many requests wait for tensors on this task",
            )
            .because(Reason::Limit);
            self.answer(origin, Err(status), None);
            return false;
        };
        if let Err(status) = self.steps.rendezvous.receive(step_id, all, token(id)) {
            self.steps.waiters.remove(id);
            self.answer(origin, Err(status), None);
            return false;
        }
        self.take_ready();
        let waits = self.steps.waiters.find(id).is_some();
        if waits {
            self.steps.by_origin.insert(origin, id);
        }
        waits
    }

    pub(super) fn forget(&mut self, origin: Origin) {
        if let Some(id) = self.steps.by_origin.remove(&origin) {
            self.steps.rendezvous.forget(token(id));
            self.steps.waiters.remove(id);
        }
    }

    pub(super) fn send(&mut self, step_id: i64, key: Text, tensor: Tensor, origin: Option<Origin>) {
        let (key, key_hash) = self.steps.keys.known(key);
        let sent = (self.steps.rendezvous).send_hashed(step_id, key, key_hash, tensor);
        let result = sent.map_err(|rejected| rejected.status);
        match result {
            Ok(()) => self.counters().sends.add(1),
            Err(_) => self.counters().sends_refused.add(1),
        }
        self.take_ready();
        self.confirm(origin, result);
    }

    pub(super) fn restore(&mut self, step_id: i64, keys: Keys, tensors: SmallVec<[Tensor; 1]>) {
        self.counters().restored.add(tensors.len() as u64);
        for (key, tensor) in keys.iter().cloned().zip(tensors) {
            if !self.steps.rendezvous.restore(step_id, key, tensor) {
                self.counters().sends_refused.add(1);
            }
        }
        self.take_ready();
    }

    pub(super) fn abort(&mut self, step_id: i64, status: Status, origin: Option<Origin>) {
        self.steps.countdown.remove(step_id as u64);
        self.steps.rendezvous.abort(step_id, status);
        self.take_ready();
        self.confirm(origin, Ok(()));
    }

    pub(super) fn abort_all(&mut self, status: Status) {
        self.steps.rendezvous.abort_all(status);
        self.take_ready();
    }

    pub(super) fn cleanup(&mut self, step_id: i64, origin: Option<Origin>) {
        self.steps.countdown.remove(step_id as u64);
        self.steps.rendezvous.cleanup(step_id);
        self.take_ready();
        self.confirm(origin, Ok(()));
    }

    pub(super) fn graph_done(&mut self, done: GraphDone) {
        let step_id = done.step_id;
        if self.steps.rendezvous.is_closed(step_id) {
            // Its other calls need not come any more.
            return;
        }
        let countdown = &mut self.steps.countdown;
        let counted = countdown.count(step_id as u64, done.ps_graph_count, done.account);
        if counted.has_given_up {
            self.counters().countdowns_given_up.add(1);
        }
        if counted.is_last {
            self.shared.authority.step_ended(step_id);
            self.cleanup(step_id, None);
        }
    }

    #[inline]
    fn take_ready(&mut self) {
        if self.steps.rendezvous.has_ready() {
            self.hand_out_ready();
        }
    }

    fn hand_out_ready(&mut self) {
        while let Some(ready) = self.steps.rendezvous.poll_ready() {
            let Some(waiter) = self.steps.waiters.remove(from_token(ready.waiter)) else {
                continue;
            };
            if !self.steps.by_origin.is_empty() {
                self.steps.by_origin.remove(&waiter.origin);
            }
            let taken = Taken {
                step_id: waiter.step_id,
                keys: waiter.keys,
            };
            self.answer(
                waiter.origin,
                ready.result.map(Response::Tensors),
                Some(taken),
            );
        }
    }

    fn confirm(&mut self, origin: Option<Origin>, result: Result<(), Status>) {
        if let Some(origin) = origin {
            let done = result.map(|()| Response::Message(Buffer::new()));
            self.answer(origin, done, None);
        }
    }
}

/// Most keys of a request that are looked for to tell which is missing.
const KEYS_LOOKED_AT_MAX: usize = 1_000;

/// Most requests that a shard looks at in one look for those that wait long.
const WAITERS_PER_LOOK: u32 = 1_024;

/// Steps that are remembered as told.
const TOLD_STEPS_MAX: usize = 64;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn waiter(step_id: i64, since: Time) -> Waiter {
        let call = SlotId {
            slot: 0,
            generation: 1,
        };
        Waiter {
            origin: Origin::Local { shard: 0, call },
            step_id,
            keys: Keys::One(Text::from("key")),
            since,
            is_told: false,
        }
    }

    #[test]
    fn a_step_that_waits_long_is_told_once_however_many_wait_in_it() {
        let mut steps = Steps::new(RendezvousLimits::default());
        let wait = Duration::from_nanos(100);
        for step_id in [1, 1, 2, 2, 2] {
            let waiter = waiter(step_id, Time::from_nanos(step_id as u64 * 50));
            steps.waiters.insert(waiter).unwrap();
        }
        let mut told = |now| {
            let late = steps.late(Time::from_nanos(now), wait);
            let told = late
                .into_iter()
                .map(|late| (late.step_id, late.key.to_string()));
            told.collect::<Vec<_>>()
        };
        assert_eq!(told(149), []);
        assert_eq!(told(150), [(1, "key".to_owned())]);
        assert_eq!(told(199), []);
        assert_eq!(told(500), [(2, "key".to_owned())]);
        assert_eq!(told(u64::MAX), []);
    }

    #[test]
    fn each_look_goes_on_where_the_last_one_ended() {
        let mut steps = Steps::new(RendezvousLimits::default());
        for step_id in 0..3_000 {
            steps.waiters.insert(waiter(step_id, Time::ZERO)).unwrap();
        }
        let mut look = || {
            steps
                .late(Time::from_nanos(9), Duration::from_nanos(9))
                .len()
        };
        let told = [look(), look(), look(), look()];
        assert_eq!(told, [1_024, 1_024, 952, 0]);
    }
}
