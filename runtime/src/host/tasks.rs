//! Futures on their way to the threads of shards, and the executor of the native host.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use grpcxx_transport::{Refusal, Time};

use super::beside::{Beside, LocalTask};
use super::native::Executor;
use super::shard_loop::{Clock, Panic};
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
pub(crate) struct Jobs {
    inbox: Inbox<Job>,
    sleeper: Sleeper,
}

/// Futures that arrive at a shard's thread.
pub(super) struct TaskQueue {
    /// None while the thread is away from its shard.
    jobs: Option<Jobs>,
    panic: Rc<Cell<Option<Panic>>>,
    waker: Waker,
    beside: Rc<Beside>,
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

type Job = Box<dyn FnOnce() -> LocalTask + Send>;

/// Says that a future wants to be polled.
pub(super) struct Signal {
    is_set: AtomicBool,
    doorbell: Doorbell,
}

pub(crate) fn jobs() -> (TaskSpawner, Jobs) {
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

/// A queue is used by the thread that has the shard.
const IS_HERE: &str = "the thread has its shard";

impl TaskQueue {
    /// For the calling thread, whose sleep `waker` ends.
    pub(super) fn new(jobs: Jobs, clock: Clock, waker: Waker) -> Self {
        let mut jobs = jobs;
        jobs.sleeper.install(waker.clone());
        let beside = Beside::enter(clock, jobs.sleeper.doorbell());
        Self {
            jobs: Some(jobs),
            panic: Rc::default(),
            waker,
            beside,
        }
    }

    /// Hands over the futures that have arrived, and wakes those whose timers are over at `now`.
    /// Returns how many there were of both.
    pub(super) fn turn(&mut self, now: Time, mut start: impl FnMut(LocalTask)) -> usize {
        let (panic, waker, beside) = (&self.panic, &self.waker, &self.beside);
        let mut start = |task| start(guarded(task, beside, panic.clone(), waker.clone()));
        let inbox = &mut self.jobs.as_mut().expect(IS_HERE).inbox;
        let arrived = inbox.drain(TASKS_PER_TURN_MAX, |job| {
            let blame = Blame::on(A_FUTURE);
            let task = job();
            blame.lift();
            start(task);
        });
        let spawned = beside.take_spawned();
        let events = arrived + spawned.len() + beside.timers().fire(now);
        spawned.into_iter().for_each(start);
        events
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.beside.timers().next()
    }

    /// Ends futures and values of the thread, while its executor is there.
    pub(super) fn end(&self) {
        self.beside.end();
    }

    /// The panic of a future, if there was one.
    pub(super) fn take_panic(&mut self) -> Option<Panic> {
        self.panic.take()
    }

    pub(super) fn may_sleep(&mut self) -> bool {
        let beside = &self.beside;
        let Jobs { inbox, sleeper } = self.jobs.as_mut().expect(IS_HERE);
        sleeper.may_sleep(|| !inbox.is_empty() || beside.has_spawned())
    }

    pub(super) fn awake(&mut self) {
        self.sleeper().awake();
    }

    fn sleeper(&mut self) -> &mut Sleeper {
        &mut self.jobs.as_mut().expect(IS_HERE).sleeper
    }
}

impl FirstTasks {
    /// For the calling thread, whose sleep `waker` ends.
    pub(super) fn new(jobs: Jobs, clock: Clock, waker: Waker) -> Self {
        Self {
            queue: TaskQueue::new(jobs, clock, waker),
            tasks: Vec::new(),
        }
    }
}

impl Executor for FirstTasks {
    fn turn(&mut self, now: Time) -> usize {
        let tasks = &mut self.tasks;
        self.queue.turn(now, |task| tasks.push(task))
    }

    fn next_timeout(&self) -> Option<Time> {
        self.queue.next_timeout()
    }

    fn take_panic(&mut self) -> Option<Panic> {
        self.queue.take_panic()
    }

    fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.queue.beside.is_empty()
    }

    fn jobs(&mut self) -> &mut Option<Jobs> {
        &mut self.queue.jobs
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
    /// For the calling thread, whose sleep `waker` ends.
    pub(super) fn new(jobs: Jobs, clock: Clock, waker: Waker) -> Self {
        Self::after(FirstTasks::new(jobs, clock, waker))
    }

    /// Goes on with the first futures.
    pub(super) fn after(FirstTasks { queue, tasks }: FirstTasks) -> Self {
        let mut queue = queue;
        let signal = Signal::new(queue.sleeper().doorbell());
        signal.set();
        Self {
            queue,
            futures: tasks.into_iter().collect(),
            waker: signal.clone().into(),
            signal,
        }
    }

    /// Another signal that ends the sleep of the thread.
    pub(super) fn signal(&mut self) -> Arc<Signal> {
        Signal::new(self.queue.sleeper().doorbell())
    }

    pub(super) fn beside(&self) -> Rc<Beside> {
        Rc::clone(&self.queue.beside)
    }

    /// Ends futures and values of the thread.
    pub(super) fn end(&self) {
        self.queue.end();
    }
}

impl Executor for NativeTasks {
    /// Takes new futures and polls those that were woken. Returns how many futures began or ended,
    /// and 1 more if any was polled.
    fn turn(&mut self, now: Time) -> usize {
        let futures = &self.futures;
        let mut events = self.queue.turn(now, |task| futures.push(task));
        let was_woken = self.signal.take();
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
        self.signal.set();
        events + 1
    }

    fn next_timeout(&self) -> Option<Time> {
        self.queue.next_timeout()
    }

    fn take_panic(&mut self) -> Option<Panic> {
        self.queue.take_panic()
    }

    fn is_empty(&self) -> bool {
        self.futures.is_empty() && self.queue.beside.is_empty()
    }

    fn jobs(&mut self) -> &mut Option<Jobs> {
        &mut self.queue.jobs
    }

    fn may_sleep(&mut self) -> bool {
        let signal = &self.signal;
        let beside = &self.queue.beside;
        let Jobs { inbox, sleeper } = self.queue.jobs.as_mut().expect(IS_HERE);
        sleeper.may_sleep(|| !inbox.is_empty() || beside.has_spawned() || signal.is_set())
    }

    fn awake(&mut self) {
        self.queue.awake();
    }

    fn ends_loop(&self) -> bool {
        false
    }
}

impl Signal {
    fn new(doorbell: Doorbell) -> Arc<Self> {
        let is_set = AtomicBool::new(false);
        Arc::new(Self { is_set, doorbell })
    }

    /// Sets it on the thread itself, which does not sleep.
    pub(super) fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Whether it was set; it is not any more.
    #[inline]
    pub(super) fn take(&self) -> bool {
        self.is_set.load(Ordering::Relaxed) && self.is_set.swap(false, Ordering::Acquire)
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
fn guarded(
    task: LocalTask,
    beside: &Rc<Beside>,
    panic: Rc<Cell<Option<Panic>>>,
    waker: Waker,
) -> LocalTask {
    let mut task = Box::pin(beside.keep(task));
    let blamed = std::future::poll_fn(move |context| {
        let blame = Blame::on(A_FUTURE);
        let polled = task.as_mut().poll(context);
        blame.lift();
        polled
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
