//! What runs beside a shard on its thread: futures, timers, and values that belong to the thread.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use grpcxx_transport::Time;

use super::shard_loop::Clock;
use super::timers::Timers;
use crate::blame::survive;
use crate::mesh::Doorbell;

pub(crate) type LocalTask = Pin<Box<dyn Future<Output = ()>>>;

/// What belongs to the thread of a shard and is reached from code that runs on it.
///
/// All of it ends on that thread, before the thread does: futures first, then values.
pub(crate) struct Beside {
    clock: Clock,
    doorbell: Doorbell,
    /// Futures that code on this thread has spawned since the last turn.
    spawned: RefCell<Vec<LocalTask>>,
    has_spawned: Cell<bool>,
    timers: Timers,
    /// Futures that run, whichever executor polls them.
    running: RefCell<HashMap<u64, Rc<Running>>>,
    values: RefCell<HashMap<u64, Rc<dyn Any>>>,
    held: RefCell<Vec<Box<dyn Any>>>,
    numbers: Cell<u64>,
    has_ended: Cell<bool>,
}

/// A future that an executor polls, and that ends with the shard whatever the executor does.
struct Running(RefCell<Option<LocalTask>>);

/// For as long as a thread is that of a shard.
pub(super) struct Stay;

impl Beside {
    /// Makes the one of the calling thread. `doorbell` ends its sleep.
    pub(super) fn enter(clock: Clock, doorbell: Doorbell) -> Rc<Self> {
        let beside = Rc::new(Self {
            clock,
            doorbell,
            spawned: RefCell::default(),
            has_spawned: Cell::new(false),
            timers: Timers::default(),
            running: RefCell::default(),
            values: RefCell::default(),
            held: RefCell::default(),
            numbers: Cell::new(0),
            has_ended: Cell::new(false),
        });
        HERE.with(|here| here.replace(Some(Rc::clone(&beside))));
        beside
    }

    /// Makes the calling thread no shard's any more, until [`Beside::stay`] or
    /// [`Beside::restore`].
    pub(super) fn leave() -> Option<Rc<Self>> {
        HERE.with(RefCell::take)
    }

    /// Ends what [`Beside::leave`] began.
    pub(super) fn restore(here: Option<Rc<Self>>) {
        let before = HERE.with(|place| place.replace(here));
        drop(before);
    }

    /// Makes the calling thread that of this shard, until the result is dropped.
    pub(super) fn stay(self: &Rc<Self>) -> Stay {
        HERE.with(|here| here.replace(Some(Rc::clone(self))));
        Stay
    }

    /// That of the calling thread, if it is the thread of a shard.
    pub(crate) fn here() -> Option<Rc<Self>> {
        HERE.with(|here| here.borrow().clone())
    }

    /// The present.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// The timers of this thread. Whoever arms one rings, for the thread may have planned a longer
    /// sleep.
    pub(crate) fn timers(&self) -> &Timers {
        &self.timers
    }

    /// Ends a sleep of the thread, present or next.
    pub(crate) fn ring(&self) {
        self.doorbell.ring();
    }

    /// Runs a future from the next turn on. A shard that has ended drops it.
    pub(crate) fn spawn(&self, task: LocalTask) {
        if self.has_ended.get() {
            return;
        }
        self.spawned.borrow_mut().push(task);
        self.has_spawned.set(true);
        self.ring();
    }

    /// Hands over the futures that were spawned here since the last turn.
    #[inline]
    pub(super) fn take_spawned(&self) -> Vec<LocalTask> {
        if !self.has_spawned.replace(false) {
            return Vec::new();
        }
        self.spawned.take()
    }

    /// Whether there are neither futures nor values.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_spawned.get()
            && self.running.borrow().is_empty()
            && self.values.borrow().is_empty()
    }

    /// Whether futures wait to be taken.
    pub(super) fn has_spawned(&self) -> bool {
        self.has_spawned.get()
    }

    /// Keeps a future, so that it can be ended with the shard. The result is what to poll.
    pub(super) fn keep(self: &Rc<Self>, task: LocalTask) -> impl Future<Output = ()> + use<> {
        let number = self.number();
        let running = Rc::new(Running(RefCell::new(Some(task))));
        let copy = Rc::clone(&running);
        self.running.borrow_mut().insert(number, copy);
        let beside = Rc::clone(self);
        std::future::poll_fn(move |context| {
            let polled = running.poll(context);
            if polled.is_ready() {
                let done = beside.running.borrow_mut().remove(&number);
                drop(done);
            }
            polled
        })
    }

    /// Keeps a value until it is taken back, or the shard has ended.
    pub(crate) fn put(&self, id: u64, value: Rc<dyn Any>) {
        if !self.has_ended.get() {
            let former = self.values.borrow_mut().insert(id, value);
            drop(former);
        }
    }

    /// The value that was kept under a number.
    pub(crate) fn value<T: 'static>(&self, id: u64) -> Option<Rc<T>> {
        let value = self.values.borrow().get(&id).cloned()?;
        value.downcast().ok()
    }

    /// Lets go of a value.
    pub(crate) fn take(&self, id: u64) -> Option<Rc<dyn Any>> {
        self.values.borrow_mut().remove(&id)
    }

    /// Keeps something until the shard has ended, and if it died until all know why.
    pub(crate) fn hold(&self, something: Box<dyn Any>) {
        self.held.borrow_mut().push(something);
    }

    /// Ends that of the calling thread, if it has not ended.
    pub(super) fn end_here() {
        if let Some(beside) = Self::here() {
            beside.end();
        }
    }

    /// Ends all futures, then all values.
    pub(super) fn end(&self) {
        self.has_ended.set(true);
        drop(self.take_spawned());
        let running = self.running.take();
        for running in running.values() {
            survive("a future", || drop(running.0.take()));
        }
        self.timers.clear();
        let values = self.values.take();
        for value in values.into_values() {
            survive("a value of a shard", || drop(value));
        }
        survive("what was held", || drop(self.held.take()));
        let is_here = Self::here().is_some_and(|here| std::ptr::eq(&*here, self));
        if is_here {
            drop(Self::leave());
        }
    }

    fn number(&self) -> u64 {
        let number = self.numbers.get() + 1;
        self.numbers.set(number);
        number
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        drop(Beside::leave());
    }
}

impl Running {
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut task = self.0.borrow_mut();
        let Some(future) = task.as_mut() else {
            return Poll::Ready(());
        };
        let polled = future.as_mut().poll(context);
        if polled.is_ready() {
            *task = None;
        }
        polled
    }
}

thread_local! {
    static HERE: RefCell<Option<Rc<Beside>>> = const { RefCell::new(None) };
}
