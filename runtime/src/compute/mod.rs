//! Threads on which the code of functions and services runs that may take its time.

mod lines;
mod pace;

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use async_task::Runnable;
use futures_util::future::AbortHandle;
use grpcxx_memory::forks;
use grpcxx_rpc::Account;

use self::lines::{Lines, PlaceFor, WAITING_THREADS_MAX};
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
/// peer, however many those make. A future that can always go on lets the jobs of others pass, and
/// so does a job that waits for a call, which may be one that the pool itself has to run.
pub(crate) struct ComputePool(Arc<Crew>);

/// What the threads of a pool share.
struct Crew {
    lines: Lines<Job>,
    /// How the names of threads begin.
    name: String,
    threads_started: AtomicUsize,
    /// Of the process that made it. A child of it has none of its threads.
    generation: u32,
}

/// For as long as the calling thread waits for a call: the crew that it belongs to, if it does.
pub(crate) struct GivenUpPlace(Option<Arc<Crew>>);

/// A thread that the system refuses.
#[derive(Debug)]
pub(crate) struct NoThread {
    pub(crate) name: String,
    pub(crate) error: io::Error,
}

impl ComputePool {
    /// Starts `threads` threads, or one for each CPU, and one that lets jobs drop what they hold if
    /// they are over. Their names begin with `name`. They end with the pool, once all jobs are
    /// done.
    pub(crate) fn start(name: &str, threads: Option<usize>) -> Result<Self, NoThread> {
        let threads =
            threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        let crew = Arc::new(Crew {
            lines: Lines::new(threads, Job::is_over),
            name: name.to_owned(),
            threads_started: AtomicUsize::new(0),
            generation: forks::generation(),
        });
        let pool = Self(Arc::clone(&crew));
        for _ in 0..threads {
            crew.start_thread()?;
        }
        start(format!("{name}-over"), move || {
            std::iter::from_fn(|| crew.lines.take_over()).for_each(run);
        })?;
        Ok(pool)
    }
}

impl Crew {
    fn start_thread(self: &Arc<Self>) -> Result<(), NoThread> {
        let index = self.threads_started.fetch_add(1, Ordering::Relaxed);
        let crew = Arc::clone(self);
        start(format!("{}-{index}", self.name), move || {
            CREW.set(Some(Arc::clone(&crew)));
            crew.lines.worker().for_each(run);
        })
    }

    /// Whether its threads are in this process.
    fn is_here(&self) -> bool {
        self.generation == forks::generation()
    }

    fn begin_wait(self: &Arc<Self>) {
        let started = match self.lines.begin_wait() {
            PlaceFor::Idle => Ok(()),
            PlaceFor::NewThread => self.start_thread().map_err(|refused| refused.error),
            PlaceFor::Nobody => {
                let text = format!("{WAITING_THREADS_MAX} wait already, and more are not started");
                Err(io::Error::other(text))
            }
        };
        if let Err(error) = started {
            tracing::error!(
                %error,
                "no thread takes the place of a function that waits for a call: what it waits for \
                 may never begin; give calls deadlines"
            );
        }
    }
}

fn start(name: String, code: impl FnOnce() + Send + 'static) -> Result<(), NoThread> {
    let thread = thread::Builder::new().name(name.clone()).spawn(code);
    thread.map(drop).map_err(|error| NoThread { name, error })
}

/// The calling thread is about to wait for a call. If it is one of a pool, another one runs the
/// jobs of that until the result is dropped.
pub(crate) fn give_up_place() -> GivenUpPlace {
    // What the thread does while it waits, it does without a place.
    let crew = CREW.take().filter(|crew| crew.is_here());
    if let Some(crew) = &crew {
        crew.begin_wait();
    }
    GivenUpPlace(crew)
}

impl Drop for GivenUpPlace {
    fn drop(&mut self) {
        if let Some(crew) = self.0.take().filter(|crew| crew.is_here()) {
            crew.lines.end_wait();
            CREW.set(Some(crew));
        }
    }
}

thread_local! {
    /// That of the calling thread, if it runs jobs and does not wait.
    static CREW: RefCell<Option<Arc<Crew>>> = const { RefCell::new(None) };
}

impl Drop for ComputePool {
    fn drop(&mut self) {
        self.0.lines.close();
    }
}

impl Compute for ComputePool {
    /// Runs no code of a program, for it may wait for what the caller holds: a shard, or a lock
    /// within which it has woken a future.
    fn spawn(&self, peer: Account, job: Job) {
        self.0.lines.push(peer, job);
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
    use std::collections::HashSet;
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};
    use std::thread::ThreadId;
    use std::time::Duration;

    use super::*;

    /// Locks a mutex when it is dropped, as a destructor of a program may, and tells its thread.
    struct Locks(Arc<Mutex<()>>, Sender<ThreadId>);

    impl Drop for Locks {
        fn drop(&mut self) {
            let _locked = self.0.lock().unwrap();
            self.1.send(thread::current().id()).unwrap();
        }
    }

    #[test]
    fn who_wakes_a_future_runs_no_code_of_others_and_starts_no_thread_for_it() {
        let pool = Arc::new(ComputePool::start("compute", Some(1)).unwrap());
        let peer = Account::of([10, 0, 0, 1].into());
        let (held, holds) = channel::<()>();
        pool.spawn(peer, Job::new(move || assert!(holds.recv().is_err())));
        let lock = Arc::new(Mutex::new(()));
        let (dropped, drops) = channel();
        let (done, ends) = channel();
        let also = Arc::clone(&pool);
        thread::spawn(move || {
            let _locked = lock.lock().unwrap();
            for _ in 0..40 {
                let value = Locks(Arc::clone(&lock), dropped.clone());
                also.spawn(peer, Job::new(move || drop(value)).until(|| true));
            }
            for _ in 0..40 {
                also.spawn(peer, Job::new(|| ()).until(|| true));
            }
            done.send(()).unwrap();
        });
        ends.recv_timeout(PATIENCE)
            .expect("a wake-up waits for a destructor");
        let threads: HashSet<_> = (0..40)
            .map(|_| drops.recv_timeout(PATIENCE).expect("all are dropped"))
            .collect();
        assert_eq!(threads.len(), 1);
        drop(held);
    }

    const PATIENCE: Duration = Duration::from_secs(20);
}
