use std::panic::{AssertUnwindSafe, catch_unwind};

use super::tasks::{Jobs, NativeTasks, Panic};
use super::{Clock, Dead, ShardLoop, TurnTime, sleep_limit};
use crate::idle::{Idle, IdleStep};

/// Turns `shard` until it is finished.
pub(super) fn run<L: ShardLoop>(
    mut shard: L,
    clock: Clock,
    mut idle: Idle,
    jobs: Jobs,
) -> Result<(), Dead<L>> {
    let mut tasks = NativeTasks::new(jobs, shard.waker());
    let turn = || turn_until_finished(&mut shard, clock, &mut idle, &mut tasks);
    catch_unwind(AssertUnwindSafe(turn))
        .unwrap_or_else(Err)
        .map_err(|panic| Dead { shard, panic })
}

fn turn_until_finished<L: ShardLoop>(
    shard: &mut L,
    clock: Clock,
    idle: &mut Idle,
    tasks: &mut NativeTasks,
) -> Result<(), Panic> {
    let mut time = TurnTime::new(clock);
    while !shard.is_finished() {
        let now = time.next();
        let events = shard.turn(now) + tasks.turn();
        if let Some(panic) = tasks.take_panic() {
            return Err(panic);
        }
        match idle.after_turn(now, events) {
            IdleStep::Turn if events > 0 => time.forget(),
            IdleStep::Turn => std::hint::spin_loop(),
            IdleStep::Park => {
                time.forget();
                let limit = sleep_limit(shard, clock);
                if limit.is_some_and(|limit| limit.is_zero()) || !tasks.may_sleep() {
                    continue;
                }
                shard.park(limit);
                tasks.awake();
            }
        }
    }
    Ok(())
}
