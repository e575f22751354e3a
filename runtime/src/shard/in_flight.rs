//! The in-flight table of a shard: where the result of each call goes.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use foldhash::fast::RandomState;
use grpcxx_memory::BufferMut;
use grpcxx_rpc::{CallId, Status, TensorMeta};
use grpcxx_transport::{SlotTable, VacantSlot};

use crate::blame::survive;
use crate::caller::Caller;
use crate::command::SlotId;
use crate::completion::{Completion, Recipient, Target};
use crate::latency::CallStart;
use crate::limits;
use crate::service::StreamEnds;
use crate::watch::RequestWatch;

/// The calls that this shard has accepted and not yet finished.
///
/// An entry is where the result of its call goes, and when the call began. What only calls have
/// that can be withdrawn, or that this process serves, is in `details`, so that the entry of a
/// small call stays short.
///
/// Invariant: a call with details has them at its slot; no other slot has any.
#[derive(Debug)]
pub(super) struct InFlight {
    entries: SlotTable<Entry>,
    details: Vec<Option<Details>>,
    /// The calls that can be withdrawn, by the numbers that their callers know.
    numbers: HashMap<u64, SlotId, RandomState>,
    /// Calls begun that the counters of the shard do not know yet.
    pub(super) begun: u64,
}

/// A call that has not ended.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) target: Target,
    pub(super) begun: CallStart,
}

/// What few calls need.
pub(super) struct Details {
    pub(super) number: Option<NonZeroU64>,
    pub(super) stage: Stage,
    /// Who makes it, if this process serves it.
    pub(super) caller: Caller,
    /// The service in this process that has the request.
    pub(super) watch: Option<Arc<dyn RequestWatch>>,
    /// What the shard has of its stream.
    pub(super) stream: Option<Box<StreamEnds>>,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Waits for a connection to the peer.
    Waiting { peer: u32 },
    /// Sent, or about to be, on the peer's connection.
    OnLink { peer: u32, call: CallId },
    /// Served in this process; `home` is the shard that may hold it parked.
    Local { home: Option<u16> },
}

