//! The host that runs futures in a glommio executor, once there are any.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use glommio::timer::Timer;
use glommio::{Latency, LocalExecutor, Shares};
use grpcxx_transport::Time;

use super::beside::LocalTask;
pub(super) use super::executor::executor;
use super::life::{Owner, Turned};
use super::native;
use super::readable::Readable;
use super::shard_loop::{Clock, Dead, Panic, ShardLoop, sleep_limit};
use super::tasks::{FirstTasks, TaskQueue};
use crate::idle::{Idle, IdleStep};

/// Turns `shard` in the native loop until it is given futures, then beside them in a glommio
/// executor. The first owner makes that at once, so that a system that has none is told of at the
/// start. Where a later one gets none, futures run in the native loop.
pub(super) fn own<L: ShardLoop + Send + 'static>(
    shard: Box<L>,
    idle: &Idle,
    mut first: FirstTasks,
    owner: &Owner<L>,
    made: Option<LocalExecutor>,
) -> Result<Turned<L>, Dead<Box<L>>> {
    let shard = match native::turn(shard, idle, &mut first, owner)? {
        Turned::Here(shard) if !shard.is_finished() => shard,
        turned => return Ok(turned),
    };
    let executor = match made.map_or_else(executor, Ok) {
        Ok(executor) => executor,
        Err(error) => {
            tracing::warn!(error, "futures of a shard run without glommio from here on");
            return native::own(shard, idle, first, owner);
        }
    };
    let FirstTasks {
        queue: tasks,
        tasks: first_tasks,
    } = first;
    let turning = Turning {
        shard,
        clock: owner.life.options.clock,
        idle: idle.clone(),
        tasks,
    };
    executor.run(turning.until_finished(first_tasks))
}

/// A shard and what runs beside it.
struct Turning<L> {
    shard: Box<L>,
    clock: Clock,
    idle: Idle,
    tasks: TaskQueue,
}

impl<L: ShardLoop + 'static> Turning<L> {
    /// Turns the shard beside futures, of which these are the first.
    ///
    /// glommio can fall asleep although tasks can run, each time its preemption timer fires just
    /// before it would run them: on a busy machine that may be the very first time. The timer of
    /// its own queue is so long that this never happens there, and the queue for futures, whose
    /// timer has to be short, is guarded from its first moment on.
    async fn until_finished(
        mut self,
        first_tasks: Vec<LocalTask>,
    ) -> Result<Turned<L>, Dead<Box<L>>> {
        let latency = Latency::Matters(PREEMPTION_INTERVAL);
        let queue = glommio::executor().create_task_queue(Shares::default(), latency, "futures");
        let beside = async move {
            for interval in GUARD_INTERVALS {
                drop(glommio::spawn_local(bound_lost_wake_ups(interval)).detach());
            }
            glommio::executor().yield_now().await;
            for task in first_tasks {
                drop(glommio::spawn_local(task).detach());
            }
            // glommio must not see a panic: the executor would be torn down in the middle of it.
            let beside = AssertUnwindSafe(self.beside_tasks()).catch_unwind();
            match beside.await.unwrap_or_else(Err) {
                Ok(()) => {
                    self.tasks.end();
                    Ok(Turned::Here(self.shard))
                }
                Err(panic) => Err(self.died(panic)),
            }
        };
        match glommio::spawn_local_into(beside, queue) {
            Ok(done) => done.await,
            Err(error) => unreachable!("the queue was made just now: {error}"),
        }
    }

    /// Turns until the shard is finished, and lets futures run in between.
    async fn beside_tasks(&mut self) -> Result<(), Panic> {
        let mut last_pass = self.clock.now();
        let mut empty_turns = 0;
        while !self.shard.is_finished() {
            let now = self.clock.now();
            let events = self.turn(now)?;
            match self.idle.after_turn(now, events) {
                IdleStep::Turn if now.since(last_pass) >= REACTOR_PASS_INTERVAL => {
                    last_pass = now;
                    pass_to_reactor().await;
                }
                IdleStep::Turn => {
                    empty_turns = if events > 0 { 0 } else { empty_turns + 1 };
                    give_way(empty_turns).await;
                }
                IdleStep::Park => {
                    let timer = self.tasks.next_timeout();
                    let limit = sleep_limit(&mut *self.shard, timer, self.clock);
                    if limit.is_some_and(|limit| limit.is_zero()) {
                        glommio::executor().yield_now().await;
                        continue;
                    }
                    park(&mut *self.shard, &mut self.tasks, limit).await;
                }
            }
        }
        Ok(())
    }

    fn died(self, panic: Panic) -> Dead<Box<L>> {
        let Self { shard, .. } = self;
        Dead::of(shard, panic)
    }

    fn turn(&mut self, now: Time) -> Result<usize, Panic> {
        let start = |task| drop(glommio::spawn_local(task).detach());
        let beside = self.tasks.turn(now, start);
        let events = self.shard.turn(now) + beside;
        match self.tasks.take_panic() {
            Some(panic) => Err(panic),
            None => Ok(events),
        }
    }
}

