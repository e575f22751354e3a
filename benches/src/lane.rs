use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grpcxx_rpc::{Status, Tensor};
use grpcxx_runtime::{CallResult, CallSpec, CompletionHandler, Peer, ShardContext};
use hdrhistogram::Histogram;
use quanta::Instant;

use super::report::{Measured, coarse_histogram, nanoseconds};
use super::steps::StepPlan;

/// One connection under load. Its calls begin and end on the shard that owns the connection.
pub(super) struct Lane {
    pub(super) peer: Peer,
    pub(super) session: i64,
    pub(super) index: usize,
    pub(super) load: Arc<Load>,
    pub(super) state: Mutex<LaneState>,
}

/// Steps under way on a connection.
pub(super) struct LaneState {
    slots: Vec<Slot>,
    ended_calls: u64,
    /// The latencies of this connection alone, in coarse steps.
    own: Option<Histogram<u32>>,
}

/// A step under way.
#[derive(Clone, Copy, Debug)]
struct Slot {
    begin: Instant,
    phase: usize,
    /// The next call of the phase to be made.
    next: usize,
    /// Calls of the phase without an answer.
    open: usize,
}

/// What all connections of a run share.
pub(super) struct Load {
    pub(super) plan: StepPlan,
    /// Steps that begin from here on are measured.
    pub(super) from: Instant,
    /// No step begins from here on, once one was measured.
    pub(super) until: Instant,
    /// Time between two steps of one slot, where the rate is limited.
    pub(super) expected_interval: Option<Duration>,
    /// By shard, so that nobody waits for the lock.
    pub(super) recorders: Vec<Mutex<Recorder>>,
    /// Whether a step was measured.
    pub(super) has_measured: AtomicBool,
    /// Set by the first error; nothing begins from then on.
    pub(super) failure: Mutex<Option<Status>>,
    pub(super) is_failed: AtomicBool,
    /// Slots that have not ended.
    pub(super) running: AtomicUsize,
    pub(super) events: Sender<Event>,
}

/// What a run tells the thread that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A slot can begin its next step; only where the rate is limited.
    Free { lane: usize, slot: usize },
    /// All slots have ended.
    Ended,
}

/// What one shard has measured.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    pub(super) measured: Measured,
    pub(super) first: Option<Instant>,
    pub(super) last: Option<Instant>,
}

impl Lane {
    pub(super) fn state(depth: usize, by_connection: bool) -> LaneState {
        let slot = Slot {
            begin: Instant::now(),
            phase: 0,
            next: 0,
            open: 0,
        };
        LaneState {
            slots: vec![slot; depth],
            ended_calls: 0,
            own: by_connection.then(coarse_histogram),
        }
    }

    /// Begins a step.
    pub(super) fn begin(self: &Arc<Self>, slot: usize, shard: &mut ShardContext<'_>) {
        self.begin_at(Instant::now(), &mut self.lock(), slot, shard);
    }

    fn begin_at(
        self: &Arc<Self>,
        now: Instant,
        state: &mut LaneState,
        slot: usize,
        shard: &mut ShardContext<'_>,
    ) {
        if self.load.is_over(now) {
            return self.load.end_slot();
        }
        state.slots[slot] = Slot {
            begin: now,
            phase: 0,
            next: 0,
            open: 0,
        };
        self.make_calls(state, slot, shard);
    }

    /// The time that 99 of 100 steps of this connection did not exceed, in microseconds.
    pub(super) fn own_p99_us(&self) -> Option<f64> {
        let state = self.lock();
        let own = state.own.as_ref().filter(|own| !own.is_empty())?;
        Some(own.value_at_quantile(0.99) as f64 / 1e3)
    }

    /// Calls that have ended since the run began, and calls under way.
    pub(super) fn count_calls(&self) -> (u64, usize) {
        let state = self.lock();
        let open = state.slots.iter().map(|slot| slot.open).sum();
        (state.ended_calls, open)
    }

    /// Makes calls of a step's phase until enough are under way.
    fn make_calls(
        self: &Arc<Self>,
        state: &mut LaneState,
        slot: usize,
        shard: &mut ShardContext<'_>,
    ) {
        let plan = &self.load.plan;
        let step = &mut state.slots[slot];
        let end = plan.calls_of(step.phase);
        while step.next < end && step.open < CALLS_OF_A_STEP_MAX {
            let token = (slot as u64) << 32 | step.next as u64;
            let handler = Arc::clone(self);
            if let Some(key) = plan.key(step.phase, step.next) {
                shard.receive(&self.peer, self.session, key, None, handler, token);
            } else {
                match plan.request(step.phase, step.next, self.session) {
                    Ok(request) => {
                        shard.submit(CallSpec::new(&self.peer, request), handler, token);
                    }
                    Err(status) => {
                        self.load.fail(status);
                        step.next = end;
                        break;
                    }
                }
            }
            step.next += 1;
            step.open += 1;
        }
        if step.open == 0 {
            self.load.end_slot();
        }
    }

