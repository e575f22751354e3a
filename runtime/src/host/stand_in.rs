//! A thread that stands in for the owner of a shard while that runs functions.
//!
//! Between two turns the owner runs calls of functions that were short so far. Meanwhile it leaves
//! the shard on a seat. If the owner is still away at the second look of the stand-in, or a
//! function begins to wait, the stand-in takes the shard and is its owner from then on. The former
//! one ends with its function. So such a function may take its time after all, or hold a lock that
//! somebody needs for whom the shard works: the shard goes on.

mod away;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use grpcxx_memory::forks;

use self::away::Away;
pub(crate) use self::away::note_wait;
use super::life::{Left, Owner};
use super::shard_loop::ShardLoop;
use super::sync::{
    AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, Thread, fence, park, park_timeout,
};
use crate::compute::{Pace, ShortCall, run};

/// Where the owner of a shard leaves it, and who takes it from there.
pub(super) struct StandIn<L> {
    seat: Mutex<Seat<L>>,
    /// Odd while the owner is away.
    absences: AtomicUsize,
    /// The absence in which a function waits for something that the shard may have to bring; 0 is
    /// none.
    needed_in: AtomicUsize,
    /// The stand-in looks no more until it is woken.
    is_asleep: AtomicBool,
    has_ended: AtomicBool,
    thread: OnceLock<Thread>,
    /// Of the process that made it; a child of it must not touch the shard.
    generation: u32,
}

/// What the lock guards.
struct Seat<L> {
    /// None unless the owner is away, and once the stand-in has taken it.
    left: Option<Left<L>>,
    /// What the owner has still to run.
    calls: VecDeque<ShortCall>,
    /// Of the function that it runs.
    pace: Option<Arc<Pace>>,
}

/// The owner's side.
pub(super) struct Errands<L> {
    stand_in: Arc<StandIn<L>>,
    has_thread: bool,
    /// The system gave none.
    has_failed: bool,
}

impl<L: ShardLoop + Send + 'static> StandIn<L> {
    fn new() -> Self {
        Self {
            seat: Mutex::new(Seat {
                left: None,
                calls: VecDeque::new(),
                pace: None,
            }),
            absences: AtomicUsize::new(0),
            needed_in: AtomicUsize::new(0),
            is_asleep: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            thread: OnceLock::new(),
            generation: forks::generation(),
        }
    }

    /// Leaves the shard, runs its short calls for a bounded time, and comes back for it. Calls that
    /// are left by then go to the compute pool. None if the shard has another owner now.
    fn run(self: &Arc<Self>, left: Left<L>) -> Option<Left<L>> {
        self.leave(left);
        let begin = Instant::now();
        let mut spent = Duration::ZERO;
        let away = Away::begin(Waker::from(Arc::clone(self)));
        while spent < AWAY_MAX
            && !self.is_inherited()
            && let Some(call) = self.next_call()
        {
            run(call.job);
            let now = begin.elapsed();
            match away.has_waited() {
                true => call.pace.note_wait(),
                false => call.pace.note(now - spent),
            }
            spent = now;
        }
        drop(away);
        self.come_back()
    }

    fn leave(&self, mut left: Left<L>) {
        let mut seat = self.lock();
        left.shard.take_short_calls(&mut seat.calls);
        seat.pace = None;
        seat.left = Some(left);
        drop(seat);
        self.absences.fetch_add(1, Ordering::SeqCst);
        // Either the stand-in sees that before it sleeps, or it is woken.
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) {
            self.wake_thread();
        }
    }

    fn next_call(&self) -> Option<ShortCall> {
        let mut seat = self.lock();
        let call = seat.calls.pop_front();
        seat.pace = call.as_ref().map(|call| Arc::clone(&call.pace));
        call
    }

    fn come_back(&self) -> Option<Left<L>> {
        if self.is_inherited() {
            return None;
        }
        self.absences.fetch_add(1, Ordering::SeqCst);
        self.take()
    }

    /// Whether this process is a child of that of the shard.
    fn is_inherited(&self) -> bool {
        self.generation != forks::generation()
    }

    /// Takes the shard, if it is there, and gives its calls that are left to the pool.
    fn take(&self) -> Option<Left<L>> {
        let mut seat = self.lock();
        let mut left = seat.left.take()?;
        if !seat.calls.is_empty() {
            left.shard.run_elsewhere(&mut seat.calls);
        }
        Some(left)
    }

    /// The function that has the owner takes long: its next calls shall not get the next owner.
    fn note_late(&self) {
        if let Some(pace) = &self.lock().pace {
            pace.note_late();
        }
    }

    /// Looks after the shard until it is taken from its owner, or that ends.
    pub(super) fn watch(&self) -> Option<Left<L>> {
        let mut seen = 0;
        let mut seen_at = Instant::now();
        let mut quiet_looks = 0;
        while !self.has_ended.load(Ordering::Acquire) {
            let absences = self.absences.load(Ordering::SeqCst);
            let is_away = !absences.is_multiple_of(2);
            let is_needed = is_away && self.needed_in.load(Ordering::Acquire) == absences;
            // A thread can wake before its time is over.
            let is_late = is_away && absences == seen && seen_at.elapsed() >= LOOK_INTERVAL;
            if (is_late || is_needed)
                && let Some(left) = self.take()
            {
                self.note_late();
                return Some(left);
            }
            if absences == seen {
                quiet_looks += 1;
            } else {
                (seen, seen_at, quiet_looks) = (absences, Instant::now(), 0);
            }
            self.rest(seen, quiet_looks >= QUIET_LOOKS_MAX);
        }
        None
    }

    /// Sleeps until the next look; if all was quiet, until the owner goes away again.
    fn rest(&self, seen: usize, is_quiet: bool) {
        if is_quiet {
            self.is_asleep.store(true, Ordering::Relaxed);
            // See `leave`.
            fence(Ordering::SeqCst);
        }
        let is_called = self.needed_in.load(Ordering::Relaxed) == seen | 1
            || self.has_ended.load(Ordering::Relaxed)
            || is_quiet && self.absences.load(Ordering::Relaxed) != seen;
        match is_called {
            true => {}
            false if is_quiet => park(),
            false => park_timeout(LOOK_INTERVAL),
        }
        self.is_asleep.store(false, Ordering::Relaxed);
    }
}

