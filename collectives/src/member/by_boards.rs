//! Operations that go by boards: the thread that calls one and waits for it carries it on itself,
//! and leaves it to the shard when others take their time.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use grpcxx_rpc::Status;
use grpcxx_runtime::step_aside;

use super::lane::{Lane, Sight};
use super::{Due, Member, State, advance, advance_and, lock, succeed};
use crate::boards::Sleep;
use crate::operation::{Looked, Looks};

/// The operations of a tag, for a thread that waits for one of them.
pub(crate) struct Lookout {
    pub(crate) member: Arc<Member>,
    pub(crate) tag: u16,
}

impl Member {
    /// Whether operations of a tag go by boards.
    pub(crate) fn goes_by_boards(&self, tag: u16) -> bool {
        tag == 0 && self.has_boards.load(Ordering::Relaxed)
    }

    /// Begins what was just called, if nothing is before it.
    pub(super) fn call_by_boards(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        tag: u16,
        is_alone: bool,
    ) {
        let mut due = Due::default();
        let outcome = match state.lanes.get_mut(&tag) {
            // Its caller is likely to wait for it.
            Some(lane) if is_alone => advance_and(Sleep::Doze, lane, None, &mut due),
            Some(lane) => advance(lane, None, &mut due),
            None => Ok(()),
        };
        drop(state);
        self.conclude_here(outcome, due);
    }

    /// Does what has come up on a thread that is none of a shard.
    fn conclude_here(self: &Arc<Self>, outcome: Result<(), Status>, mut due: Due) {
        succeed(std::mem::take(&mut due.ended));
        if outcome.is_ok() && due.effects.is_empty() && !due.looks_again {
            return;
        }
        self.on_shard(move |member, shard| member.conclude(outcome, due, shard));
    }
}

impl Looks for Lookout {
    fn look(&self) -> Looked {
        if self.member.client.inherited().is_some() {
            return Looked::Elsewhere;
        }
        let mut due = Due::default();
        let mut state = lock(&self.member.state);
        let Some(lane) = state.lanes.get_mut(&self.tag) else {
            return Looked::Elsewhere;
        };
        if !lane.waits_for_boards() {
            return Looked::Elsewhere;
        }
        lane.wake_up();
        let sight = lane.look(&mut due.effects);
        let looked = match sight {
            Ok(Sight::Steps | Sight::MoreSteps) => Looked::Steps,
            Ok(Sight::Nothing | Sight::Elsewhere) => Looked::Waits,
            Err(_) => Looked::Elsewhere,
        };
        let mut outcome = sight.map(|_| ());
        if let (Ok(()), Some(done)) = (&outcome, lane.take_done()) {
            due.ended.push(done);
            outcome = advance(lane, None, &mut due);
        }
        drop(state);
        self.member.conclude_here(outcome, due);
        looked
    }

    fn rest(&self) {
        if self.member.client.inherited().is_some() {
            return;
        }
        let mut due = Due::default();
        let mut state = lock(&self.member.state);
        let Some(lane) = state.lanes.get_mut(&self.tag) else {
            return;
        };
        let outcome = advance(lane, None, &mut due);
        let is_busy = lane.is_running() && !state.is_watched;
        drop(state);
        self.member.conclude_here(outcome, due);
        if is_busy {
            self.member.on_shard(|member, shard| member.watch(shard));
        }
    }

    fn pause(&self, looks: u32) {
        if self.member.is_crowded.load(Ordering::Relaxed) {
            // The one that is waited for needs this CPU.
            return std::thread::yield_now();
        }
        if looks < SPINS_MAX {
            return std::hint::spin_loop();
        }
        if looks == SPINS_MAX {
            let mut state = lock(&self.member.state);
            let shared = state.lanes.get_mut(&self.tag).and_then(Lane::shared_cpu);
            drop(state);
            // Where it is refused, the thread works on as before.
            let _ = shared.map(step_aside);
        }
        std::thread::yield_now();
    }
}

/// Looks in a row before the CPU is offered to others.
const SPINS_MAX: u32 = 50;
