//! A thread that stands in for the owner of a shard while that runs functions.
//!
//! Between two turns the owner runs calls of functions that were short so far. Meanwhile it leaves
//! the shard on a seat. If the owner is still away at the second look of the stand-in, or a
//! function waits for a call of its own, the stand-in takes the shard and turns it until the owner
//! is back. So such a function may take its time after all, or hold up a lock that somebody needs
//! for whom the shard works: the shard goes on.

mod away;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use self::away::Away;
pub(crate) use self::away::{is_away, note_wait};
use super::shard_loop::{Clock, Dead, Panic, ShardLoop, TurnTime, sleep_limit};
use super::sync::{
    AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, Thread, fence, park,
    park_timeout,
};
use crate::blame::blame;
use crate::compute::{ShortCall, run};
use crate::idle::{Idle, IdleStep};

/// Where the owner of a shard leaves it, and the thread that takes it from there.
pub(super) struct StandIn<L> {
    seat: Mutex<Seat<L>>,
    /// The stand-in has put the shard back, or let go of it.
    is_back: Condvar,
    /// Odd while the owner is away.
    absences: AtomicUsize,
    /// The owner has come back, and waits for its shard.
    owner_waits: AtomicBool,
    /// A function waits for something that the shard may have to bring.
    is_needed: AtomicBool,
    /// The stand-in looks no more until it is woken.
    is_asleep: AtomicBool,
    has_ended: AtomicBool,
    thread: OnceLock<Thread>,
    clock: Clock,
    waker: Waker,
    /// Hears that the shard has ended while its owner was away.
    ended: Ended,
}

/// Hears that a shard has ended.
pub(super) type Ended = Box<dyn Fn() + Send + Sync>;

/// What the lock guards.
struct Seat<L> {
    /// None while somebody turns the shard, or once it has ended.
    shard: Option<Box<L>>,
    /// What the owner has still to run.
    calls: VecDeque<ShortCall>,
    idle: Idle,
    /// What the turns of the stand-in ended in.
    death: Option<Dead<()>>,
    /// The shard has ended, and the stand-in has let go of it.
    is_over: bool,
}

/// The owner's side, and the thread that stands in for it.
pub(super) struct Errands<L> {
    stand_in: Arc<StandIn<L>>,
    thread: Option<JoinHandle<()>>,
}

/// What the owner finds when it comes back.
pub(super) enum Found<L> {
    Shard(Box<L>),
    Dead(Dead<Box<L>>),
    /// The shard has ended meanwhile.
    Nothing,
}

