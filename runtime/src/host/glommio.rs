use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use glommio::timer::Timer;
use glommio::{LocalExecutor, LocalExecutorBuilder, Placement};

use super::readable::Readable;
use super::tasks::{Jobs, Panic, TaskQueue};
use super::{Clock, HostError, ShardLoop, panic_message, sleep_limit};
use crate::idle::{Idle, IdleStep};

/// Turns `shard` as one task of a glommio executor until it is finished.
pub(super) fn run<L: ShardLoop + 'static>(
    shard: L,
    clock: Clock,
    idle: Idle,
    jobs: Jobs,
    started: impl FnOnce(),
) -> Result<(), HostError> {
    let executor = executor().map_err(HostError::Glommio)?;
    started();
    executor
        .run(turn_until_finished(shard, clock, idle, jobs))
        .unwrap_or_else(|panic| resume_unwind(panic));
    Ok(())
}

/// An executor for the calling thread, which may be pinned already.
pub(super) fn executor() -> Result<LocalExecutor, String> {
    let make = || {
        LocalExecutorBuilder::new(Placement::Unbound)
            .io_memory(IO_MEMORY_BYTES)
            .ring_depth(RING_DEPTH)
            .preempt_timer(PREEMPTION_INTERVAL)
            .make()
    };
    match catch_unwind(make) {
        Ok(Ok(executor)) => Ok(executor),
        Ok(Err(error)) => Err(error.to_string()),
        Err(payload) => Err(panic_message(payload.as_ref())),
    }
}

async fn turn_until_finished<L: ShardLoop>(
    mut shard: L,
    clock: Clock,
    mut idle: Idle,
    jobs: Jobs,
) -> Result<(), Panic> {
    let mut tasks = TaskQueue::new(jobs, shard.waker());
    let mut guarded = false;
    let mut last_pass = clock.now();
    let mut empty_turns = 0;
    while !shard.is_finished() {
        let now = clock.now();
        let mut turn = || {
            let started = tasks.drain(|task| drop(glommio::spawn_local(task).detach()));
            shard.turn(now) + started
        };
        // glommio must not see the panic: its executor would be torn down in the middle of a turn.
        let events = catch_unwind(AssertUnwindSafe(&mut turn))?;
        if let Some(panic) = tasks.take_panic() {
            return Err(panic);
        }
        if tasks.was_used() && !guarded {
            guarded = true;
            for interval in GUARD_INTERVALS {
                drop(glommio::spawn_local(bound_lost_wake_ups(interval)).detach());
            }
        }
        match idle.after_turn(now, events) {
            // Without a task beside the shard glommio has nothing to do, and would allocate doing it.
            IdleStep::Turn if !tasks.was_used() => {
                if events == 0 {
                    std::hint::spin_loop();
                }
            }
            IdleStep::Turn if now.since(last_pass) >= REACTOR_PASS_INTERVAL => {
                last_pass = now;
                pass_to_reactor().await;
            }
            IdleStep::Turn => {
                empty_turns = if events > 0 { 0 } else { empty_turns + 1 };
                give_way(empty_turns).await;
            }
            IdleStep::Park => {
                let limit = sleep_limit(&shard, clock);
                if limit.is_some_and(|limit| limit.is_zero()) {
                    if tasks.was_used() {
                        glommio::executor().yield_now().await;
                    }
                    continue;
                }
                park(&mut shard, &mut tasks, limit).await;
            }
        }
    }
    Ok(())
}

/// Lets other tasks of the thread run after turns with events, and now and then between others.
async fn give_way(empty_turns: u32) {
    if empty_turns.is_multiple_of(EMPTY_TURNS_PER_YIELD) {
        glommio::executor().yield_now().await;
    } else {
        std::hint::spin_loop();
    }
}

/// Lets glommio's reactor look for completions. It does so by itself only when its preemption timer fires, in
/// whose wake it can fall asleep although tasks can run, or when no task can run. So this one pauses, for a timer
/// that is over before the reactor looks at it.
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

/// Wakes the thread if glommio fell asleep although tasks can run. This task can be what it forgot, so there are
/// several: only those whose time was over at that moment are forgotten with it.
async fn bound_lost_wake_ups(interval: Duration) {
    loop {
        Timer::new(interval).await;
    }
}

/// Sleeps until the shard's descriptor is readable or time is up: inside glommio where it has tasks to wake
/// for, else as the native host does, which is several times quicker.
async fn park<L: ShardLoop>(shard: &mut L, tasks: &mut TaskQueue, limit: Option<Duration>) {
    if !tasks.may_sleep() {
        return;
    }
    if !tasks.was_used() {
        shard.park(limit);
        tasks.awake();
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
/// Longest sleep of the thread inside glommio, which can lose a wake-up when its preemption timer fires as it
/// parks.
const GUARD_INTERVAL: Duration = Duration::from_millis(20);
/// The same, and longer ones for when the thread did not run for so long that the shorter were over together.
const GUARD_INTERVALS: [Duration; 3] = [
    GUARD_INTERVAL,
    Duration::from_millis(997),
    Duration::from_secs(29),
];
/// Turns without events between two chances for other tasks.
const EMPTY_TURNS_PER_YIELD: u32 = 16;
/// Memory for glommio's own direct input and output; the shard's does not come from here.
const IO_MEMORY_BYTES: usize = 64 << 10;
/// Entries of each of glommio's three rings.
const RING_DEPTH: usize = 128;
