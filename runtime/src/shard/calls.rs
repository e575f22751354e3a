//! Calls under way: the in-flight table, and how a call begins and ends.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use foldhash::fast::RandomState;
use grpcxx_memory::BufferMut;
use grpcxx_rpc::{CallId, CallOptions, Code, Reason, Request, Status, TensorMeta};
use grpcxx_transport::{Refusal, SlotTable, Time, VacantSlot};

use crate::call::CallResult;
use crate::command::{Cancellable, Command, NewCall, Origin, SlotId, deadline};
use crate::completion::{Completion, Recipient, Target};
use crate::fate::survive;
use crate::function::RequestWatch;
use crate::limits;
use crate::shard::core::{Core, Subject};

/// The in-flight table: the calls that this shard has accepted and not yet finished.
///
/// An entry is where the result of its call goes. What only calls have that can be withdrawn, or
/// that this process serves, is in `details`, so that the entry of a small call stays short.
///
/// Invariant: a call with details has them at its slot; no other slot has any.
#[derive(Debug)]
pub(super) struct Calls {
    in_flight: SlotTable<Target>,
    details: Vec<Option<Details>>,
    /// The calls that can be withdrawn, by the numbers that their callers know.
    numbers: HashMap<u64, SlotId, RandomState>,
    /// Calls begun that the counters of the shard do not know yet.
    pub(super) begun: u64,
}

/// What few calls need.
struct Details {
    number: Option<NonZeroU64>,
    stage: Stage,
    /// The service in this process that has the request.
    watch: Option<Arc<dyn RequestWatch>>,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for a connection to the peer.
    Waiting { peer: u32 },
    /// Sent, or about to be, on the peer's connection.
    OnLink { peer: u32, call: CallId },
    /// Served in this process; `home` is the shard that may hold it parked.
    Local { home: Option<u16> },
}

/// A call on its way through a peer's channel.
#[derive(Debug)]
pub(super) struct WaitingCall {
    pub(super) call: SlotId,
    pub(super) request: Request,
    deadline: Option<Time>,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self {
            in_flight: SlotTable::new(limits::CALLS_PER_SHARD),
            details: Vec::new(),
            numbers: HashMap::default(),
            begun: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// The entry of the next call, unless the table is full.
    #[inline]
    pub(super) fn vacant(&mut self) -> Option<VacantSlot<'_, Target, SlotId>> {
        self.in_flight.vacant()
    }

    /// The caller's own memory for a tensor of a response, if it brings any.
    pub(super) fn allocate(
        &self,
        token: u64,
        index: usize,
        meta: &TensorMeta,
    ) -> Option<Result<BufferMut, Status>> {
        (self.in_flight.find(from_token(token))?).allocate(index, meta)
    }

    /// Whether a call may bring memory of its own for tensors.
    pub(super) fn allocates(&self, token: u64) -> bool {
        (self.in_flight.find(from_token(token))).is_some_and(Target::allocates)
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
        for target in self.in_flight.values_mut() {
            let completion = Completion::new(std::mem::take(target));
            survive("the end of a call", || completion.end(status.clone()));
        }
        for details in self.details.drain(..).flatten() {
            if let Some(watch) = details.watch {
                survive("the watch of a request", || watch.withdrawn());
            }
        }
    }