    /// A call ended. `accept` looks at what it brought, given its phase and its place there.
    #[inline(always)]
    fn call_ended(
        self: &Arc<Self>,
        token: u64,
        accept: impl FnOnce(usize, usize) -> Result<(), Status>,
        shard: &mut ShardContext<'_>,
    ) {
        let (slot, call) = ((token >> 32) as usize, token as u32 as usize);
        let state = &mut *self.lock();
        state.ended_calls += 1;
        if let Err(status) = accept(state.slots[slot].phase, call) {
            let address = self.peer.address();
            let text = format!("connection {} to {address}: {}", self.index, status.message);
            self.load.fail(status.with_message(text));
        }
        if self.load.is_failed.load(Ordering::Relaxed) {
            state.slots[slot].open -= 1;
            if state.slots[slot].open == 0 {
                self.load.end_slot();
            }
            return;
        }
        let (has_more, step_begin) = state.slots[slot].count_answer(&self.load.plan);
        if has_more {
            self.make_calls(state, slot, shard);
        }
        if let Some(begin) = step_begin {
            self.end_step(begin, state, slot, shard);
        }
    }

    /// Notes the end of a step, and begins the next one unless somebody else does.
    fn end_step(
        self: &Arc<Self>,
        begin: Instant,
        state: &mut LaneState,
        slot: usize,
        shard: &mut ShardContext<'_>,
    ) {
        let end = Instant::now();
        if begin >= self.load.from {
            self.load.record(shard.index(), begin, end);
            if let Some(own) = &mut state.own {
                own.saturating_record(nanoseconds(end - begin));
            }
        }
        if self.load.expected_interval.is_some() {
            // The pacing thread listens until all slots have ended.
            let _ = self.load.events.send(Event::Free {
                lane: self.index,
                slot,
            });
        } else {
            self.begin_at(end, state, slot, shard);
        }
    }

    fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CompletionHandler for Lane {
    fn runs_anywhere(&self) -> bool {
        true
    }

    fn allocates(&self, _token: u64) -> bool {
        false
    }

    fn on_complete(self: Arc<Self>, token: u64, result: CallResult, shard: &mut ShardContext<'_>) {
        let accept = |phase: usize, call: usize| {
            result.and_then(|response| self.load.plan.accept(phase, call, &response))
        };
        self.call_ended(token, accept, shard);
    }

    fn on_tensor(self: Arc<Self>, token: u64, tensor: Tensor, shard: &mut ShardContext<'_>) {
        let accept = |phase: usize, call: usize| {
            let tensors = std::slice::from_ref(&tensor);
            self.load.plan.accept_tensors(phase, call, tensors)
        };
        self.call_ended(token, accept, shard);
    }
}

impl Slot {
    /// Counts an answer. Says whether there are more calls to make, and when the step began if this
    /// was the last answer of all.
    fn count_answer(&mut self, plan: &StepPlan) -> (bool, Option<Instant>) {
        self.open -= 1;
        if self.next < plan.calls_of(self.phase) {
            return (true, None);
        }
        if self.open > 0 {
            return (false, None);
        }
        if self.phase + 1 < plan.phases() {
            self.phase += 1;
            self.next = 0;
            return (true, None);
        }
        (false, Some(self.begin))
    }
}

impl Load {
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.is_failed.load(Ordering::Relaxed)
            || (now >= self.until && self.has_measured.load(Ordering::Relaxed))
    }

    /// Notes that a slot begins no more steps.
    pub(super) fn end_slot(&self) {
        if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            // The thread that runs the bench waits for this.
            let _ = self.events.send(Event::Ended);
        }
    }

    fn record(&self, shard: usize, begin: Instant, end: Instant) {
        let mut recorder = self.recorders[shard]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let recorder = &mut *recorder;
        match self.expected_interval {
            None => recorder.measured.record(end - begin),
            Some(interval) => recorder.measured.record_paced(end - begin, interval),
        }
        recorder.measured.calls += self.plan.calls();
        let first = recorder.first.get_or_insert(begin);
        *first = begin.min(*first);
        if recorder.last.replace(end).is_none() {
            self.has_measured.store(true, Ordering::Relaxed);
        }
    }

    /// Lets nothing begin any more, for this reason unless there is one.
    pub(super) fn fail(&self, status: Status) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(status);
        self.is_failed.store(true, Ordering::Relaxed);
    }
}

/// Calls of one step without an answer, on one connection.
const CALLS_OF_A_STEP_MAX: usize = 1024;