/// Lets other tasks of the thread run after turns with events, and now and then between others.
async fn give_way(empty_turns: u32) {
    if empty_turns.is_multiple_of(EMPTY_TURNS_PER_YIELD) {
        glommio::executor().yield_now().await;
    } else {
        std::hint::spin_loop();
    }
}

/// Lets glommio's reactor look for completions. It does so by itself only when its preemption timer
/// fires, in whose wake it can fall asleep although tasks can run, or when no task can run. So this
/// one pauses, for a timer that is over before the reactor looks at it.
async fn pass_to_reactor() {
    let begin = Instant::now();
    let mut timer = pin!(Timer::new(MOMENT));
    std::future::poll_fn(|context| {
        let elapsed = timer.as_mut().poll(context);
        while elapsed.is_pending() && begin.elapsed() <= MOMENT {
            std::hint::spin_loop();
        }
        elapsed.map(|_| ())
    })
    .await;
}

/// Wakes the thread if glommio fell asleep although tasks can run. This task can be what it forgot,
/// so there are several: only those whose time was over at that moment are forgotten with it.
async fn bound_lost_wake_ups(interval: Duration) {
    loop {
        Timer::new(interval).await;
    }
}

/// Sleeps inside glommio until the shard's descriptor is readable or time is up.
async fn park<L: ShardLoop>(shard: &mut L, tasks: &mut TaskQueue, limit: Option<Duration>) {
    if !tasks.may_sleep() {
        return;
    }
    let ready = shard.park_fd().map(Readable::new);
    match ready {
        None => {}
        Some(Ok(ready)) => first_of(ready, limit.map(Timer::new)).await,
        // A descriptor that cannot be waited for costs latency, but no event.
        Some(Err(_)) => {
            let limit = limit.map_or(GUARD_INTERVAL, |limit| limit.min(GUARD_INTERVAL));
            Timer::new(limit).await;
        }
    }
    shard.unpark();
    tasks.awake();
}

async fn first_of(ready: Readable, timer: Option<Timer>) {
    let mut ready = pin!(ready);
    let mut timer = pin!(timer);
    std::future::poll_fn(|context| {
        if let Some(timer) = timer.as_mut().as_pin_mut()
            && timer.poll(context).is_ready()
        {
            return Poll::Ready(());
        }
        ready.as_mut().poll(context)
    })
    .await;
}

/// How often glommio's reactor gets a pass while the shard does not sleep.
const REACTOR_PASS_INTERVAL: Duration = Duration::from_micros(500);
/// A pause longer than it takes to begin it.
const MOMENT: Duration = Duration::from_micros(1);
/// How long users' tasks run on before glommio asks them to give way. It is longer than
/// [`REACTOR_PASS_INTERVAL`] because each time it is over, a wake-up can be lost.
const PREEMPTION_INTERVAL: Duration = Duration::from_millis(10);
/// Longest sleep of the thread inside glommio, which can lose a wake-up when its preemption timer
/// fires as it parks.
const GUARD_INTERVAL: Duration = Duration::from_millis(20);
/// The same, and longer ones for when the thread did not run for so long that the shorter were over
/// together: it then sleeps three times as long at most.
const GUARD_INTERVALS: [Duration; 7] = [
    GUARD_INTERVAL,
    Duration::from_millis(61),
    Duration::from_millis(181),
    Duration::from_millis(541),
    Duration::from_millis(1_621),
    Duration::from_millis(4_861),
    Duration::from_secs(29),
];
/// Turns without events between two chances for other tasks.
const EMPTY_TURNS_PER_YIELD: u32 = 16;
