//! What the threads know that own a shard one after the other, and how its end is told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread, ThreadId};

use super::beside::Beside;
use super::error::{HostError, panicked};
use super::options::HostOptions;
use super::shard_loop::{Dead, ShardLoop};
use super::tasks::Jobs;
use crate::blame::{blamed, survive};
use crate::cpu_time::EndingThread;

/// Hears which thread is that of a shard.
pub(crate) trait Presence: Send + Sync {
    /// The calling thread is from now on.
    fn enter(&self);

    /// The calling thread is not any more.
    fn leave(&self);
}

/// What the owners of a shard share.
pub(super) struct Life {
    pub(super) options: HostOptions,
    presence: Box<dyn Presence>,
    /// Owners and stand-ins, in the order in which they began.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What an owner of a shard knows.
pub(super) struct Owner<L> {
    pub(super) life: Arc<Life>,
    /// Hears of the end of the last one.
    pub(super) ended: SyncSender<Ended>,
    /// Owns the shard on another thread.
    pub(super) go_on: fn(&Owner<L>, Left<L>) -> Outcome<L>,
}

/// What an owner leaves, and the next one needs to go on.
pub(super) struct Left<L> {
    pub(super) shard: Box<L>,
    pub(super) jobs: Jobs,
}

/// What the turns of an owner have ended in.
pub(super) enum Turned<L> {
    /// The shard is finished, or what runs beside it ends the loop.
    Here(Box<L>),
    /// Another thread owns the shard now.
    Replaced,
}

/// Which thread was the last owner, and what it ended in.
pub(super) type Ended = (ThreadId, Result<(), HostError>);

/// What an owner's turns have ended in: the outer error is of the host, the inner one of the shard.
pub(super) type Outcome<L> = Result<Result<Turned<L>, Dead<Box<L>>>, HostError>;

impl Life {
    pub(super) fn new(options: HostOptions, presence: impl Presence + 'static) -> Arc<Self> {
        Arc::new(Self {
            options,
            presence: Box::new(presence),
            threads: Mutex::default(),
        })
    }

    /// Starts a thread, which belongs to the shard.
    pub(super) fn spawn(&self, run: impl FnOnce() + Send + 'static) -> Result<Thread, HostError> {
        let name = self.options.name.clone();
        // Locked before it begins, since it may start the next one.
        let mut threads = self.threads();
        // Each that has ended, and is not joined, keeps its stack.
        threads.retain(|thread| !thread.is_finished());
        let counted = || {
            let _until_it_ends = EndingThread;
            run();
        };
        let thread = thread::Builder::new().name(name.clone()).spawn(counted);
        let thread = thread.map_err(|error| HostError::Thread {
            name,
            message: error.to_string(),
        })?;
        let started = thread.thread().clone();
        threads.push(thread);
        Ok(started)
    }

    /// Waits for the last owner's thread, and for that which stood in for it.
    pub(super) fn join(&self, last_owner: ThreadId) {
        let threads = std::mem::take(&mut *self.threads());
        let last = threads
            .into_iter()
            .skip_while(|thread| thread.thread().id() != last_owner);
        for thread in last {
            // What it may have panicked with was told.
            let _ = thread.join();
        }
    }

    /// Whether all threads have ended.
    pub(super) fn is_over(&self) -> bool {
        self.threads().iter().all(JoinHandle::is_finished)
    }

    /// The calling thread is that of the shard from now on.
    pub(super) fn enter_shard(&self) {
        self.presence.enter();
    }

    /// The calling thread leaves the shard to run functions. The result is what it had there.
    pub(super) fn leave_shard(&self) -> Option<Rc<Beside>> {
        self.presence.leave();
        Beside::leave()
    }

    /// Ends that.
    pub(super) fn return_to_shard(&self, beside: Option<Rc<Beside>>) {
        self.presence.enter();
        Beside::restore(beside);
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: ShardLoop + Send + 'static> Owner<L> {
    /// Runs an owner to its end. The error is that of the shard, which has ended with it.
    pub(super) fn own(&self, run: impl FnOnce() -> Outcome<L>) -> Option<HostError> {
        let name = self.life.options.name.clone();
        let result = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(Ok(Turned::Replaced))) => {
                Beside::end_here();
                return None;
            }
            Ok(Ok(Ok(Turned::Here(shard)))) => {
                survive("a shard", || drop(shard));
                Ok(())
            }
            Ok(Ok(Err(dead))) => {
                let error = panicked(name, dead.code, dead.panic.as_ref());
                survive("the death of a shard", || dead.shard.die(&error));
                Err(error)
            }
            Ok(Err(error)) => Err(error),
            Err(payload) => Err(panicked(name, blamed(), payload.as_ref())),
        };
        // Behind the death: whoever waits for one of the futures shall hear why it ended.
        Beside::end_here();
        let error = result.clone().err();
        let _nobody_waits = self.ended.try_send((thread::current().id(), result));
        error
    }

    /// Starts a thread that owns the shard once `watch` has got it.
    pub(super) fn spawn_stand_in(
        &self,
        watch: impl FnOnce() -> Option<Left<L>> + Send + 'static,
    ) -> Result<Thread, HostError> {
        let next = Self {
            life: Arc::clone(&self.life),
            ended: self.ended.clone(),
            go_on: self.go_on,
        };
        self.life.spawn(move || {
            if let Some(left) = watch() {
                next.own(|| (next.go_on)(&next, left));
            }
        })
    }
}

/// Nobody hears.
impl Presence for () {
    fn enter(&self) {}

    fn leave(&self) {}
}
