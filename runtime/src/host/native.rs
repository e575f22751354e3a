//! The loop that turns a shard on its thread, until it is finished or another executor takes over.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use grpcxx_transport::Time;

use super::lent::{self, Lend};
use super::shard_loop::{Clock, Dead, Panic, ShardLoop, TurnTime, sleep_limit};
use super::stand_in::{Ended, Errands, StandIn};
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

    /// Whether there is nothing that relies on the thread.
    fn is_empty(&self) -> bool;

    /// Whether nothing is due; what comes up from now on ends the sleep of the thread.
    fn may_sleep(&mut self) -> bool;

    /// Ends what [`Executor::may_sleep`] began.
    fn awake(&mut self);

    /// Whether the loop shall end for an executor that goes on.
    fn ends_loop(&self) -> bool;
}

/// Turns `shard` until it is finished, with futures beside it. `ended` hears if it ends while the
/// thread runs a function.
pub(super) fn run<L: ShardLoop + Send + 'static>(
    shard: L,
    clock: Clock,
    idle: Idle,
    jobs: Jobs,
    (lend, started): (Option<Lend<L>>, impl FnOnce()),
    ended: Ended,
) -> Result<(), Dead<Box<L>>> {
    let kept = lent::turn(shard, clock, idle, jobs, (lend, started)).map_err(Dead::boxed)?;
    let mut tasks = NativeTasks::after(kept.first);
    turn(Box::new(kept.shard), clock, &kept.idle, &mut tasks, ended)?;
    tasks.end();
    Ok(())
}

/// Turns `shard` until it is finished, or what runs beside it ends the loop. Then it comes back,
/// unless it has ended while the thread was away from it.
pub(super) fn turn<L: ShardLoop + Send + 'static>(
    shard: Box<L>,
    clock: Clock,
    idle: &Idle,
    beside: &mut impl Executor,
    ended: Ended,
) -> Result<Option<Box<L>>, Dead<Box<L>>> {
    let mut away = Errands::new(StandIn::new(shard.waker(), clock, idle.clone(), ended));
    let mut idle = idle.clone();
    let mut place = Some(shard);
    let turn = || turn_unguarded(&mut place, clock, &mut idle, beside, &mut away);
    match catch_unwind(AssertUnwindSafe(turn)).unwrap_or_else(Err) {
        Ok(()) => Ok(place),
        Err(panic) => match place {
            Some(shard) => Err(Dead::of(shard, panic)),
            None => resume_unwind(panic),
        },
    }
}

fn turn_unguarded<L: ShardLoop + Send + 'static>(
    place: &mut Option<Box<L>>,
    clock: Clock,
    idle: &mut Idle,
    beside: &mut impl Executor,
    errands: &mut Errands<L>,
) -> Result<(), Panic> {
    if let Some(shard) = place {
        shard.let_run_short_calls(true);
    }
    let mut time = TurnTime::new(clock);
    while let Some(shard) = place
        && !shard.is_finished()
        && !beside.ends_loop()
    {
        let now = time.next();
        let events = shard.turn(now) + beside.turn(now);
        if let Some(panic) = beside.take_panic() {
            return Err(panic);
        }
        if shard.has_short_calls() {
            errands.run(place, beside.is_empty())?;
        }
        let Some(shard) = place else {
            break;
        };
        match idle.after_turn(now, events) {
            IdleStep::Turn if events > 0 => time.forget(),
            IdleStep::Turn => std::hint::spin_loop(),
            IdleStep::Park => {
                time.forget();
                let limit = sleep_limit(&mut **shard, beside.next_timeout(), clock);
                if limit.is_some_and(|limit| limit.is_zero()) || !beside.may_sleep() {
                    continue;
                }
                shard.park(limit);
                beside.awake();
            }
        }
    }
    if let Some(shard) = place {
        shard.let_run_short_calls(false);
    }
    Ok(())
}
