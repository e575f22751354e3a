//! Hosts: the threads that turn shards.
//!
//! A shard is a [`ShardLoop`], which a plain loop turns. Futures given to
//! [`TaskSpawner::spawn_local`] run beside it: the native host polls them in that loop; the glommio
//! host ends the loop with the first of them, and turns the shard from then on as one task of a
//! `LocalExecutor`, so that users' futures, timers and files live on the same thread.

#[cfg_attr(loom, path = "bed/model.rs")]
mod bed;
mod beside;
mod choice;
mod error;
#[cfg(not(target_env = "musl"))]
mod executor;
#[cfg_attr(target_env = "musl", path = "without_glommio.rs")]
mod glommio;
mod inline;
mod lent;
mod life;
mod native;
mod options;
#[cfg(not(target_env = "musl"))]
mod readable;
mod shard_loop;
mod stand_in;
mod sync;
mod tasks;
mod timers;
mod waiter;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

pub(crate) use beside::Beside;
pub use choice::{HostChoice, HostKind, HostSetting};
pub use error::{HostError, ShardError};
pub(crate) use inline::Inline;
pub(crate) use lent::{Lend, Lent, is_turning};
pub(crate) use life::Presence;
pub use options::HostOptions;
pub use shard_loop::{Clock, ShardLoop};
pub use tasks::TaskSpawner;
pub(crate) use tasks::{Jobs, jobs};
pub(crate) use waiter::{Turnable, wait, wait_for};
pub use waiter::{block_on, waiting};

use self::life::{Ended, Left, Life, Outcome, Owner};
use self::tasks::FirstTasks;
use crate::blame::blamed;
pub use crate::compute::ShortCall;
use crate::idle::Idle;
use crate::placement::pin_current_thread;

/// A running shard.
pub struct HostHandle {
    started: Receiver<Result<(), HostError>>,
    ended: Receiver<Ended>,
    life: Arc<Life>,
}

/// Starts a thread that makes a shard and turns it until it is finished. The spawner runs futures
/// beside it.
///
/// # Errors
/// The system gave no thread. Later failures come from [`HostHandle::wait_started`] and
/// [`HostHandle::join`].
pub fn spawn<L, F>(options: HostOptions, make: F) -> Result<(HostHandle, TaskSpawner), HostError>
where
    L: ShardLoop + Send + 'static,
    F: FnOnce() -> Result<L, ShardError> + Send + 'static,
{
    let (spawner, jobs) = jobs();
    Ok((spawn_with(options, jobs, make, None, ())?, spawner))
}

/// Does what [`spawn`] does for a spawner that there is already. The shard is lent to threads that
/// wait, which hear of it by `lend`. `presence` hears which thread is that of the shard.
pub(crate) fn spawn_with<L, F>(
    options: HostOptions,
    jobs: Jobs,
    make: F,
    lend: Option<Lend<L>>,
    presence: impl Presence + 'static,
) -> Result<HostHandle, HostError>
where
    L: ShardLoop + Send + 'static,
    F: FnOnce() -> Result<L, ShardError> + Send + 'static,
{
    let (starting, started) = sync_channel(1);
    let (ending, ended) = sync_channel(1);
    let life = Life::new(options, presence);
    let owner = Owner {
        life: Arc::clone(&life),
        ended: ending,
        go_on,
    };
    life.spawn(move || {
        let report = starting.clone();
        let started = move || {
            let _nobody_waits = starting.try_send(Ok(()));
        };
        if let Some(error) = owner.own(|| begin(&owner, jobs, make, lend, started)) {
            let _nobody_waits = report.try_send(Err(error));
        }
    })?;
    Ok(HostHandle {
        started,
        ended,
        life,
    })
}

/// Makes a shard on the calling thread, and owns it.
fn begin<L: ShardLoop + Send + 'static>(
    owner: &Owner<L>,
    jobs: Jobs,
    make: impl FnOnce() -> Result<L, ShardError>,
    lend: Option<Lend<L>>,
    started: impl FnOnce(),
) -> Outcome<L> {
    let options = &owner.life.options;
    if let Some(cpu) = options.cpu {
        pin_current_thread(cpu)?;
    }
    owner.life.enter_shard();
    let shard = make().map_err(|reason| HostError::Shard {
        name: options.name.clone(),
        reason,
    })?;
    let executor = match options.kind {
        HostKind::Native => None,
        HostKind::Glommio => Some(glommio::executor().map_err(HostError::Glommio)?),
    };
    let idle = Idle::new(options.idle);
    let kept = match lent::turn(shard, options.clock, idle, jobs, (lend, started)) {
        Ok(kept) => kept,
        Err(dead) => return Ok(Err(dead.boxed())),
    };
    let shard = Box::new(kept.shard);
    Ok(match options.kind {
        HostKind::Native => native::own(shard, &kept.idle, kept.first, owner),
        HostKind::Glommio => glommio::own(shard, &kept.idle, kept.first, owner, executor),
    })
}

/// Owns a shard in place of a thread that runs a function.
fn go_on<L: ShardLoop + Send + 'static>(owner: &Owner<L>, left: Left<L>) -> Outcome<L> {
    let Left { mut shard, jobs } = left;
    let options = &owner.life.options;
    owner.life.enter_shard();
    shard.note_new_owner();
    let first = FirstTasks::new(jobs, options.clock, shard.waker());
    let idle = Idle::new(options.idle);
    Ok(match options.kind {
        HostKind::Native => native::own(shard, &idle, first, owner),
        HostKind::Glommio => glommio::own(shard, &idle, first, owner, None),
    })
}

impl HostHandle {
    /// Waits until the shard turns, or has failed to.
    ///
    /// # Errors
    /// Why it does not turn.
    pub fn wait_started(&self) -> Result<(), HostError> {
        self.started.recv().unwrap_or(Ok(()))
    }

    /// Whether the threads of the shard have ended.
    pub fn is_finished(&self) -> bool {
        self.life.is_over()
    }

    /// Waits for the shard to end, and for its thread. A former thread may still run a function of
    /// the program, and ends with that.
    ///
    /// # Errors
    /// Why it ended before its shard was finished.
    pub fn join(self) -> Result<(), HostError> {
        match self.ended.recv() {
            Ok((last_owner, result)) => {
                self.life.join(last_owner);
                result
            }
            Err(_) => Err(HostError::Panicked {
                name: self.life.options.name.clone(),
                code: blamed(),
                message: "its thread ended without a word".to_owned(),
            }),
        }
    }
}

impl fmt::Debug for HostHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostHandle")
            .field("name", &self.life.options.name)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod model;
#[cfg(test)]
mod tests;
