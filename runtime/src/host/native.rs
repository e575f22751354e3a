//! The loop that turns a shard on its thread, until it is finished or another executor takes over.

use std::panic::{AssertUnwindSafe, catch_unwind};

use grpcxx_transport::Time;

use super::lent::{self, Kept, Lend};
use super::shard_loop::{Clock, Dead, Panic, ShardLoop, TurnTime, sleep_limit};
use super::tasks::{Jobs, NativeTasks};
use crate::idle::{Idle, IdleStep};

/// Turns what runs beside a shard in its loop.
pub(super) trait Executor {
    /// Does what is due at `now`. Returns how much that was.
    fn turn(&mut self, now: Time) -> usize;

    /// When a timer of a future is over.
    fn next_timeout(&self) -> Option<Time>;

    /// The panic of a future, if there was one.
    fn take_panic(&mut self) -> Option<Panic>;

    /// Whether nothing is due; what comes up from now on ends the sleep of the thread.
    fn may_sleep(&mut self) -> bool;

    /// Ends what [`Executor::may_sleep`] began.
    fn awake(&mut self);

    /// Whether the loop shall end for an executor that goes on.
    fn ends_loop(&self) -> bool;
}

/// Turns `shard` until it is finished, with futures beside it.
pub(super) fn run<L: ShardLoop>(
    shard: L,
    clock: Clock,
    idle: Idle,
    jobs: Jobs,
    start: (Option<Lend<L>>, impl FnOnce()),
) -> Result<(), Dead<L>> {
    let Kept {
        mut shard,
        mut idle,
        first,
    } = lent::turn(shard, clock, idle, jobs, start)?;
    let mut tasks = NativeTasks::after(first);
    match turn(&mut shard, clock, &mut idle, &mut tasks) {
        Ok(()) => {
            tasks.end();
            Ok(())
        }
        Err(panic) => Err(Dead::of(shard, panic)),
    }
}

/// Turns `shard` until it is finished, or what runs beside it ends the loop.
pub(super) fn turn<L: ShardLoop>(
    shard: &mut L,
    clock: Clock,
    idle: &mut Idle,
    beside: &mut impl Executor,
) -> Result<(), Panic> {
    let turn = || turn_unguarded(shard, clock, idle, beside);
    catch_unwind(AssertUnwindSafe(turn)).unwrap_or_else(Err)
}

fn turn_unguarded<L: ShardLoop>(
    shard: &mut L,
    clock: Clock,
    idle: &mut Idle,
    beside: &mut impl Executor,
) -> Result<(), Panic> {
    let mut time = TurnTime::new(clock);
    while !shard.is_finished() && !beside.ends_loop() {
        let now = time.next();
        let events = shard.turn(now) + beside.turn(now);
        if let Some(panic) = beside.take_panic() {
            return Err(panic);
        }
        match idle.after_turn(now, events) {
            IdleStep::Turn if events > 0 => time.forget(),
            IdleStep::Turn => std::hint::spin_loop(),
            IdleStep::Park => {
                time.forget();
                let limit = sleep_limit(shard, beside.next_timeout(), clock);
                if limit.is_some_and(|limit| limit.is_zero()) || !beside.may_sleep() {
                    continue;
                }
                shard.park(limit);
                beside.awake();
            }
        }
    }
    Ok(())
}
