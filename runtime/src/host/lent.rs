//! A shard that its thread lends to threads that wait for what it brings.
//!
//! Whoever has the lock turns the shard. Its owner is the thread that was made for it: where
//! threads come for the shard, it gives the lock up while it sleeps, on a descriptor that becomes
//! readable when the shard has work. A thread that waits for a call meanwhile borrows the shard: it
//! silences that descriptor, turns the shard until its own call has ended, and lets the descriptor
//! speak again. So a call of a thread needs no other thread, and what comes while nobody waits
//! wakes the owner.

mod dozing;
mod seat;
mod solitude;
mod turning;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, TryLockError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use grpcxx_transport::Time;

use self::dozing::Dozing;
use self::seat::{Hold, Seat};
use self::solitude::Comings;
use self::turning::{Turning, guard};
use super::bed::{Bed, Woken};
use super::native::Executor;
use super::shard_loop::{
    Clock, Dead, Panic, ShardLoop, TurnTime, next_look, sleep_end, sleep_limit,
};
use super::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, fence};
use super::tasks::{FirstTasks, Jobs};
use super::waiter::{Turnable, Waiter};
use crate::idle::{Idle, IdleStep};

/// A shard, its owner's bed, and the lock that decides who turns it.
pub(crate) struct Lent<L> {
    seat: Mutex<Seat<L>>,
    bed: Bed,
    /// A thread that waits wants the shard, which its owner turns; whoever takes that back has
    /// answered it.
    is_wanted: AtomicBool,
    /// Threads that wait and sleep, because another thread turns the shard.
    sleepers: AtomicUsize,
    /// A thread that waits turns it.
    is_borrowed: AtomicBool,
    /// Its owner wants it back.
    is_recalled: AtomicBool,
    dozing: Dozing,
    comings: Comings,
    /// It stays on its owner's thread from now on, or from the next turn on.
    is_bound: AtomicBool,
    /// No other thread turns it any more.
    is_kept: AtomicBool,
    clock: Clock,
    waker: Waker,
}

/// Why the owner stops turning.
enum Pause {
    Sleep(Option<Duration>),
    /// A thread wants the shard.
    HandOver,
    /// It keeps the shard from now on.
    Keep,
}

/// What a borrower's turns ended in.
#[derive(PartialEq, Eq)]
enum End {
    /// What it waits for is there, or its time is over.
    Woken,
    /// The owner has to go on.
    Owner,
}

/// Tells of a shard that threads which wait may turn.
pub(crate) type Lend<L> = Box<dyn FnOnce(&Arc<Lent<L>>) + Send>;

/// A shard that stays on its owner's thread.
pub(super) struct Kept<L> {
    pub(super) shard: L,
    pub(super) idle: Idle,
    /// What has come to run beside it.
    pub(super) first: FirstTasks,
}

/// Lends a shard, which the calling thread owns, to those that `lend` tells of it, until it has to
/// stay here.
pub(super) fn turn<L: ShardLoop>(
    shard: L,
    clock: Clock,
    idle: Idle,
    jobs: Jobs,
    (lend, started): (Option<Lend<L>>, impl FnOnce()),
) -> Result<Kept<L>, Dead<L>> {
    let Some((lend, bed)) = lend.zip(Bed::new().ok()) else {
        let first = FirstTasks::new(jobs, clock, shard.waker());
        started();
        return Ok(Kept { shard, idle, first });
    };
    let both = Waker::from(Arc::new(Both(bed.waker(), shard.waker())));
    let mut first = FirstTasks::new(jobs, clock, both);
    let lent = Arc::new(Lent::new(shard, clock, idle, bed));
    lend(&lent);
    // Behind that: a program may bind the shard as soon as it has started.
    started();
    let (shard, idle) = lent.own(&mut first)?;
    Ok(Kept { shard, idle, first })
}

/// Wakes the owner of a shard, whether it lends that or not.
struct Both(Waker, Waker);

impl Wake for Both {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake_by_ref();
        self.1.wake_by_ref();
    }
}

