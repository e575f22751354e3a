use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

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
            .preempt_timer(REACTOR_PASS_INTERVAL)
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
        match idle.after_turn(now, events) {
            IdleStep::Turn => {
                empty_turns = if events > 0 { 0 } else { empty_turns + 1 };
                give_way(empty_turns).await;
            }
            IdleStep::Park => {
                let limit = sleep_limit(&shard, clock);
                if limit.is_some_and(|limit| limit.is_zero()) {
                    glommio::executor().yield_if_needed().await;
                    continue;
                }
                park(&mut shard, &mut tasks, limit).await;
                idle.after_park(sleep_limit(&shard, clock).is_some_and(|limit| limit.is_zero()));
            }
        }
    }
    Ok(())
}

/// Lets other tasks of the thread run after turns with events and now and then between others; and the
/// reactor, as often as its timer asks.
async fn give_way(empty_turns: u32) {
    let executor = glommio::executor();
    if executor.need_preempt() {
        executor.yield_if_needed().await;
    } else if empty_turns.is_multiple_of(EMPTY_TURNS_PER_YIELD) {
        executor.yield_now().await;
    } else {
        std::hint::spin_loop();
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
    // A descriptor that cannot be waited for costs latency, up to the end of the timer, but no event.
    let ready = shard
        .park_fd()
        .map(|descriptor| Readable::new(descriptor).ok());
    if let Some(ready) = ready {
        let limit = limit.map_or(SLEEP_MAX, |limit| limit.min(SLEEP_MAX));
        first_of(ready, Timer::new(limit)).await;
    }
    shard.unpark();
    tasks.awake();
}

async fn first_of(ready: Option<Readable>, timer: Timer) {
    let mut ready = pin!(ready);
    let mut timer = pin!(timer);
    std::future::poll_fn(|context| {
        if let Some(ready) = ready.as_mut().as_pin_mut()
            && ready.poll(context).is_ready()
        {
            return Poll::Ready(());
        }
        timer.as_mut().poll(context).map(|_elapsed| ())
    })
    .await;
}

/// How often glommio's reactor gets a pass while the shard does not sleep.
const REACTOR_PASS_INTERVAL: Duration = Duration::from_micros(500);
/// Longest sleep: glommio can lose a wake-up when its preemption timer fires as it parks.
const SLEEP_MAX: Duration = Duration::from_millis(10);
/// Turns without events between two chances for other tasks.
const EMPTY_TURNS_PER_YIELD: u32 = 16;
/// Memory for glommio's own direct input and output; the shard's does not come from here.
const IO_MEMORY_BYTES: usize = 64 << 10;
/// Entries of each of glommio's three rings.
const RING_DEPTH: usize = 128;