    /// Takes a call with details in, unless the table is full.
    fn insert(&mut self, target: Target, details: Option<Details>) -> Result<SlotId, Target> {
        let id = self.in_flight.insert(target)?;
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

    /// Forgets a call, of which its watch hears. Returns where its result goes: nowhere, if it has
    /// ended already.
    #[inline]
    pub(super) fn take(&mut self, id: SlotId) -> Option<Target> {
        let target = self.in_flight.remove(id)?;
        if (self.details.get(id.slot as usize)).is_some_and(Option::is_some) {
            self.forget_details(id.slot);
        }
        Some(target)
    }

    /// Forgets a call of a handler that has no details, as most calls are. It reads the parts of
    /// the handler from where they are: a move of the whole entry waits until they are written.
    #[inline(always)]
    pub(super) fn take_handler(&mut self, id: SlotId) -> Option<Recipient> {
        let entry = self.in_flight.occupied(id)?;
        if (self.details.get(id.slot as usize)).is_some_and(Option::is_some)
            || !matches!(entry.get(), Target::Handler(_))
        {
            return None;
        }
        match entry.remove() {
            Target::Handler(recipient) => Some(recipient),
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

    fn details_mut(&mut self, call: SlotId) -> Option<&mut Details> {
        self.in_flight.find(call)?;
        self.details.get_mut(call.slot as usize)?.as_mut()
    }

    fn set_stage(&mut self, call: SlotId, stage: Stage) {
        if let Some(details) = self.details_mut(call) {
            details.stage = stage;
        }
    }
}

impl<A> Core<A> {
    pub(super) fn start_call(&mut self, new: NewCall) {
        if new.peer.shard() != self.index {
            self.route(new.peer.shard(), Command::Call(new));
            return;
        }
        let NewCall {
            peer,
            request,
            timeout,
            completion,
            cancellable,
        } = new;
        if cancellable.as_ref().is_some_and(Cancellable::is_cancelled) {
            return self.refuse_call(completion, cancelled());
        }
        if self.is_stopping() {
            return self.refuse_call(completion, self.ending());
        }
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return self.refuse_call(completion, deadline_exceeded());
        }
        self.calls.begun += 1;
        let slot = (!peer.is_self()).then(|| self.peer_slot(&peer));
        let deadline = deadline(self.now, timeout);
        let number = cancellable.and_then(|cancellable| NonZeroU64::new(cancellable.number));
        let stage = match slot {
            Some(slot) => Stage::Waiting { peer: slot as u32 },
            None => Stage::Local { home: None },
        };
        let details = (number.is_some() || slot.is_none()).then_some(Details {
            number,
            stage,
            watch: None,
        });
        let call = match self.calls.insert(completion.into_target(), details) {
            Ok(call) => call,
            Err(target) => {
                let text = format!(
                    "{} calls are under way on this shard",
                    limits::CALLS_PER_SHARD
                );
                let status = Status::new(Code::ResourceExhausted, text);
                return self.refuse(target, status.because(Reason::TooManyCalls));
            }
        };
        match slot {
            Some(slot) => {
                let waiting = WaitingCall {
                    call,
                    request,
                    deadline,
                };
                self.admit(slot, waiting, timeout);
            }
            None => self.start_local_call(call, request, deadline),
        }
    }

    /// Puts a call on its peer's connection, which is up.
    pub(super) fn dispatch_call(&mut self, peer: usize, waiting: WaitingCall) {
        let Some(target) = self.calls.in_flight.find(waiting.call) else {
            return;
        };
        let options = CallOptions {
            token: token(waiting.call),
            deadline: waiting.deadline,
            shares_memory: !target.allocates(),
        };
        let Some(connection) = self.peers[peer].connection_mut() else {
            return self.finish_call(waiting.call, Err(no_connection()));
        };
        match connection.call(self.now, waiting.request, options) {
            Ok(call) => {
                let stage = Stage::OnLink {
                    peer: peer as u32,
                    call,
                };
                self.calls.set_stage(waiting.call, stage);
                self.mark_peer(peer);
            }
            Err(refused) => {
                let status = match refused.refusal {
                    Refusal::Full => Status::new(
                        Code::ResourceExhausted,
                        format!(
                            "{} calls to this peer have no answer yet; wait for some",
                            self.limits.outstanding_calls
                        ),
                    )
                    .because(Reason::TooManyCalls),
                    Refusal::NotOpen | Refusal::WrongState => no_connection(),
                };
                self.finish_call(waiting.call, Err(status));
            }
        }
    }

    #[inline]
    pub(super) fn finish_call(&mut self, call: SlotId, result: CallResult) {
        let _nobody_waits = self.try_finish_call(call, result);
    }

    /// Ends a call, or gives the result back if its caller has gone already.
    #[inline]
    pub(super) fn try_finish_call(
        &mut self,
        call: SlotId,
        result: CallResult,
    ) -> Result<(), CallResult> {
        match self.calls.take(call) {
            Some(target) => self.complete(target, result),
            None => Err(result),
        }
    }

    pub(super) fn cancel_call(&mut self, number: u64) {
        if let Some(&call) = self.calls.numbers.get(&number) {
            self.withdraw_call(call, cancelled());
        }
    }

    /// The deadline of a call that this process serves is over.
    pub(super) fn call_timeout(&mut self, call: SlotId) {
        self.withdraw_call(call, deadline_exceeded());
    }

    /// Ends all calls that are still under way, because the shard stops.
    pub(super) fn end_calls(&mut self) {
        debug_assert!(self.is_stopping());
        let ids: Vec<SlotId> = self.calls.in_flight.keys().collect();
        for call in ids {
            self.finish_call(call, Err(self.ending()));
        }
    }

    fn start_local_call(&mut self, call: SlotId, request: Request, deadline: Option<Time>) {
        self.timers.arm(Subject::Call(call), deadline, &mut None);
        // Most calls end long before their deadlines.
        let calls = &self.calls.in_flight;
        self.timers.prune(|subject| match subject {
            Subject::Call(call) => calls.find(call).is_some(),
            Subject::Peer(_) | Subject::Server(_) | Subject::Leaving(_) => true,
        });
        let origin = Origin::Local {
            shard: self.index as u16,
            call,
        };
        self.dispatch(origin, request);
    }

    fn withdraw_call(&mut self, call: SlotId, status: Status) {
        let Some(details) = self.calls.details_mut(call) else {
            return;
        };
        match details.stage {
            Stage::OnLink {
                peer,
                call: on_link,
            } => {
                let cancelled = self.peers[peer as usize]
                    .connection_mut()
                    .is_some_and(|connection| connection.cancel(on_link));
                self.mark_peer(peer as usize);
                if !cancelled {
                    self.finish_call(call, Err(status));
                }
            }
            Stage::Waiting { peer } => {
                let channel = &mut self.peers[peer as usize].channel;
                let _taken = channel.take_waiting(|waiting| waiting.call == call);
                self.mark_peer(peer as usize);
                self.finish_call(call, Err(status));
            }
            Stage::Local { home } => {
                if let Some(home) = home {
                    let origin = Origin::Local {
                        shard: self.index as u16,
                        call,
                    };
                    self.route(home.into(), Command::Forget { origin });
                }
                self.finish_call(call, Err(status));
            }
        }
    }

    fn refuse_call(&mut self, completion: Completion, status: Status) {
        self.refuse(completion.into_target(), status);
    }

    fn refuse(&mut self, target: Target, status: Status) {
        let _nobody_waits = self.complete(target, Err(status));
    }

    #[inline]
    pub(super) fn complete(
        &mut self,
        target: Target,
        result: CallResult,
    ) -> Result<(), CallResult> {
        if result.is_err() {
            self.counters().calls_failed.add(1);
        }
        target.complete(result, &mut self.context())
    }
}

/// A shard that is dropped with calls under way ends them.
impl Drop for Calls {
    fn drop(&mut self) {
        for target in self.in_flight.values_mut() {
            drop(Completion::new(std::mem::take(target)));
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

fn deadline_exceeded() -> Status {
    Status::new(Code::DeadlineExceeded, "the call took longer than allowed")
        .because(Reason::Deadline)
}

fn cancelled() -> Status {
    Status::new(Code::Cancelled, "the caller cancelled").because(Reason::Cancelled)
}

/// The connection went before the call was put on it.
fn no_connection() -> Status {
    Status::new(Code::Unavailable, "the connection was lost").because(Reason::NoConnection)
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

    use super::*;
    use crate::call::CompletionHandler;
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

    fn details(number: u64) -> Details {
        Details {
            number: NonZeroU64::new(number),
            stage: Stage::Local { home: None },
            watch: None,
        }
    }

    #[test]
    fn details_go_with_their_call_and_not_to_the_next_in_its_slot() {
        let sum = Arc::new(Sum::default());
        let mut calls = Calls::new();
        let first = calls.insert(target(&sum, 1), Some(details(7))).unwrap();
        calls.set_home(first, 3);
        assert_eq!(
            calls.details_mut(first).unwrap().stage,
            Stage::Local { home: Some(3) }
        );
        assert!(calls.take(first).is_some());
        assert!(calls.take(first).is_none());
        assert!(calls.numbers.is_empty());

        let second = calls.vacant().unwrap().insert_with(|| target(&sum, 2));
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
        let mut calls = Calls::new();
        let ids: Vec<SlotId> = (0..4)
            .map(|number| {
                let details = (number % 2 == 0).then(|| details(number + 1));
                calls.insert(target(&sum, 1 << number), details).unwrap()
            })
            .collect();
        assert!(calls.take(ids[1]).is_some());
        drop(calls);
        assert_eq!(sum.0.load(Ordering::Relaxed), 0b1101);
    }
}