impl InFlight {
    pub(super) fn new() -> Self {
        Self {
            entries: SlotTable::new(limits::CALLS_PER_SHARD),
            details: Vec::new(),
            numbers: HashMap::default(),
            begun: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How far each call has come that has details.
    #[cfg(debug_assertions)]
    pub(super) fn stages(&self) -> impl Iterator<Item = (SlotId, Stage)> {
        self.entries.keys().filter_map(|call| {
            let details = self.details.get(call.slot as usize)?.as_ref()?;
            Some((call, details.stage))
        })
    }

    /// Panics where details or numbers are left of a call that has ended.
    #[cfg(debug_assertions)]
    pub(super) fn check(&self) {
        let details = || self.details.iter().flatten();
        assert_eq!(
            details().count(),
            self.stages().count(),
            "details without a call"
        );
        let numbered = details().filter(|details| details.number.is_some());
        assert_eq!(
            numbered.count(),
            self.numbers.len(),
            "numbers without a call"
        );
    }

    #[cfg(any(debug_assertions, all(any(test, fuzzing), not(loom))))]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether a call has not ended.
    pub(super) fn has(&self, call: SlotId) -> bool {
        self.entries.find(call).is_some()
    }

    /// Whether this process serves the call itself.
    pub(super) fn is_local(&self, call: SlotId) -> bool {
        let details = self.details.get(call.slot as usize);
        details
            .and_then(Option::as_ref)
            .is_some_and(|details| matches!(details.stage, Stage::Local { .. }))
    }

    /// Who makes a call that this process serves itself.
    pub(super) fn caller(&self, call: SlotId) -> Caller {
        let details = self.details.get(call.slot as usize);
        (details.and_then(Option::as_ref)).map_or(Caller::OWN, |details| details.caller)
    }

    /// The names of all calls.
    pub(super) fn ids(&self) -> Vec<SlotId> {
        self.entries.keys().collect()
    }

    /// The call that its caller knows by this number.
    pub(super) fn numbered(&self, number: u64) -> Option<SlotId> {
        self.numbers.get(&number).copied()
    }

    /// Where the result of a call goes.
    pub(super) fn target(&self, call: SlotId) -> Option<&Target> {
        self.entries.find(call).map(|entry| &entry.target)
    }

    /// The entry of the next call, unless the table is full.
    #[inline]
    pub(super) fn vacant(&mut self) -> Option<VacantSlot<'_, Entry, SlotId>> {
        self.entries.vacant()
    }

    /// The caller's own memory for a tensor of a response, if it brings any.
    pub(super) fn allocate(
        &self,
        token: u64,
        index: usize,
        meta: &TensorMeta,
    ) -> Option<Result<BufferMut, Status>> {
        (self.target(from_token(token))?).allocate(index, meta)
    }

    /// Whether a call may bring memory of its own for tensors.
    pub(super) fn allocates(&self, token: u64) -> bool {
        (self.target(from_token(token))).is_some_and(Target::allocates)
    }

    /// Notes which shard may hold a local call parked.
    pub(super) fn set_home(&mut self, call: SlotId, shard: usize) {
        let home = Some(shard as u16);
        self.set_stage(call, Stage::Local { home });
    }

    /// Notes who wants to hear what becomes of a local call.
    pub(super) fn watch(&mut self, call: SlotId, watch: Arc<dyn RequestWatch>) {
        if let Some(details) = self.details_mut(call) {
            details.watch = Some(watch);
        }
    }

    /// Takes who watches a local call.
    pub(super) fn take_watch(&mut self, call: SlotId) -> Option<Arc<dyn RequestWatch>> {
        self.details_mut(call)?.watch.take()
    }

    /// Ends all calls of a shard that has died, each by itself: a handler may panic again.
    pub(super) fn die(&mut self, status: &Status) {
        for entry in self.entries.values_mut() {
            let completion = Completion::new(std::mem::take(&mut entry.target));
            survive("the end of a call", || completion.end(status.clone()));
        }
        for details in self.details.drain(..).flatten() {
            if let Some(watch) = details.watch {
                survive("the watch of a request", || watch.withdrawn());
            }
        }
    }

    /// Takes a call with details in, unless the table is full.
    pub(super) fn insert(
        &mut self,
        target: Target,
        begun: CallStart,
        details: Option<Details>,
    ) -> Result<SlotId, Target> {
        let entry = Entry { target, begun };
        let id = self.entries.insert(entry).map_err(|entry| entry.target)?;
        if let Some(details) = details {
            if let Some(number) = details.number {
                self.numbers.insert(number.get(), id);
            }
            let slot = id.slot as usize;
            if self.details.len() <= slot {
                self.details.resize_with(slot + 1, || None);
            }
            self.details[slot] = Some(details);
        }
        Ok(id)
    }

    /// Forgets a call, of which its watch hears. Returns where its result goes and when it began,
    /// unless it has ended already.
    #[inline]
    pub(super) fn take(&mut self, id: SlotId) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        if (self.details.get(id.slot as usize)).is_some_and(Option::is_some) {
            self.forget_details(id.slot);
        }
        Some(entry)
    }

    /// Forgets a call of a handler that has no details, as most calls are. It reads the parts of
    /// the handler from where they are: a move of the whole entry waits until they are written.
    #[inline(always)]
    pub(super) fn take_handler(&mut self, id: SlotId) -> Option<(Recipient, CallStart)> {
        let entry = self.entries.occupied(id)?;
        if (self.details.get(id.slot as usize)).is_some_and(Option::is_some)
            || !matches!(entry.get().target, Target::Handler(_))
        {
            return None;
        }
        let Entry { target, begun } = entry.remove();
        match target {
            Target::Handler(recipient) => Some((recipient, begun)),
            Target::Future(_) | Target::Nobody => None,
        }
    }