impl<L> StandIn<L> {
    /// Says which thread watches.
    fn set_thread(&self, thread: Thread) {
        let _only_once = self.thread.set(thread);
    }

    /// Lets the thread end.
    fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.wake_thread();
    }

    fn wake_thread(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seat<L>> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A function is about to wait.
impl<L: ShardLoop + Send + 'static> Wake for StandIn<L> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Its thread is that of the owner, which alone counts.
        let absence = self.absences.load(Ordering::Relaxed);
        self.needed_in.store(absence, Ordering::Release);
        self.wake_thread();
    }
}

impl<L: ShardLoop + Send + 'static> Errands<L> {
    pub(super) fn new() -> Self {
        Self {
            stand_in: Arc::new(StandIn::new()),
            has_thread: false,
            has_failed: false,
        }
    }

    /// Runs the short calls of the shard. None if the shard has another owner now.
    pub(super) fn run(&mut self, owner: &Owner<L>, left: Left<L>) -> Option<Left<L>> {
        if !self.has_thread(owner) {
            let mut left = left;
            run_elsewhere(&mut *left.shard);
            return Some(left);
        }
        let beside = owner.life.leave_shard();
        let back = self.stand_in.run(left);
        match &back {
            Some(_) => owner.life.return_to_shard(beside),
            None => self.has_thread = false,
        }
        back
    }

    /// Whether there is a thread that stands in, which begins with the first calls.
    fn has_thread(&mut self, owner: &Owner<L>) -> bool {
        if !self.has_thread && !self.has_failed {
            let stand_in = Arc::clone(&self.stand_in);
            match owner.spawn_stand_in(move || stand_in.watch()) {
                #[cfg(not(loom))]
                Ok(thread) => self.stand_in.set_thread(thread),
                #[cfg(loom)]
                Ok(thread) => drop(thread),
                Err(_) => self.has_failed = true,
            }
            self.has_thread = !self.has_failed;
        }
        self.has_thread
    }
}

impl<L> Drop for Errands<L> {
    fn drop(&mut self) {
        if self.has_thread {
            self.stand_in.end();
        }
    }
}

/// Lets the compute pool run the short calls of a shard.
pub(super) fn run_elsewhere<L: ShardLoop>(shard: &mut L) {
    let mut calls = VecDeque::new();
    shard.take_short_calls(&mut calls);
    shard.run_elsewhere(&mut calls);
}

/// How long the owner runs functions before it turns the shard again. A model has no time.
const AWAY_MAX: Duration = Duration::from_micros(if cfg!(loom) { u64::MAX } else { 20 });
/// How often the stand-in looks whether the owner is still away. A model has no time.
const LOOK_INTERVAL: Duration = Duration::from_millis(if cfg!(loom) { u64::MAX } else { 1 });
/// Looks in a row that find nothing new, after which the stand-in sleeps.
const QUIET_LOOKS_MAX: u32 = if cfg!(loom) { 1 } else { 4 };

#[cfg(all(test, loom))]
mod model;
