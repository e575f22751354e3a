//! How calls begin, wait, are withdrawn and end.

use std::num::NonZeroU64;

use grpcxx_rpc::{CallOptions, Code, Reason, Request, Status};
use grpcxx_transport::{Refusal, Time};

use crate::call::CallResult;
use crate::command::{Cancellable, Command, NewCall, Origin, SlotId, deadline};
use crate::completion::{Completion, Target};
use crate::latency::{CallKind, CallPlace, CallSide, CallStart};
use crate::limits;
use crate::shard::core::Core;
use crate::shard::in_flight::{Details, Entry, Stage, token};
use crate::shard::outgoing::WaitingCall;
use crate::shard::timers::Subject;

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
            stream,
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
        self.outgoing.calls.begun += 1;
        let slot = (!peer.is_self()).then(|| self.outgoing.slot_of(&peer));
        let deadline = deadline(self.now, timeout);
        let number = cancellable.and_then(|cancellable| NonZeroU64::new(cancellable.number));
        let stage = match slot {
            Some(slot) => Stage::Waiting { peer: slot as u32 },
            None => Stage::Local { home: None },
        };
        let details = (number.is_some() || slot.is_none()).then_some(Details {
            number,
            stage,
            caller: peer.served_for(),
            watch: None,
            stream,
        });
        let begun = CallStart::new(self.now, CallKind::of(&request));
        let target = completion.into_target();
        let call = match self.outgoing.calls.insert(target, begun, details) {
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
        let Some(target) = self.outgoing.calls.target(waiting.call) else {
            return;
        };
        let options = CallOptions {
            token: token(waiting.call),
            deadline: waiting.deadline,
            shares_memory: !target.allocates(),
        };
        let Some(connection) = self.outgoing.peers[peer].connection_mut() else {
            return self.finish_call(waiting.call, Err(no_connection()));
        };
        let streams = matches!(waiting.request, Request::Stream(_));
        match connection.call(self.now, waiting.request, options) {
            Ok(call) => {
                let stage = Stage::OnLink {
                    peer: peer as u32,
                    call,
                };
                self.outgoing.calls.set_stage(waiting.call, stage);
                self.mark_peer(peer);
                if streams {
                    self.pump_call(waiting.call);
                }
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

    /// Notes how long a call took that has ended.
    pub(super) fn note_call(&mut self, place: CallPlace, begun: CallStart) {
        self.call_table.record(place, begun, self.now, 1);
    }

    /// Ends a call that no connection has, or gives the result back if its caller has gone already.
    #[inline]
    #[expect(
        clippy::result_large_err,
        reason = "the result comes back whole, without an allocation"
    )]
    pub(super) fn try_finish_call(
        &mut self,
        call: SlotId,
        result: CallResult,
    ) -> Result<(), CallResult> {
        let place = match self.outgoing.calls.is_local(call) {
            true => CallPlace::LOCAL,
            false => CallPlace::NONE,
        };
        match self.outgoing.calls.take(call) {
            Some(Entry { target, begun }) => {
                self.note_call(place, begun);
                self.complete(target, result)
            }
            None => Err(result),
        }
    }

    pub(super) fn cancel_call(&mut self, number: u64) {
        if let Some(call) = self.outgoing.calls.numbered(number) {
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
        for call in self.outgoing.calls.ids() {
            self.finish_call(call, Err(self.ending()));
        }
    }

    fn start_local_call(&mut self, call: SlotId, request: Request, deadline: Option<Time>) {
        self.timers.arm(Subject::Call(call), deadline, &mut None);
        let origin = Origin::Local {
            shard: self.index as u16,
            call,
        };
        self.dispatch(origin, request, deadline);
    }

    pub(super) fn withdraw_call(&mut self, call: SlotId, status: Status) {
        let Some(details) = self.outgoing.calls.details_mut(call) else {
            return;
        };
        match details.stage {
            Stage::OnLink {
                peer,
                call: on_link,
            } => {
                let cancelled = self.outgoing.peers[peer as usize]
                    .connection_mut()
                    .is_some_and(|connection| connection.cancel(on_link));
                self.mark_peer(peer as usize);
                if !cancelled {
                    self.finish_call(call, Err(status));
                }
            }
            Stage::Waiting { peer } => {
                let channel = &mut self.outgoing.peers[peer as usize].channel;
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
    #[expect(
        clippy::result_large_err,
        reason = "the result comes back whole, without an allocation"
    )]
    pub(super) fn complete(
        &mut self,
        target: Target,
        result: CallResult,
    ) -> Result<(), CallResult> {
        if let Err(status) = &result {
            self.counters().calls_failed.add(1);
            self.failures.note(CallSide::Client, status, self.now);
        }
        target.complete(result, &mut self.context())
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
