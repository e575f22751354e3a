//! A thread that waits for a future, and turns the shard meanwhile that brings the result.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::stand_in::note_wait;
use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering, Thread, current, park, park_timeout};
use crate::compute::give_up_place;

/// What wakes a thread that waits, wherever it does.
pub(crate) struct Waiter {
    is_woken: AtomicBool,
    thread: Thread,
    /// Ends the sleep of the shard that the thread turns.
    shard: Mutex<Option<Waker>>,
}

/// A shard that a thread may turn while it waits.
pub(crate) trait Turnable: Send + Sync {
    /// Turns the shard until the waiter is woken or the time is over. False: another thread turns
    /// it, and will wake the waiter.
    fn turn_for(&self, waiter: &Waiter, limit: Option<Duration>) -> bool;

    /// Sleeps until the waiter is woken, perhaps without need, or the time is over.
    fn sleep_for(&self, waiter: &Waiter, limit: Option<Duration>);

    /// Leaves the shard to its own thread from now on, because code begins that belongs there.
    fn bind(&self);
}

/// Blocks the calling thread until a future is ready, at most for `limit`. It is for what no shard
/// brings; for calls there are [`Call::wait`](crate::Call::wait) and
/// [`Client::wait`](crate::Client::wait).
pub fn block_on<F: Future>(future: F, limit: Option<Duration>) -> Option<F::Output> {
    wait_for(None, future, limit)
}

/// Runs code that waits for something that another function may have to bring, such as a lock or a
/// future of another executor. On a thread that runs functions another one takes its place
/// meanwhile, of which there are 512 at most; elsewhere the code just runs.
///
/// [`Call::wait`](crate::Call::wait), [`block_on`] and other waits for calls do so by themselves.
pub fn waiting<T>(code: impl FnOnce() -> T) -> T {
    note_wait();
    let _given_up = give_up_place();
    code()
}

/// Blocks the calling thread until a future is ready, which some shard brings.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    match wait_for(None, future, None) {
        Some(output) => output,
        None => unreachable!("it waits without a limit"),
    }
}

/// Blocks the calling thread until a future is ready or the time is over. The thread turns the
/// shard meanwhile, if there is one and nobody else does.
pub(crate) fn wait_for<F: Future>(
    shard: Option<&dyn Turnable>,
    future: F,
    limit: Option<Duration>,
) -> Option<F::Output> {
    let waiter = Waiter::of_thread();
    let waker = Waker::from(Arc::clone(&waiter));
    let mut context = Context::from_waker(&waker);
    // A time that no clock reaches is no limit.
    let until = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut future = pin!(future);
    let output = loop {
        waiter.is_woken.store(false, Ordering::Relaxed);
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            break Some(output);
        }
        if !waiter.wait(shard, until) {
            break None;
        }
    };
    waiter.keep();
    output
}

impl Waiter {
    /// That of the calling thread, which waits for one thing at a time nearly always.
    fn of_thread() -> Arc<Self> {
        WAITER.take().unwrap_or_else(Self::new)
    }

    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            is_woken: AtomicBool::new(false),
            thread: current(),
            shard: Mutex::new(None),
        })
    }

    fn keep(self: Arc<Self>) {
        WAITER.set(Some(self));
    }

    /// Waits until it is woken. False if the time was over first.
    pub(super) fn wait(&self, shard: Option<&dyn Turnable>, until: Option<Instant>) -> bool {
        if self.is_woken() {
            return true;
        }
        waiting(|| self.wait_asleep(shard, until))
    }

    fn wait_asleep(&self, shard: Option<&dyn Turnable>, until: Option<Instant>) -> bool {
        while !self.is_woken() {
            let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
            if limit.is_some_and(|limit| limit.is_zero()) {
                return false;
            }
            if shard.is_some_and(|shard| shard.turn_for(self, limit)) {
                continue;
            }
            match shard {
                Some(shard) => shard.sleep_for(self, limit),
                None => self.sleep(limit),
            }
        }
        true
    }

    /// Sleeps until it is woken, perhaps without need, or the time is over.
    pub(super) fn sleep(&self, limit: Option<Duration>) {
        if self.is_woken() {
            return;
        }
        match limit {
            Some(limit) => park_timeout(limit),
            None => park(),
        }
    }

    #[inline]
    pub(super) fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::Acquire)
    }

    /// The thread turns a shard from now on, whose sleep `shard` ends.
    pub(super) fn enter(&self, shard: &Waker) {
        *self.shard() = Some(shard.clone());
    }

    /// The thread turns no shard any more.
    pub(super) fn leave(&self) {
        *self.shard() = None;
    }

    fn shard(&self) -> MutexGuard<'_, Option<Waker>> {
        self.shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        // The thread itself looks before it sleeps.
        if current().id() == self.thread.id() {
            return;
        }
        self.thread.unpark();
        if let Some(shard) = &*self.shard() {
            shard.wake_by_ref();
        }
    }
}

thread_local! {
    static WAITER: Cell<Option<Arc<Waiter>>> = const { Cell::new(None) };
}
