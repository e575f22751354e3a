use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use foldhash::fast::RandomState;
use grpcxx_memory::BufferMut;
use grpcxx_rpc::{CallId, CallOptions, Code, Reason, Request, Status, TensorMeta};
use grpcxx_transport::{Refusal, SlotTable, Time};

use crate::call::CallResult;
use crate::command::{Cancellable, Command, NewCall, Origin, SlotId, deadline};
use crate::completion::{Completion, Recipient, Target};
use crate::fate::survive;
use crate::function::RequestWatch;
use crate::limits;
use crate::shard::core::{Core, Subject};
use crate::shard::recipients::{Recipients, Room, recipient_number};
use crate::shard::watches::Watches;

/// The calls that this shard has accepted and not yet finished.
#[derive(Debug)]
pub(super) struct Calls {
    /// Those that code on this shard put on a connection at once: nothing can happen to them elsewhere.
    pub(super) recipients: Recipients,
    /// All others.
    slots: SlotTable<PendingCall>,
    numbers: HashMap<u64, SlotId, RandomState>,
    /// The services in this process that have the requests.
    watches: Watches<SlotId>,
    /// Calls begun that the counters of the shard do not know yet.
    pub(super) begun: u64,
}

/// A call under way. There are many, so what only some have is elsewhere.
#[derive(Debug)]
struct PendingCall {
    target: Target,
    number: Option<NonZeroU64>,
    place: Place,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
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
            recipients: Recipients::new(limits::CALLS_PER_SHARD),
            slots: SlotTable::new(limits::CALLS_PER_SHARD),
            numbers: HashMap::default(),
            watches: Watches::new(),
            begun: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.recipients.len() + self.slots.len()
    }

    /// The caller's own memory for a tensor of a response, if it brings any.
    pub(super) fn allocate(
        &self,
        token: u64,
        index: usize,
        meta: &TensorMeta,
    ) -> Option<Result<BufferMut, Status>> {
        match recipient_number(token) {
            Some(number) => self.recipients.get(number)?.allocate(index, meta),
            None => {
                let call = self.slots.find(from_token(token))?;
                call.target.allocate(index, meta)
            }
        }
    }

    /// Whether a call may bring memory of its own for tensors.
    pub(super) fn allocates(&self, token: u64) -> bool {
        match recipient_number(token) {
            Some(number) => (self.recipients.get(number)).is_some_and(Recipient::allocates),
            None => {
                let call = self.slots.find(from_token(token));
                call.is_some_and(|call| call.target.allocates())
            }
        }
    }

    /// Notes which shard may hold a local call parked.
    pub(super) fn set_home(&mut self, call: SlotId, shard: usize) {
        if let Some(pending) = self.slots.find_mut(call) {
            pending.place = Place::Local {
                home: Some(shard as u16),
            };
        }
    }

    /// Notes who wants to hear what becomes of a local call.
    pub(super) fn watch(&mut self, call: SlotId, watch: Arc<dyn RequestWatch>) {
        if self.slots.find(call).is_some() {
            self.watches.insert(call, watch);
        }
    }

    /// Takes who watches a local call.
    pub(super) fn take_watch(&mut self, call: SlotId) -> Option<Arc<dyn RequestWatch>> {
        self.watches.take(&call)
    }

    /// Room for a call that goes on a connection at once, unless there is none.
    #[inline]
    pub(super) fn room(&mut self) -> Option<Room<'_>> {
        self.recipients.room()
    }

    /// Ends all calls of a shard that has died, each by itself: a sink may panic again.
    pub(super) fn die(&mut self, status: &Status) {
        let end = |target| {
            let completion = Completion::new(target);
            survive("the end of a call", || completion.end(status.clone()));
        };
        for call in self.slots.values_mut() {
            end(std::mem::take(&mut call.target));
        }
        for number in self.recipients.numbers() {
            if let Some(recipient) = self.recipients.take(number) {
                end(Target::Sink(recipient));
            }
        }
        self.watches.withdraw_all();
    }

    fn insert(&mut self, call: PendingCall) -> Result<SlotId, PendingCall> {
        let number = call.number;
        let id = self.slots.insert(call)?;
        if let Some(number) = number {
            self.numbers.insert(number.get(), id);
        }
        Ok(id)
    }

    /// Forgets a call at a connection. Returns where its result goes: nowhere, if it has ended already.
    pub(super) fn take(&mut self, token: u64) -> Option<Target> {
        match recipient_number(token) {
            Some(number) => self.recipients.take(number).map(Target::Sink),
            None => self.remove(from_token(token)),
        }
    }

    /// Forgets a call, of which those who know of it hear. Returns where its result goes.
    pub(super) fn remove(&mut self, id: SlotId) -> Option<Target> {
        let PendingCall { target, number, .. } = self.slots.remove(id)?;
        if let Some(number) = number {
            self.numbers.remove(&number.get());
        }
        if let Some(watch) = self.take_watch(id) {
            watch.withdrawn();
        }
        Some(target)
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
        let pending = PendingCall {
            target: completion.into_target(),
            number: cancellable.and_then(|cancellable| NonZeroU64::new(cancellable.number)),
            place: match slot {
                Some(slot) => Place::Waiting { peer: slot as u32 },
                None => Place::Local { home: None },
            },
        };
        let call = match self.calls.insert(pending) {
            Ok(call) => call,
            Err(pending) => {
                let status = Status::new(
                    Code::ResourceExhausted,
                    format!(
                        "{} calls are under way on this shard",
                        limits::CALLS_PER_SHARD
                    ),
                )
                .because(Reason::TooManyCalls);
                return self.refuse(pending.target, status);
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
        let Some(pending) = self.calls.slots.find_mut(waiting.call) else {
            return;
        };
        let options = CallOptions {
            token: token(waiting.call),
            deadline: waiting.deadline,
            shares_memory: !pending.target.allocates(),
        };
        let Some(connection) = self.peers[peer].connection_mut() else {
            return self.finish_call(waiting.call, Err(no_connection()));
        };
        match connection.call(self.now, waiting.request, options) {
            Ok(call) => {
                pending.place = Place::OnLink {
                    peer: peer as u32,
                    call,
                };
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
        match self.calls.remove(call) {
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
        let ids: Vec<SlotId> = self.calls.slots.keys().collect();
        for call in ids {
            self.finish_call(call, Err(self.ending()));
        }
        for number in self.calls.recipients.numbers() {
            if let Some(recipient) = self.calls.recipients.take(number) {
                self.refuse(Target::Sink(recipient), self.ending());
            }
        }
    }

    fn start_local_call(&mut self, call: SlotId, request: Request, deadline: Option<Time>) {
        self.timers.arm(Subject::Call(call), deadline, &mut None);
        // Most calls end long before their deadlines.
        let calls = &self.calls.slots;
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
        let Some(pending) = self.calls.slots.find(call) else {
            return;
        };
        match pending.place {
            Place::OnLink {
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
            Place::Waiting { peer } => {
                let channel = &mut self.peers[peer as usize].channel;
                let _taken = channel.take_waiting(|waiting| waiting.call == call);
                self.mark_peer(peer as usize);
                self.finish_call(call, Err(status));
            }
            Place::Local { home } => {
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
        for call in self.slots.values_mut() {
            drop(Completion::new(std::mem::take(&mut call.target)));
        }
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
    use super::*;

    #[test]
    fn tokens_of_the_two_tables_are_told_apart() {
        let mut calls = Calls::new();
        let token_of_recipient = calls.room().unwrap().token();
        assert_eq!(recipient_number(token_of_recipient), Some(0));
        let last = SlotId {
            slot: limits::CALLS_PER_SHARD as u32 - 1,
            generation: u32::MAX,
        };
        assert_eq!(recipient_number(token(last)), None);
        assert_eq!(from_token(token(last)), last);
        // Nobody is there.
        assert!(calls.take(token_of_recipient).is_none());
        assert!(calls.take(token(last)).is_none());
    }
}