impl<L: ShardLoop + Send + 'static> StandIn<L> {
    pub(super) fn new(waker: Waker, clock: Clock, idle: Idle, ended: Ended) -> Self {
        Self {
            seat: Mutex::new(Seat {
                shard: None,
                calls: VecDeque::new(),
                idle,
                death: None,
                is_over: false,
            }),
            is_back: Condvar::new(),
            absences: AtomicUsize::new(0),
            owner_waits: AtomicBool::new(false),
            is_needed: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            thread: OnceLock::new(),
            clock,
            waker,
            ended,
        }
    }

    /// Leaves the shard, runs its short calls for a bounded time, and comes back for it. Calls that
    /// are left by then go to the compute pool.
    pub(super) fn run(self: &Arc<Self>, shard: Box<L>) -> Found<L> {
        self.leave(shard);
        let begin = Instant::now();
        let mut spent = Duration::ZERO;
        let away = Away::begin(Waker::from(Arc::clone(self)));
        while spent < AWAY_MAX
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

    fn leave(&self, mut shard: Box<L>) {
        let mut seat = self.lock();
        shard.take_short_calls(&mut seat.calls);
        seat.shard = Some(shard);
        drop(seat);
        self.absences.fetch_add(1, Ordering::SeqCst);
        // Either the stand-in sees that before it sleeps, or it is woken.
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) {
            self.wake_thread();
        }
    }

    fn next_call(&self) -> Option<ShortCall> {
        self.lock().calls.pop_front()
    }

    fn come_back(&self) -> Found<L> {
        self.absences.fetch_add(1, Ordering::SeqCst);
        let mut seat = self.lock();
        if seat.shard.is_none() && !seat.is_over {
            self.owner_waits.store(true, Ordering::Release);
            self.waker.wake_by_ref();
            while seat.shard.is_none() && !seat.is_over {
                seat = (self.is_back.wait(seat)).unwrap_or_else(PoisonError::into_inner);
            }
            self.owner_waits.store(false, Ordering::Relaxed);
        }
        let Some(mut shard) = seat.shard.take() else {
            return Found::Nothing;
        };
        if let Some(death) = seat.death.take() {
            return Found::Dead(death.of_shard(shard));
        }
        if !seat.calls.is_empty() {
            shard.run_elsewhere(&mut seat.calls);
        }
        Found::Shard(shard)
    }

    /// Looks after the shard until its owner ends.
    fn watch(&self) {
        let mut seen = 0;
        let mut quiet_looks = 0;
        while !self.has_ended.load(Ordering::Acquire) {
            let is_needed = self.is_needed.load(Ordering::Acquire);
            if is_needed {
                self.is_needed.store(false, Ordering::Relaxed);
            }
            let absences = self.absences.load(Ordering::SeqCst);
            if !absences.is_multiple_of(2) && (absences == seen || is_needed) {
                self.take();
            }
            quiet_looks = match absences == seen {
                true => quiet_looks + 1,
                false => 0,
            };
            seen = absences;
            self.rest(seen, quiet_looks >= QUIET_LOOKS_MAX);
        }
    }

    /// Sleeps until the next look; if all was quiet, until the owner goes away again.
    fn rest(&self, seen: usize, is_quiet: bool) {
        if is_quiet {
            self.is_asleep.store(true, Ordering::Relaxed);
            // See `leave`.
            fence(Ordering::SeqCst);
        }
        let is_called = self.is_needed.load(Ordering::Relaxed)
            || self.has_ended.load(Ordering::Relaxed)
            || is_quiet && self.absences.load(Ordering::Relaxed) != seen;
        match is_called {
            true => {}
            false if is_quiet => park(),
            false => park_timeout(LOOK_INTERVAL),
        }
        self.is_asleep.store(false, Ordering::Relaxed);
    }

    /// Turns the shard in place of its owner, if that has left it.
    fn take(&self) {
        let mut seat = self.lock();
        let Some(mut shard) = seat.shard.take() else {
            return;
        };
        let mut calls = std::mem::take(&mut seat.calls);
        let mut idle = seat.idle.clone();
        drop(seat);
        let turned = catch_unwind(AssertUnwindSafe(|| {
            shard.set_borrowed(true);
            shard.run_elsewhere(&mut calls);
            self.turn(&mut shard, &mut idle);
            shard.set_borrowed(false);
        }));
        let is_over = turned.is_ok() && shard.is_finished();
        let shard = (!is_over).then_some(shard);
        if is_over {
            (self.ended)();
        }
        let mut seat = self.lock();
        seat.is_over = is_over;
        seat.shard = shard;
        seat.death = turned.err().map(|panic| Dead::of((), panic));
        drop(seat);
        self.is_back.notify_one();
    }

    fn turn(&self, shard: &mut L, idle: &mut Idle) {
        let mut time = TurnTime::new(self.clock);
        while !self.owner_waits.load(Ordering::Acquire)
            && !shard.is_finished()
            && shard.may_leave_owner()
        {
            let now = time.next();
            let events = shard.turn(now);
            match idle.after_turn(now, events) {
                IdleStep::Turn if events > 0 => time.forget(),
                IdleStep::Turn => std::hint::spin_loop(),
                IdleStep::Park => {
                    time.forget();
                    let limit = sleep_limit(shard, None, self.clock);
                    if !limit.is_some_and(|limit| limit.is_zero()) {
                        shard.park(limit);
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seat<L>> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
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
}

impl<L: ShardLoop + Send + 'static> Errands<L> {
    pub(super) fn new(stand_in: StandIn<L>) -> Self {
        Self {
            stand_in: Arc::new(stand_in),
            thread: None,
        }
    }

    /// Runs the short calls of the shard in `place`, if that may be left meanwhile; else the
    /// compute pool does. The place is empty if the shard has ended.
    pub(super) fn run(&mut self, place: &mut Option<Box<L>>, may_leave: bool) -> Result<(), Panic> {
        let Some(mut shard) = place.take() else {
            return Ok(());
        };
        if !may_leave || !self.has_thread() {
            let mut calls = VecDeque::new();
            shard.take_short_calls(&mut calls);
            shard.run_elsewhere(&mut calls);
            *place = Some(shard);
            return Ok(());
        }
        match self.stand_in.run(shard) {
            Found::Shard(shard) => *place = Some(shard),
            Found::Dead(dead) => {
                *place = Some(dead.shard);
                blame(dead.code);
                return Err(dead.panic);
            }
            Found::Nothing => {}
        }
        Ok(())
    }

    /// Whether there is a thread that stands in, which begins with the first calls.
    fn has_thread(&mut self) -> bool {
        if self.thread.is_none() {
            let stand_in = Arc::clone(&self.stand_in);
            let thread = thread::Builder::new().name("grpcxx-stand-in".to_owned());
            self.thread = thread.spawn(move || stand_in.watch()).ok();
            #[cfg(not(loom))]
            if let Some(thread) = &self.thread {
                self.stand_in.set_thread(thread.thread().clone());
            }
        }
        self.thread.is_some()
    }
}

impl<L> Drop for Errands<L> {
    fn drop(&mut self) {
        self.stand_in.end();
        if let Some(thread) = self.thread.take() {
            // What it may have panicked with, it has told the log.
            let _ = thread.join();
        }
    }
}

/// A function is about to wait.
impl<L: ShardLoop + Send + 'static> Wake for StandIn<L> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_needed.store(true, Ordering::Release);
        self.wake_thread();
    }
}

/// How long the owner runs functions before it turns the shard again. A model has no time.
const AWAY_MAX: Duration = Duration::from_micros(if cfg!(loom) { u64::MAX } else { 20 });
/// How often the stand-in looks whether the owner is still away.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Looks in a row that find nothing new, after which the stand-in sleeps.
const QUIET_LOOKS_MAX: u32 = 20;

#[cfg(all(test, loom))]
mod model;
