//! Futures on their way to the threads of shards, and the executor of the native host.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use grpcxx_transport::Refusal;

use super::native::Beside;
use crate::blame::{A_FUTURE, Blame};
use crate::mesh::{Doorbell, Inbox, InboxSender, Sleeper, doorbell, inbox};

/// Sends futures to a shard's thread, where they run beside the shard for as long as it lives.
///
/// On the glommio host they may use glommio's timers, files and sockets; on the native host they
/// may await anything that wakes them, calls of a client for example.
#[derive(Clone)]
pub struct TaskSpawner {
    sender: InboxSender<Job>,
}

/// A shard's end of its spawners, before its thread runs.
pub(super) struct Jobs {
    inbox: Inbox<Job>,
    sleeper: Sleeper,
}

/// Futures that arrive at a shard's thread.
pub(super) struct TaskQueue {
    inbox: Inbox<Job>,
    sleeper: Sleeper,
    panic: Rc<Cell<Option<Panic>>>,
    waker: Waker,
}

/// The first futures that arrive, for another executor to run.
pub(super) struct FirstTasks {
    pub(super) queue: TaskQueue,
    pub(super) tasks: Vec<LocalTask>,
}

/// The native host's executor.
pub(super) struct NativeTasks {
    queue: TaskQueue,
    futures: FuturesUnordered<LocalTask>,
    signal: Arc<Signal>,
    waker: Waker,
}

pub(super) type LocalTask = Pin<Box<dyn Future<Output = ()>>>;
/// What a panic leaves behind.
pub(super) type Panic = Box<dyn Any + Send>;
type Job = Box<dyn FnOnce() -> LocalTask + Send>;

struct Signal {
    is_set: AtomicBool,
    doorbell: Doorbell,
}

pub(super) fn jobs() -> (TaskSpawner, Jobs) {
    let (bell, sleeper) = doorbell();
    let (sender, inbox) = inbox(WAITING_TASKS_MAX, bell);
    (TaskSpawner { sender }, Jobs { inbox, sleeper })
}

impl TaskSpawner {
    /// Calls `make` on the shard's thread and runs the future it returns to its end. A panic in
    /// either ends the shard.
    ///
    /// # Errors
    /// Too many futures wait for the thread to take them, or the shard has ended.
    pub fn spawn_local<F, T>(&self, make: F) -> Result<(), Refusal>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Future<Output = ()> + 'static,
    {
        let job: Job = Box::new(move || Box::pin(make()));
        self.sender
            .push(job, drop)
            .map_err(|refused| refused.refusal)
    }
}

impl fmt::Debug for TaskSpawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskSpawner").finish_non_exhaustive()
    }
}

impl TaskQueue {
    /// `waker` ends the thread's sleep.
    pub(super) fn new(jobs: Jobs, waker: Waker) -> Self {
        let Jobs { inbox, mut sleeper } = jobs;
        sleeper.install(waker.clone());
        Self {
            inbox,
            sleeper,
            panic: Rc::default(),
            waker,
        }
    }

    pub(super) fn drain(&mut self, mut start: impl FnMut(LocalTask)) -> usize {
        let (panic, waker) = (&self.panic, &self.waker);
        self.inbox.drain(TASKS_PER_TURN_MAX, |job| {
            let blame = Blame::on(A_FUTURE);
            let task = job();
            blame.lift();
            start(guarded(task, panic.clone(), waker.clone()));
        })
    }

    /// The panic of a future, if there was one.
    pub(super) fn take_panic(&mut self) -> Option<Panic> {
        self.panic.take()
    }

    pub(super) fn may_sleep(&mut self) -> bool {
        self.sleeper.may_sleep(|| !self.inbox.is_empty())
    }

    pub(super) fn awake(&mut self) {
        self.sleeper.awake();
    }
}

impl Beside for FirstTasks {
    fn turn(&mut self) -> usize {
        let tasks = &mut self.tasks;
        self.queue.drain(|task| tasks.push(task))
    }

    fn take_panic(&mut self) -> Option<Panic> {
        self.queue.take_panic()
    }

    fn may_sleep(&mut self) -> bool {
        self.queue.may_sleep()
    }

    fn awake(&mut self) {
        self.queue.awake();
    }

    fn ends_loop(&self) -> bool {
        !self.tasks.is_empty()
    }
}

impl NativeTasks {
    /// `waker` ends the thread's sleep.
    pub(super) fn new(jobs: Jobs, waker: Waker) -> Self {
        let queue = TaskQueue::new(jobs, waker);
        let signal = Arc::new(Signal {
            is_set: AtomicBool::new(false),
            doorbell: queue.sleeper.doorbell(),
        });
        Self {
            queue,
            futures: FuturesUnordered::new(),
            waker: signal.clone().into(),
            signal,
        }
    }
}

impl Beside for NativeTasks {
    /// Takes new futures and polls those that were woken. Returns how many futures began or ended,
    /// and 1 more if any was polled.
    fn turn(&mut self) -> usize {
        let futures = &self.futures;
        let mut events = self.queue.drain(|task| futures.push(task));
        let was_woken = self.signal.is_set.load(Ordering::Relaxed)
            && self.signal.is_set.swap(false, Ordering::Acquire);
        if events == 0 && !was_woken {
            return 0;
        }
        let mut context = Context::from_waker(&self.waker);
        for _ in 0..TASKS_PER_TURN_MAX {
            match self.futures.poll_next_unpin(&mut context) {
                Poll::Ready(Some(())) => events += 1,
                Poll::Ready(None) | Poll::Pending => return events + 1,
            }
        }
        self.signal.is_set.store(true, Ordering::Relaxed);
        events + 1
    }

    fn take_panic(&mut self) -> Option<Panic> {
        self.queue.take_panic()
    }

    fn may_sleep(&mut self) -> bool {
        let signal = &self.signal;
        let inbox = &self.queue.inbox;
        self.queue
            .sleeper
            .may_sleep(|| !inbox.is_empty() || signal.is_set.load(Ordering::Acquire))
    }

    fn awake(&mut self) {
        self.queue.awake();
    }

    fn ends_loop(&self) -> bool {
        false
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_set.store(true, Ordering::Release);
        self.doorbell.ring();
    }
}

/// Keeps a panic from unwinding through the executor: glommio would leave the shard behind, neither
/// running nor dropped. The waker lets a sleeping shard see it.
fn guarded(task: LocalTask, panic: Rc<Cell<Option<Panic>>>, waker: Waker) -> LocalTask {
    let blamed = std::future::poll_fn({
        let mut task = task;
        move |context| {
            let blame = Blame::on(A_FUTURE);
            let polled = task.as_mut().poll(context);
            blame.lift();
            polled
        }
    });
    Box::pin(async move {
        if let Err(payload) = AssertUnwindSafe(blamed).catch_unwind().await {
            panic.set(Some(payload));
            waker.wake_by_ref();
        }
    })
}

/// Most futures that wait for a shard's thread to take them.
const WAITING_TASKS_MAX: usize = 1024;
/// Most futures taken, and most that may end, in one turn.
const TASKS_PER_TURN_MAX: usize = 64;