    #[cold]
    fn forget_details(&mut self, slot: u32) {
        let Some(details) = self.details[slot as usize].take() else {
            return;
        };
        if let Some(number) = details.number {
            self.numbers.remove(&number.get());
        }
        if let Some(watch) = details.watch {
            watch.withdrawn();
        }
    }

    pub(super) fn details_mut(&mut self, call: SlotId) -> Option<&mut Details> {
        self.entries.find(call)?;
        self.details.get_mut(call.slot as usize)?.as_mut()
    }

    pub(super) fn set_stage(&mut self, call: SlotId, stage: Stage) {
        if let Some(details) = self.details_mut(call) {
            details.stage = stage;
        }
    }
}

/// A shard that is dropped with calls under way ends them.
impl Drop for InFlight {
    fn drop(&mut self) {
        for entry in self.entries.values_mut() {
            drop(Completion::new(std::mem::take(&mut entry.target)));
        }
    }
}

impl std::fmt::Debug for Details {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Details")
            .field("number", &self.number)
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

pub(super) fn token(id: SlotId) -> u64 {
    id.raw()
}

pub(super) fn from_token(token: u64) -> SlotId {
    SlotId::from_raw(token)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use grpcxx_transport::Time;

    use super::*;
    use crate::call::{CallResult, CompletionHandler};
    use crate::latency::CallKind;
    use crate::shard::ShardContext;

    /// Adds up the tokens of calls that ended.
    #[derive(Default)]
    struct Sum(AtomicU64);

    impl CompletionHandler for Sum {
        fn on_complete(self: Arc<Self>, token: u64, _: CallResult, _: &mut ShardContext<'_>) {
            self.0.fetch_add(token, Ordering::Relaxed);
        }
    }

    fn target(sum: &Arc<Sum>, token: u64) -> Target {
        let handler: Arc<dyn CompletionHandler> = sum.clone();
        Target::Handler(Recipient { handler, token })
    }

    fn begun() -> CallStart {
        CallStart::new(Time::ZERO, CallKind::RECV_TENSOR)
    }

    fn details(number: u64) -> Details {
        Details {
            number: NonZeroU64::new(number),
            stage: Stage::Local { home: None },
            caller: Caller::OWN,
            watch: None,
            stream: None,
        }
    }

    #[test]
    fn details_go_with_their_call_and_not_to_the_next_in_its_slot() {
        let sum = Arc::new(Sum::default());
        let mut calls = InFlight::new();
        let first = calls
            .insert(target(&sum, 1), begun(), Some(details(7)))
            .unwrap();
        calls.set_home(first, 3);
        assert_eq!(
            calls.details_mut(first).unwrap().stage,
            Stage::Local { home: Some(3) }
        );
        assert!(calls.take(first).is_some());
        assert!(calls.take(first).is_none());
        assert!(calls.numbers.is_empty());

        let second = calls.vacant().unwrap().insert_with(|| Entry {
            target: target(&sum, 2),
            begun: begun(),
        });
        assert_eq!(second.slot, first.slot);
        assert!(calls.details_mut(second).is_none());
        calls.set_home(first, 4);
        assert!(calls.details_mut(second).is_none());
        assert!(calls.take(from_token(token(first))).is_none());
        assert!(calls.take(from_token(token(second))).is_some());
        assert!(calls.is_empty());
    }

    #[test]
    fn calls_end_with_their_shard_unless_they_ended_before() {
        let sum = Arc::new(Sum::default());
        let mut calls = InFlight::new();
        let ids: Vec<SlotId> = (0..4)
            .map(|number| {
                let details = (number % 2 == 0).then(|| details(number + 1));
                calls
                    .insert(target(&sum, 1 << number), begun(), details)
                    .unwrap()
            })
            .collect();
        assert!(calls.take(ids[1]).is_some());
        drop(calls);
        assert_eq!(sum.0.load(Ordering::Relaxed), 0b1101);
    }
}