impl<L: ShardLoop> Lent<L> {
    fn new(shard: L, clock: Clock, idle: Idle, bed: Bed) -> Self {
        Self {
            bed,
            is_wanted: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            is_borrowed: AtomicBool::new(false),
            is_recalled: AtomicBool::new(false),
            dozing: Dozing::new(),
            comings: Comings::new(),
            is_bound: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
            clock,
            waker: shard.waker(),
            seat: Mutex::new(Seat::new(shard, idle)),
        }
    }

    /// Turns the shard as its owner, until that keeps it for good: it has ended, futures were begun
    /// beside it, or it was bound.
    fn own(&self, beside: &mut impl Executor) -> Result<(L, Idle), Dead<L>> {
        let mut time = TurnTime::new(self.clock);
        loop {
            let mut seat = self.recall();
            if seat.hold == Hold::Dozing {
                seat.vain_wakes.forget_one();
            }
            // Threads that sleep need it.
            let is_needed = self.sleepers.load(Ordering::Relaxed) > 0;
            seat.woke_at = (!is_needed).then(|| self.clock.now());
            self.wake(&mut seat);
            self.dozing.stop_alarm(&self.bed);
            beside.awake();
            seat.events = 0;
            let turning = Turning::begin();
            let paused = catch_unwind(AssertUnwindSafe(|| {
                self.turn_until_pause(&mut seat, beside, &mut time)
            }));
            drop(turning);
            let death = seat.death.take();
            match (paused.unwrap_or_else(Err), death) {
                (Ok(Pause::Sleep(limit)), None) => {
                    drop(seat);
                    self.sleep(limit);
                    time.forget();
                }
                (Ok(Pause::HandOver), None) => {
                    seat.hold = Hold::Handed;
                    seat.wakes_at = None;
                    drop(seat);
                    self.sleep(None);
                    time.forget();
                }
                (Ok(Pause::Keep), None) => return Ok((self.keep(&mut seat), seat.idle.clone())),
                (Err(panic), _) => return Err(Dead::of(self.keep(&mut seat), panic)),
                (Ok(_), Some(death)) => return Err(death.of_shard(self.keep(&mut seat))),
            }
        }
    }

