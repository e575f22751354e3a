//! The bed of a model: what the kernel tells of descriptors is a state that loom knows.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use loom::sync::{Condvar, Mutex, MutexGuard};

/// Where an owner sleeps, and where its shard does.
pub(super) struct Bed(pub(super) Arc<Line>);

/// What ends sleeps.
#[derive(Default)]
pub(super) struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    /// Events that wait for the shard, whose descriptor is readable.
    pub(super) events: usize,
    /// The shard's own waker was used.
    pub(super) is_rung: bool,
    bell: bool,
    listens: bool,
    alarm: bool,
}

/// What has ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Up,
    ByAlarm,
}

impl Line {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something that sleepers look at.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Sleeps until a look at the state says so.
    pub(super) fn sleep(&self, mut is_over: impl FnMut(&mut State) -> bool) {
        let mut state = self.state();
        while !is_over(&mut state) {
            state = (self.changed.wait(state)).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Bed {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Arc::default()))
    }

    pub(super) fn waker(&self) -> Waker {
        Waker::from(Arc::new(Bell(Arc::clone(&self.0))))
    }

    pub(super) fn wake(&self) {
        self.0.change(|state| state.bell = true);
    }

    pub(super) fn listen(&self, _: BorrowedFd<'_>) -> io::Result<()> {
        self.0.change(|state| state.listens = true);
        Ok(())
    }

    pub(super) fn silence(&self) {
        self.0.change(|state| state.listens = false);
    }

    /// A model has no time: an alarm goes off at any moment from now on.
    pub(super) fn set_alarm(&self, delay: Duration) {
        self.0.change(|state| state.alarm = !delay.is_zero());
    }

    pub(super) fn sleep(&self, _: Option<Duration>) -> Woken {
        let mut woken = Woken::Up;
        self.0.sleep(|state| {
            let is_readable = state.listens && (state.events > 0 || state.is_rung);
            if is_readable {
                state.listens = false;
            }
            let is_up = std::mem::take(&mut state.bell) || is_readable;
            let is_alarm = std::mem::take(&mut state.alarm);
            woken = match is_up {
                true => Woken::Up,
                false => Woken::ByAlarm,
            };
            is_up || is_alarm
        });
        woken
    }
}

struct Bell(Arc<Line>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.change(|state| state.bell = true);
    }
}
