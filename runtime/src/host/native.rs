//! The loop that turns a shard on its thread, until it is finished or another executor takes over.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use grpcxx_transport::Time;

use super::life::{Left, Owner, Turned};
use super::shard_loop::{Dead, Panic, ShardLoop, TurnTime, sleep_limit};
use super::stand_in::{Errands, run_elsewhere};
use super::tasks::{FirstTasks, Jobs, NativeTasks};
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

    /// Where futures arrive, which another owner of the shard takes over.
    fn jobs(&mut self) -> &mut Option<Jobs>;

    /// Whether nothing is due; what comes up from now on ends the sleep of the thread.
    fn may_sleep(&mut self) -> bool;

    /// Ends what [`Executor::may_sleep`] began.
    fn awake(&mut self);

    /// Whether the loop shall end for an executor that goes on.
    fn ends_loop(&self) -> bool;
}

/// Turns `shard` until it is finished, with futures beside it.
pub(super) fn own<L: ShardLoop + Send + 'static>(
    shard: Box<L>,
    idle: &Idle,
    first: FirstTasks,
    owner: &Owner<L>,
) -> Result<Turned<L>, Dead<Box<L>>> {
    let mut tasks = NativeTasks::after(first);
    let turned = turn(shard, idle, &mut tasks, owner)?;
    tasks.end();
    Ok(turned)
}

/// Turns `shard` until it is finished, or what runs beside it ends the loop.
pub(super) fn turn<L: ShardLoop + Send + 'static>(
    shard: Box<L>,
    idle: &Idle,
    beside: &mut impl Executor,
    owner: &Owner<L>,
) -> Result<Turned<L>, Dead<Box<L>>> {
    let mut idle = idle.clone();
    let mut place = Some(shard);
    let turn = || turn_unguarded(&mut place, &mut idle, beside, owner);
    match (
        catch_unwind(AssertUnwindSafe(turn)).unwrap_or_else(Err),
        place,
    ) {
        (Ok(()), Some(shard)) => Ok(Turned::Here(shard)),
        (Ok(()), None) => Ok(Turned::Replaced),
        (Err(panic), Some(shard)) => Err(Dead::of(shard, panic)),
        (Err(panic), None) => resume_unwind(panic),
    }
}

/// `place` is empty afterwards if another thread owns the shard.
fn turn_unguarded<L: ShardLoop + Send + 'static>(
    place: &mut Option<Box<L>>,
    idle: &mut Idle,
    beside: &mut impl Executor,
    owner: &Owner<L>,
) -> Result<(), Panic> {
    let clock = owner.life.options.clock;
    let mut errands = Errands::new();
    let mut time = TurnTime::new(clock);
    if let Some(shard) = place {
        shard.let_run_short_calls(true);
    }
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
            run_short_calls(place, beside, &mut errands, owner);
        }
        let Some(shard) = place else {
            return Ok(());
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

/// Runs the short calls of the shard, on this thread if nothing beside the shard relies on it.
fn run_short_calls<L: ShardLoop + Send + 'static>(
    place: &mut Option<Box<L>>,
    beside: &mut impl Executor,
    errands: &mut Errands<L>,
    owner: &Owner<L>,
) {
    let Some(mut shard) = place.take() else {
        return;
    };
    if !beside.is_empty() || shard.relies_on_thread() {
        run_elsewhere(&mut *shard);
        *place = Some(shard);
    } else if let Some(jobs) = beside.jobs().take()
        && let Some(left) = errands.run(owner, Left { shard, jobs })
    {
        *place = Some(left.shard);
        *beside.jobs() = Some(left.jobs);
    }
}