    /// Sleeps as the owner, until the shard is its own to turn.
    fn sleep(&self, limit: Option<Duration>) {
        // A time that no clock reaches is no limit.
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut waits = self.comings.waits();
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if self.bed.sleep(left) == Woken::Up {
                return;
            }
            // As long as threads come for the shard, one of them looks after it.
            let before = std::mem::replace(&mut waits, self.comings.waits());
            let has_come = waits != before || self.is_borrowed.load(Ordering::Relaxed);
            if !has_come || self.dozing.is_stirred() || self.has_left_work() {
                return;
            }
            let is_borrowed = || self.is_borrowed.load(Ordering::Relaxed);
            self.dozing.set_again(&self.bed, is_borrowed);
        }
    }

    /// Whether a shard that dozes has something to do.
    fn has_left_work(&self) -> bool {
        let seat = self.try_lock().filter(|seat| seat.hold == Hold::Dozing);
        seat.is_some_and(|mut seat| {
            let is_quiet = seat.shard().park_fd_ahead().is_some();
            seat.shard().unpark();
            !is_quiet
        })
    }

    fn turn_until_pause(
        &self,
        seat: &mut Seat<L>,
        beside: &mut impl Executor,
        time: &mut TurnTime,
    ) -> Result<Pause, Panic> {
        loop {
            let is_kept = seat.death.is_some() || self.is_bound.load(Ordering::Acquire);
            let shard = seat.shard();
            if is_kept || shard.is_finished() || beside.ends_loop() {
                return Ok(Pause::Keep);
            }
            if self.is_wanted.load(Ordering::Relaxed) && beside.may_sleep() {
                if self.is_wanted.swap(false, Ordering::AcqRel) {
                    return Ok(Pause::HandOver);
                }
                beside.awake();
            }
            let now = time.next();
            let events = seat.shard().turn(now) + beside.turn(now);
            seat.events = seat.events.saturating_add(events);
            if let Some(panic) = beside.take_panic() {
                return Err(panic);
            }
            match seat.idle.after_turn(now, events) {
                IdleStep::Turn if events > 0 => time.forget(),
                IdleStep::Turn if self.owner_may_look(seat) => std::hint::spin_loop(),
                IdleStep::Turn | IdleStep::Park => {
                    time.forget();
                    let end = sleep_end(seat.shard(), beside.next_timeout(), self.clock);
                    let limit = end.map(|end| end.since(self.clock.now()));
                    if limit.is_some_and(|limit| limit.is_zero()) || !beside.may_sleep() {
                        continue;
                    }
                    if seat.solitude.note_sleep(&self.comings) {
                        // It keeps the lock, and sleeps as the owner of a shard that is not lent.
                        if !self.is_bound.load(Ordering::Acquire) {
                            seat.shard().park(limit);
                        }
                        seat.events = 0;
                        beside.awake();
                        continue;
                    }
                    if self.fall_asleep(seat) {
                        seat.wakes_at = end;
                        return Ok(Pause::Sleep(limit));
                    }
                    beside.awake();
                }
            }
        }
    }

    /// Whether the owner may look for work before it sleeps. A thread that comes for the shard may
    /// need just this CPU; where several sleep, the owner turns it for them.
    fn owner_may_look(&self, seat: &Seat<L>) -> bool {
        !seat.solitude.is_sought() || self.sleepers.load(Ordering::Relaxed) > 1
    }

    fn turn_until_woken(&self, seat: &mut Seat<L>, waiter: &Waiter, until: Option<Time>) -> End {
        let mut time = TurnTime::new(self.clock);
        // A call has begun, so an answer may be near.
        seat.borrowers_idle.note_event();
        loop {
            if waiter.is_woken() {
                return End::Woken;
            }
            let shard = seat.shard();
            if shard.is_finished() || shard.wants_owner() || self.is_left() {
                return End::Owner;
            }
            let now = time.next();
            if until.is_some_and(|until| now >= until) {
                return End::Woken;
            }
            let events = shard.turn(now);
            match seat.borrowers_idle.after_turn(now, events) {
                IdleStep::Turn if events > 0 => time.forget(),
                IdleStep::Turn => std::hint::spin_loop(),
                IdleStep::Park => {
                    time.forget();
                    let shard = seat.shard();
                    let limit = sleep_limit(shard, until, self.clock);
                    // The waiter's waker ends this sleep if it is used from now on.
                    let is_over = waiter.is_woken() || self.is_left();
                    if !is_over && !limit.is_some_and(|limit| limit.is_zero()) {
                        seat.shard().park(limit);
                    }
                }
            }
        }
    }

    /// Whether the owner wants the shard, or has it for good.
    fn is_left(&self) -> bool {
        self.is_recalled.load(Ordering::Relaxed) || self.is_bound.load(Ordering::Acquire)
    }

    /// How often threads that wait have come for it.
    pub(crate) fn comings(&self) -> usize {
        self.comings.waits()
    }

    /// Something was handed over to the shard, which may doze.
    pub(crate) fn stir(&self) {
        self.dozing.stir(&self.bed);
    }

    /// Hands `code` the shard if nobody turns it now and it takes that. The code must not turn it,
    /// but may give it work.
    pub(crate) fn visit<R>(
        &self,
        takes: impl FnOnce(&L) -> bool,
        code: impl FnOnce(&mut L, Time) -> R,
    ) -> Option<R> {
        if self.is_bound.load(Ordering::Acquire) {
            return None;
        }
        self.comings.note_begin();
        let mut seat = self.try_lock().filter(|seat| seat.has_no_thread())?;
        if !takes(seat.shard()) {
            return None;
        }
        let _turning = Turning::begin();
        let visited = guard(&mut seat, |seat| {
            let is_asleep = seat.hold == Hold::Asleep;
            let shard = seat.shard();
            if is_asleep {
                shard.unpark();
            }
            shard.set_borrowed(true);
            let result = code(shard, self.clock.now());
            shard.set_borrowed(false);
            let is_left = shard.is_finished() || shard.wants_owner();
            (result, !is_left && (!is_asleep || self.sleeps_on(seat)))
        });
        match visited {
            Some((result, true)) => Some(result),
            for_owner => {
                // Else the shard's next event would wake the owner from a sleep that is not for it.
                self.bed.silence();
                seat.hold = Hold::Turned;
                drop(seat);
                self.bed.wake();
                for_owner.map(|(result, _)| result)
            }
        }
    }

    /// Lets the shard wake its owner again, who sleeps. False if there is work already, or before
    /// the owner would wake.
    fn sleeps_on(&self, seat: &mut Seat<L>) -> bool {
        let is_quiet = seat.shard().park_fd_ahead().is_some()
            && !is_before(next_look(seat.shard(), self.clock), seat.wakes_at);
        if !is_quiet {
            seat.shard().unpark();
        }
        is_quiet
    }

    fn borrow(&self) -> Option<MutexGuard<'_, Seat<L>>> {
        if self.is_bound.load(Ordering::Acquire) {
            return None;
        }
        self.comings.note_wait();
        if self.is_borrowed.load(Ordering::Relaxed) {
            return None;
        }
        let mut seat = match self.try_lock() {
            Some(seat) if seat.is_free() => seat,
            _ => self.want()?,
        };
        self.wake(&mut seat);
        if let Some(woke_at) = seat.woke_at.take() {
            let events = seat.events;
            (seat.vain_wakes).note(self.clock.now().since(woke_at), events);
        }
        seat.shard().set_borrowed(true);
        self.is_borrowed.store(true, Ordering::Relaxed);
        // See `recall`.
        fence(Ordering::SeqCst);
        Some(seat)
    }

    /// Asks the owner for the shard, which it gives up behind its present turn. Where other threads
    /// sleep until it ends their calls, it keeps the shard: each hand-over costs a wake-up.
    fn want(&self) -> Option<MutexGuard<'_, Seat<L>>> {
        if self.sleepers.load(Ordering::Relaxed) > 0 || self.is_wanted.swap(true, Ordering::AcqRel)
        {
            return None;
        }
        let since = Instant::now();
        loop {
            if let Some(seat) = self.try_lock().filter(|seat| seat.is_free()) {
                // Else the owner would hand the shard to nobody later.
                self.is_wanted.store(false, Ordering::Relaxed);
                return Some(seat);
            }
            if since.elapsed() >= WANT_TIME {
                break;
            }
            // The owner may wait for this CPU.
            std::thread::yield_now();
        }
        if self.is_wanted.swap(false, Ordering::AcqRel) {
            return None;
        }
        // The owner gives it up just now.
        let seat = self.try_lock().filter(|seat| seat.hold == Hold::Handed);
        if seat.is_none() {
            self.bed.wake();
        }
        seat
    }

    fn give_back(&self, mut seat: MutexGuard<'_, Seat<L>>, end: End) {
        self.is_borrowed.store(false, Ordering::Relaxed);
        let rests = guard(&mut seat, |seat| {
            seat.shard().set_borrowed(false);
            let others_sleep = self.sleepers.load(Ordering::Relaxed) > 0;
            let is_left = end == End::Owner || others_sleep || seat.shard().is_finished();
            !is_left && self.rest(seat)
        });
        if rests != Some(true) {
            drop(seat);
            self.bed.wake();
        }
    }

    /// Leaves the shard to nobody, and its owner asleep. False if that one is needed.
    fn rest(&self, seat: &mut Seat<L>) -> bool {
        if !seat.vain_wakes.are_many() {
            return self.fall_asleep(seat)
                && !is_before(next_look(seat.shard(), self.clock), seat.wakes_at);
        }
        // What peers send before the thread comes again waits for that, and nobody is woken.
        seat.hold = Hold::Dozing;
        self.dozing.begin(&self.bed, || seat.shard().has_work())
    }

    /// Begins to turn the shard. Ends what [`Lent::fall_asleep`] and [`Lent::rest`] began.
    fn wake(&self, seat: &mut Seat<L>) {
        match seat.hold {
            Hold::Asleep => {
                self.bed.silence();
                seat.shard().unpark();
            }
            Hold::Dozing => self.dozing.end(),
            Hold::Turned | Hold::Handed => {}
        }
        seat.hold = Hold::Turned;
    }

    /// Lets the shard wake its owner. False if there is work already.
    fn fall_asleep(&self, seat: &mut Seat<L>) -> bool {
        let descriptor = seat.shard().park_fd();
        let listens = descriptor.map(|descriptor| self.bed.listen(descriptor).is_ok());
        let is_asleep = listens == Some(true);
        match is_asleep {
            true => seat.hold = Hold::Asleep,
            false => seat.shard().unpark(),
        }
        if listens == Some(false) {
            // There are no descriptors left: it goes on as one that nobody borrows.
            self.is_bound.store(true, Ordering::Release);
        }
        is_asleep
    }

    /// The lock, for the owner: a thread that waits gives the shard back for it.
    fn recall(&self) -> MutexGuard<'_, Seat<L>> {
        self.is_recalled.store(true, Ordering::Relaxed);
        // Either the borrower sees that before its first turn, or it is seen here.
        fence(Ordering::SeqCst);
        if self.is_borrowed.load(Ordering::Relaxed) {
            self.waker.wake_by_ref();
        }
        let seat = self.lock();
        self.is_recalled.store(false, Ordering::Relaxed);
        seat
    }

    /// Takes the shard out for good.
    fn keep(&self, seat: &mut Seat<L>) -> L {
        self.is_bound.store(true, Ordering::Release);
        seat.shard.take().expect("its owner keeps it once")
    }

    fn lock(&self) -> MutexGuard<'_, Seat<L>> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Seat<L>>> {
        match self.seat.try_lock() {
            Ok(seat) => Some(seat),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<L: ShardLoop + Send> Turnable for Lent<L> {
    fn turn_for(&self, waiter: &Waiter, limit: Option<Duration>) -> bool {
        let Some(mut seat) = self.borrow() else {
            return false;
        };
        let until = limit.map(|limit| self.clock.now() + limit);
        waiter.enter(&self.waker);
        let _turning = Turning::begin();
        let end = guard(&mut seat, |seat| self.turn_until_woken(seat, waiter, until));
        waiter.leave();
        let end = end.unwrap_or(End::Owner);
        let has_ended = end == End::Woken;
        self.give_back(seat, end);
        has_ended
    }

    fn sleep_for(&self, waiter: &Waiter, limit: Option<Duration>) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // Whoever had the shard may have left it dozing just now.
        self.stir();
        waiter.sleep(limit);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    fn bind(&self) {
        if self.is_kept.load(Ordering::Acquire) {
            return;
        }
        if !self.is_bound.swap(true, Ordering::AcqRel) {
            self.waker.wake_by_ref();
            self.bed.wake();
        }
        // Whoever turns it sees that before the next turn. Code that a turn runs cannot wait for
        // its end, nor for that of another shard, which may wait for this one.
        if !Turning::is_under_way() {
            drop(self.lock());
            self.is_kept.store(true, Ordering::Release);
        }
    }
}

/// Whether the calling thread turns a shard that its owner has lent.
pub(crate) fn is_turning() -> bool {
    Turning::is_under_way()
}

/// Whether the first of two times is earlier; none is at the end of all times.
fn is_before(first: Option<Time>, second: Option<Time>) -> bool {
    match (first, second) {
        (Some(first), Some(second)) => first < second,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

/// How long a thread that waits looks for an owner to give the shard up, before it sleeps. A model
/// has no time.
const WANT_TIME: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 20 });

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;
