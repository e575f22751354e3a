//! Hosts: the threads that turn shards.
//!
//! A shard is a [`ShardLoop`], which a plain loop turns. Futures given to
//! [`TaskSpawner::spawn_local`] run beside it: the native host polls them in that loop; the glommio
//! host ends the loop with the first of them, and turns the shard from then on as one task of a
//! `LocalExecutor`, so that users' futures, timers and files live on the same thread.

mod beside;
mod choice;
mod glommio;
mod inline;
mod native;
mod readable;
mod tasks;
mod timers;

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, sync_channel};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use grpcxx_transport::{Time, TransportError};

pub(crate) use beside::{Beside, LocalTask};
pub use choice::{HostChoice, HostKind, HostSetting};
pub(crate) use inline::Inline;
pub use tasks::TaskSpawner;
pub(crate) use tasks::{Jobs, jobs};

use self::tasks::Panic;
use crate::blame::{blamed, panic_text};
use crate::idle::{Idle, IdlePolicy};
use crate::placement::{PlacementError, pin_current_thread};

/// A shard as its host sees it.
pub trait ShardLoop {
    /// Does a bounded amount of work. Returns the number of events; 0 means that there was nothing
    /// to do.
    fn turn(&mut self, now: Time) -> usize;

    /// When the shard wants its next turn even if nothing happens.
    fn next_timeout(&self) -> Option<Time>;

    /// Sleeps until there may be work, the waker was used, or `timeout` is over. Returns at once if
    /// work already waits.
    fn park(&mut self, timeout: Option<Duration>);

    /// Prepares for sleep elsewhere: the returned descriptor becomes readable when there may be
    /// work or the waker was used. `None` if work already waits. It must be something that can be
    /// polled, and not a socket.
    fn park_fd(&mut self) -> Option<BorrowedFd<'_>>;

    /// Ends the preparation of [`ShardLoop::park_fd`]; called after each of its calls.
    fn unpark(&mut self);

    /// Ends a sleep, present or next, from any thread.
    fn waker(&self) -> Waker;

    /// Whether the shard wants no further turn.
    fn is_finished(&self) -> bool;

    /// Ends what waits on the shard, in which code has panicked. It may be in disorder.
    fn die(self, error: &HostError);
}

/// The clock of an engine: all its shards count from the same origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

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
    thread: JoinHandle<Result<(), HostError>>,
}

/// Why a host did not start, or ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The system gave no thread.
    #[error("cannot start thread `{name}`: {message}")]
    Thread {
        /// Name of the thread.
        name: String,
        /// The system's words.
        message: String,
    },
    /// The thread could not be pinned.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// glommio did not start.
    #[error("the glommio host did not start: {0}; GRPCXX_HOST=native runs without it")]
    Glommio(String),
    /// The shard could not be made.
    #[error("shard `{name}` did not start: {reason}")]
    Shard {
        /// Name of the thread.
        name: String,
        /// Why not.
        reason: ShardError,
    },
    /// Code on the shard's thread panicked.
    #[error("shard `{name}` panicked in {code}: {message}")]
    Panicked {
        /// Name of the thread.
        name: String,
        /// Whose code it was.
        code: &'static str,
        /// The panic's words.
        message: String,
    },
}

/// Why a shard could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// It cannot listen at its address.
    #[error(transparent)]
    Listen(TransportError),
    /// There is no memory, no driver, or no device for it.
    #[error("{0}")]
    Other(String),
}

impl From<String> for ShardError {
    fn from(message: String) -> Self {
        Self::Other(message)
    }
}

/// Starts a thread that makes a shard and turns it until it is finished. The spawner runs futures
/// beside it.
///
/// # Errors
/// The system gave no thread. Later failures come from [`HostHandle::wait_started`] and
/// [`HostHandle::join`].
pub fn spawn<L, F>(options: HostOptions, make: F) -> Result<(HostHandle, TaskSpawner), HostError>
where
    L: ShardLoop + 'static,
    F: FnOnce() -> Result<L, ShardError> + Send + 'static,
{
    let (spawner, jobs) = jobs();
    Ok((spawn_with(options, jobs, make)?, spawner))
}

/// Does what [`spawn`] does for a spawner that there is already.
pub(crate) fn spawn_with<L, F>(
    options: HostOptions,
    jobs: Jobs,
    make: F,
) -> Result<HostHandle, HostError>
where
    L: ShardLoop + 'static,
    F: FnOnce() -> Result<L, ShardError> + Send + 'static,
{
    let (starting, started) = sync_channel(1);
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
                let idle = Idle::new(options.idle);
                match options.kind {
                    HostKind::Native => {
                        started();
                        Ok(native::run(shard, options.clock, idle, jobs))
                    }
                    HostKind::Glommio => glommio::run(shard, options.clock, idle, jobs, started),
                }
            };
            let result = match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(Ok(()))) => Ok(()),
                Ok(Ok(Err(dead))) => {
                    let error = panicked(name, dead.panic.as_ref());
                    dead.shard.die(&error);
                    Err(error)
                }
                Ok(Err(error)) => Err(error),
                Err(payload) => Err(panicked(name, payload.as_ref())),
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
        thread,
    })
}

impl Clock {
    /// A clock that begins now.
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// The present.
    pub fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }
}

/// The time of each turn. While turns bring nothing the clock is read only now and then: a look for
/// work costs less than that where the clock is a system call.
struct TurnTime {
    clock: Clock,
    now: Time,
    turns_left: u32,
}

impl TurnTime {
    fn new(clock: Clock) -> Self {
        Self {
            clock,
            now: clock.now(),
            turns_left: 0,
        }
    }

    /// The time of the next turn.
    fn next(&mut self) -> Time {
        if self.turns_left == 0 {
            self.now = self.clock.now();
            self.turns_left = EMPTY_TURNS_PER_READING;
        }
        self.turns_left -= 1;
        self.now
    }

    /// Lets the clock be read before the next turn.
    fn forget(&mut self) {
        self.turns_left = 0;
    }
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

    /// Waits for the thread to end.
    ///
    /// # Errors
    /// Why it ended before its shard was finished.
    pub fn join(self) -> Result<(), HostError> {
        self.thread
            .join()
            .unwrap_or_else(|payload| Err(panicked(self.name, payload.as_ref())))
    }
}

/// How long the thread of a shard may sleep beside whose futures the first timer is over at
/// `timer`; `None` is without end. Zero means that the next turn is due.
fn sleep_limit<L: ShardLoop>(shard: &L, timer: Option<Time>, clock: Clock) -> Option<Duration> {
    let deadline = [shard.next_timeout(), timer].into_iter().flatten().min()?;
    Some(deadline.since(clock.now()))
}

/// A shard in which code has panicked.
struct Dead<L> {
    shard: L,
    panic: Panic,
}

fn panicked(name: String, payload: &(dyn Any + Send)) -> HostError {
    HostError::Panicked {
        name,
        code: blamed(),
        message: panic_text(payload).to_owned(),
    }
}

/// Turns without events for which the clock is read once.
const EMPTY_TURNS_PER_READING: u32 = 32;

#[cfg(test)]
mod tests;
