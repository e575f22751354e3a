//! Threads on which the code of functions and services runs that may take its time.

mod lines;
mod pace;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use async_task::Runnable;
use futures_util::future::AbortHandle;
use grpcxx_rpc::Account;

use self::lines::Lines;
pub(crate) use self::pace::Pace;
use crate::blame::{panic_text, survive};

/// Runs the code of functions away from the shards.
pub(crate) trait Compute: Send + Sync {
    /// Runs `job` soon, on another thread, behind those that came before it for the same peer.
    fn spawn(&self, peer: Account, job: Job);
}

/// Code that a pool runs, unless it is over before.
pub(crate) struct Job {
    code: Box<dyn FnOnce() + Send>,
    is_over: Option<Box<dyn Fn() -> bool + Send>>,
}

impl Job {
    pub(crate) fn new(code: impl FnOnce() + Send + 'static) -> Self {
        Self {
            code: Box::new(code),
            is_over: None,
        }
    }

    /// Says when the job only lets go of what it holds.
    pub(crate) fn until(self, is_over: impl Fn() -> bool + Send + 'static) -> Self {
        Self {
            is_over: Some(Box::new(is_over)),
            ..self
        }
    }

    pub(crate) fn run(self) {
        (self.code)();
    }

    fn is_over(&self) -> bool {
        self.is_over.as_ref().is_some_and(|is_over| is_over())
    }
}

/// A call of a function that was short so far. The thread of its shard may run it between two
/// turns.
pub struct ShortCall {
    pub(crate) peer: Account,
    pub(crate) pace: Arc<Pace>,
    /// Whether it is of a function of the engine itself.
    pub(crate) is_own: bool,
    pub(crate) job: Job,
}

/// A job that notes how long it takes.
pub(crate) fn timed(pace: Arc<Pace>, job: Job) -> Job {
    let Job { code, is_over } = job;
    Job {
        code: Box::new(move || {
            let begin = Instant::now();
            code();
            pace.note(begin.elapsed());
        }),
        is_over,
    }
}

/// Lets the pool run a future to its end. It is a job there each time that it can go on, and holds
/// no thread between; if the pool is gone then, the future is dropped.
pub(crate) fn spawn_future(
    compute: &Arc<dyn Compute>,
    peer: Account,
    future: impl Future<Output = ()> + Send + 'static,
    withdrawn: AbortHandle,
) {
    let pool: Weak<dyn Compute> = Arc::downgrade(compute);
    let schedule = move |runnable: Runnable| {
        if let Some(pool) = pool.upgrade() {
            let job = Job::new(move || {
                runnable.run();
            });
            let withdrawn = withdrawn.clone();
            pool.spawn(peer, job.until(move || withdrawn.is_aborted()));
        }
    };
    let (runnable, task) = async_task::spawn(future, schedule);
    task.detach();
    runnable.schedule();
}

/// A pool of threads. Peers take turns, so the calls of one wait for a single call of each other
/// peer, however many those make. A future that can always go on lets the jobs of others pass.
pub(crate) struct ComputePool(Arc<Lines<Job>>);

impl ComputePool {
    /// Starts `threads` threads, or one for each CPU, whose names begin with `name`. They end with
    /// the pool, once all jobs are done.
    pub(crate) fn start(name: &str, threads: Option<usize>) -> Result<Self, String> {
        let threads =
            threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        let pool = Self(Arc::new(Lines::new(Job::is_over)));
        for index in 0..threads {
            let lines = Arc::clone(&pool.0);
            thread::Builder::new()
                .name(format!("{name}-{index}"))
                .spawn(move || std::iter::from_fn(|| lines.take()).for_each(run))
                .map_err(|error| format!("cannot start a {name} thread: {error}"))?;
        }
        Ok(pool)
    }
}

impl Drop for ComputePool {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Compute for ComputePool {
    fn spawn(&self, peer: Account, job: Job) {
        let over = self.0.push(peer, job);
        if !over.is_empty() {
            let_go(over);
        }
    }
}

/// Lets jobs that are over drop what they hold. That is code of a program, which may wait for what
/// the caller holds: a shard, or a lock within which it has woken a future.
fn let_go(over: Vec<Job>) {
    let started = thread::Builder::new()
        .name("compute-over".to_owned())
        .spawn(|| over.into_iter().for_each(run));
    if let Err(error) = started {
        tracing::warn!(%error, "no thread to drop calls that were given up; they were dropped at once");
    }
}

/// Runs a job. A panic leaves the thread to others. The call has its answer: its responder was
/// dropped.
pub(crate) fn run(job: Job) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job.run())) {
        // What it panicked with may panic too.
        survive("the log of a panic", || {
            let message = panic_text(payload.as_ref());
            tracing::error!(message, "a function panicked");
            drop(payload);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    /// Locks a mutex when it is dropped, as a destructor of a program may.
    struct Locks(Arc<Mutex<u32>>);

    impl Drop for Locks {
        fn drop(&mut self) {
            *self.0.lock().unwrap() += 1;
        }
    }

    #[test]
    fn who_wakes_a_future_runs_no_code_of_others() {
        let pool = Arc::new(ComputePool::start("compute", Some(1)).unwrap());
        let peer = Account::of([10, 0, 0, 1].into());
        let (held, holds) = channel::<()>();
        pool.spawn(peer, Job::new(move || assert!(holds.recv().is_err())));
        let dropped = Arc::new(Mutex::new(0));
        for _ in 0..40 {
            let value = Locks(Arc::clone(&dropped));
            pool.spawn(peer, Job::new(move || drop(value)).until(|| true));
        }
        let (done, ends) = channel();
        let (lock, also) = (Arc::clone(&dropped), Arc::clone(&pool));
        thread::spawn(move || {
            let _locked = lock.lock().unwrap();
            for _ in 0..40 {
                also.spawn(peer, Job::new(|| ()).until(|| true));
            }
            done.send(()).unwrap();
        });
        ends.recv_timeout(Duration::from_secs(20))
            .expect("a wake-up waits for a destructor");
        drop(held);
        let end = Instant::now() + Duration::from_secs(20);
        while *dropped.lock().unwrap() < 40 {
            assert!(Instant::now() < end, "all are dropped");
            thread::yield_now();
        }
    }
}
