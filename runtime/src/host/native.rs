//! The loop that turns a shard on its thread, until it is finished or another executor takes over.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::tasks::{Jobs, NativeTasks, Panic};
use super::{Clock, Dead, ShardLoop, TurnTime, sleep_limit};
use crate::idle::{Idle, IdleStep};

/// What runs beside a shard in its loop.
pub(super) trait Beside {
    /// Does what is due. Returns how much that was.
    fn turn(&mut self) -> usize;

    /// The panic of a future, if there was one.
    fn take_panic(&mut self) -> Option<Panic>;

    /// Whether nothing is due; what comes up from now on ends the sleep of the thread.
    fn may_sleep(&mut self) -> bool;

    /// Ends what [`Beside::may_sleep`] began.
    fn awake(&mut self);

    /// Whether the loop shall end for an executor that goes on.
    fn ends_loop(&self) -> bool;
}

/// Turns `shard` until it is finished, with futures beside it.
pub(super) fn run<L: ShardLoop>(
    mut shard: L,
    clock: Clock,
    mut idle: Idle,
    jobs: Jobs,
) -> Result<(), Dead<L>> {
    let mut tasks = NativeTasks::new(jobs, shard.waker());
    match turn(&mut shard, clock, &mut idle, &mut tasks) {
        Ok(()) => Ok(()),
        Err(panic) => Err(Dead { shard, panic }),
    }
}

/// Turns `shard` until it is finished, or what runs beside it ends the loop.
pub(super) fn turn<L: ShardLoop>(
    shard: &mut L,
    clock: Clock,
    idle: &mut Idle,
    beside: &mut impl Beside,
) -> Result<(), Panic> {
    let turn = || turn_unguarded(shard, clock, idle, beside);
    catch_unwind(AssertUnwindSafe(turn)).unwrap_or_else(Err)
}

fn turn_unguarded<L: ShardLoop>(
    shard: &mut L,
    clock: Clock,
    idle: &mut Idle,
    beside: &mut impl Beside,
) -> Result<(), Panic> {
    let mut time = TurnTime::new(clock);
    while !shard.is_finished() && !beside.ends_loop() {
        let now = time.next();
        let events = shard.turn(now) + beside.turn();
        if let Some(panic) = beside.take_panic() {
            return Err(panic);
        }
        match idle.after_turn(now, events) {
            IdleStep::Turn if events > 0 => time.forget(),
            IdleStep::Turn => std::hint::spin_loop(),
            IdleStep::Park => {
                time.forget();
                let limit = sleep_limit(shard, clock);
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
