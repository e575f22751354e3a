//! A shard without a thread of its own: whoever waits for a future turns it meanwhile.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::beside::Beside;
use super::error::panicked;
use super::native::Executor;
use super::shard_loop::{Clock, Panic, ShardLoop, TurnTime, sleep_limit};
use super::tasks::{Jobs, NativeTasks, Signal};
use crate::blame::blamed;
use crate::idle::{Idle, IdleStep};

/// A shard that the thread which owns it turns.
pub(crate) struct Inline<L: ShardLoop> {
    name: String,
    /// None once code on it has panicked.
    shard: Option<L>,
    tasks: NativeTasks,
    beside: Rc<Beside>,
    clock: Clock,
    idle: Idle,
    /// Set when the future that is waited for wants to be polled.
    signal: Arc<Signal>,
    waker: Waker,
}

impl<L: ShardLoop> Inline<L> {
    /// Futures arrive through `jobs`.
    pub(crate) fn new(name: String, shard: L, clock: Clock, idle: Idle, jobs: Jobs) -> Self {
        let mut tasks = NativeTasks::new(jobs, clock, shard.waker());
        drop(Beside::leave());
        let signal = tasks.signal();
        Self {
            name,
            beside: tasks.beside(),
            waker: Waker::from(Arc::clone(&signal)),
            shard: Some(shard),
            tasks,
            clock,
            idle,
            signal,
        }
    }

    /// Turns the shard until `future` is ready.
    ///
    /// # Panics
    /// If code on the shard panics, which is dead from then on, or has panicked before.
    pub(crate) fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        let waker = self.waker.clone();
        let mut context = Context::from_waker(&waker);
        let _here = self.beside.stay();
        let mut time = TurnTime::new(self.clock);
        self.signal.set();
        loop {
            let mut events = 0;
            if self.signal.take() {
                if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    return output;
                }
                events += 1;
            }
            let now = time.next();
            let turned = self.turn(now);
            events += turned.unwrap_or_else(|panic| self.died(panic));
            match self.idle.after_turn(now, events) {
                IdleStep::Turn if events > 0 => time.forget(),
                IdleStep::Turn => std::hint::spin_loop(),
                IdleStep::Park => {
                    time.forget();
                    self.park();
                }
            }
        }
    }

    /// Turns the shard until it is finished.
    pub(crate) fn finish(&mut self) {
        let _here = self.beside.stay();
        while self
            .shard
            .as_ref()
            .is_some_and(|shard| !shard.is_finished())
        {
            let turned = self.turn(self.clock.now());
            let events = turned.unwrap_or_else(|panic| self.died(panic));
            if events == 0 {
                self.park();
            }
        }
        self.tasks.end();
    }

    fn turn(&mut self, now: grpcxx_transport::Time) -> Result<usize, Panic> {
        let Some(shard) = &mut self.shard else {
            panic!("code on this engine has panicked before; start another one");
        };
        let tasks = &mut self.tasks;
        let turn = || shard.turn(now) + tasks.turn(now);
        let events = catch_unwind(AssertUnwindSafe(turn))?;
        match self.tasks.take_panic() {
            Some(panic) => Err(panic),
            None => Ok(events),
        }
    }

    fn park(&mut self) {
        let Some(shard) = &mut self.shard else {
            return;
        };
        let limit = sleep_limit(shard, self.tasks.next_timeout(), self.clock);
        if limit.is_some_and(|limit| limit.is_zero()) || !self.tasks.may_sleep() {
            return;
        }
        // Behind the announcement of sleep: whoever sets it from now on ends the sleep.
        if !self.signal.is_set() {
            shard.park(limit);
        }
        self.tasks.awake();
    }

    /// Ends the shard, and goes on with the panic on the thread that turned it.
    fn died(&mut self, panic: Panic) -> ! {
        let error = panicked(self.name.clone(), blamed(), panic.as_ref());
        if let Some(shard) = self.shard.take() {
            shard.die(&error);
        }
        self.tasks.end();
        resume_unwind(panic)
    }
}
