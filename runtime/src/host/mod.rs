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
mod glommio;
mod inline;
mod lent;
mod native;
mod readable;
mod shard_loop;
mod stand_in;
mod sync;
mod tasks;
mod timers;
mod waiter;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

pub(crate) use beside::Beside;
pub use choice::{HostChoice, HostKind, HostSetting};
pub use error::{HostError, ShardError};
pub(crate) use inline::Inline;
pub(crate) use lent::{Lend, Lent};
pub use shard_loop::{Clock, ShardLoop};
pub use tasks::TaskSpawner;
pub(crate) use tasks::{Jobs, jobs};
pub use waiter::block_on;
pub(crate) use waiter::{Turnable, wait_for};

use self::error::panicked;
use self::stand_in::Ended;
pub(crate) use self::stand_in::is_away;
use crate::blame::blamed;
pub use crate::compute::ShortCall;
use crate::idle::{Idle, IdlePolicy};
use crate::placement::pin_current_thread;

/// How a shard's thread is run.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Name of the thread; the system shows its first 15 bytes.
    pub name: String,
    /// Which host.
    pub kind: HostKind,
    /// CPU to pin the thread to.
    pub cpu: Option<usize>,
    /// What it does while there is nothing to do.
    pub idle: IdlePolicy,
    /// The engine's clock.
    pub clock: Clock,
}

/// A running shard thread.
#[derive(Debug)]
pub struct HostHandle {
    name: String,
    started: Receiver<Result<(), HostError>>,
    /// Hears of a shard that ends while its thread runs a function, which may take its time.
    ended_alone: Receiver<()>,
    thread: JoinHandle<Result<(), HostError>>,
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
    Ok((spawn_with(options, jobs, make, None)?, spawner))
}

/// Does what [`spawn`] does for a spawner that there is already. The shard is lent to threads that
/// wait, which hear of it by `lend`.
pub(crate) fn spawn_with<L, F>(
    options: HostOptions,
    jobs: Jobs,
    make: F,
    lend: Option<Lend<L>>,
) -> Result<HostHandle, HostError>
where
    L: ShardLoop + Send + 'static,
    F: FnOnce() -> Result<L, ShardError> + Send + 'static,
{
    let (starting, started) = sync_channel(1);
    let (ending, ended_alone) = sync_channel(1);
    let name = options.name.clone();
    let thread = thread::Builder::new()
        .name(name.clone())
        .spawn(move || {
            let name = options.name.clone();
            let report = starting.clone();
            let run = move || {
                if let Some(cpu) = options.cpu {
                    pin_current_thread(cpu)?;
                }
                let shard = make().map_err(|reason| HostError::Shard {
                    name: options.name.clone(),
                    reason,
                })?;
                let started = move || {
                    let _nobody_waits = starting.try_send(Ok(()));
                };
                let ended: Ended = Box::new(move || {
                    let _nobody_waits = ending.try_send(());
                });
                let idle = Idle::new(options.idle);
                match options.kind {
                    HostKind::Native => Ok(native::run(
                        shard,
                        options.clock,
                        idle,
                        jobs,
                        (lend, started),
                        ended,
                    )),
                    HostKind::Glommio => {
                        glommio::run(shard, options.clock, idle, (jobs, lend), started, ended)
                    }
                }
            };
            let result = match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(Ok(()))) => Ok(()),
                Ok(Ok(Err(dead))) => {
                    let error = panicked(name, dead.code, dead.panic.as_ref());
                    dead.shard.die(&error);
                    Err(error)
                }
                Ok(Err(error)) => Err(error),
                Err(payload) => Err(panicked(name, blamed(), payload.as_ref())),
            };
            // Behind the death: whoever waits for one of the futures shall hear why it ended.
            Beside::end_here();
            if let Err(error) = &result {
                let _nobody_waits = report.try_send(Err(error.clone()));
            }
            result
        })
        .map_err(|error| HostError::Thread {
            name: name.clone(),
            message: error.to_string(),
        })?;
    Ok(HostHandle {
        name,
        started,
        ended_alone,
        thread,
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

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the shard to end, and for its thread, unless that runs a function of the program.
    ///
    /// # Errors
    /// Why it ended before its shard was finished.
    pub fn join(self) -> Result<(), HostError> {
        if self.ended_alone.recv().is_ok() {
            return Ok(());
        }
        self.thread
            .join()
            .unwrap_or_else(|payload| Err(panicked(self.name, blamed(), payload.as_ref())))
    }
}

#[cfg(all(test, loom))]
mod model;
#[cfg(test)]
mod tests;
