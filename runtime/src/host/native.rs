use super::tasks::{Jobs, NativeTasks, Panic};
use super::{Clock, ShardLoop, TurnTime, sleep_limit};
use crate::idle::{Idle, IdleStep};

/// Turns `shard` until it is finished.
pub(super) fn run<L: ShardLoop>(
    mut shard: L,
    clock: Clock,
    mut idle: Idle,
    jobs: Jobs,
) -> Result<(), Panic> {
    let mut tasks = NativeTasks::new(jobs, shard.waker());
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
                let limit = sleep_limit(&shard, clock);
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
