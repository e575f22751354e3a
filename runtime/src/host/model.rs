//! A shard for models, whose events come over a line.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use grpcxx_transport::Time;

use super::bed::Line;
use super::error::HostError;
use super::shard_loop::ShardLoop;
use super::sync::Mutex;
use super::waiter::Waiter;

/// A shard whose events come over a line, and which wakes a thread that waits with the first.
pub(super) struct Toy {
    pub(super) line: Arc<Line>,
    pub(super) waiter: Arc<Mutex<Option<Arc<Waiter>>>>,
    /// Events that are still to come.
    pub(super) left: usize,
}

struct Ring(Arc<Line>);

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.0.change(|state| state.is_rung = true);
    }
}

impl ShardLoop for Toy {
    fn turn(&mut self, _: Time) -> usize {
        let events = std::mem::take(&mut self.line.state().events);
        self.left -= events;
        if events > 0
            && let Some(waiter) = self.waiter.lock().unwrap().take()
        {
            waiter.wake_by_ref();
        }
        events
    }

    fn next_timeout(&self) -> Option<Time> {
        None
    }

    fn park(&mut self, _: Option<Duration>) {
        self.line
            .sleep(|state| std::mem::take(&mut state.is_rung) || state.events > 0);
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        let mut state = self.line.state();
        let has_work = std::mem::take(&mut state.is_rung) || state.events > 0;
        drop(state);
        (!has_work).then(|| ANY.as_fd())
    }

    fn patience(&mut self) -> Option<Duration> {
        None
    }

    fn unpark(&mut self) {
        self.line.state().is_rung = false;
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::new(Ring(Arc::clone(&self.line))))
    }

    fn is_finished(&self) -> bool {
        self.left == 0
    }

    fn die(self, _: &HostError) {}
}

/// Any descriptor: the model looks at none.
static ANY: std::sync::LazyLock<std::fs::File> =
    std::sync::LazyLock::new(|| std::fs::File::open("/dev/null").expect("it is there"));

/// Switches of threads that the model forces where none is due; more take hours.
pub(super) const PREEMPTIONS_MAX: usize = 3;
