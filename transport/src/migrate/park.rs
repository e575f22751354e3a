//! How a thread sleeps while neither the base transport nor the medium has work.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{Medium, Migrating};
use crate::{Park, TransportError, forward_transport};

impl<T: Park, M: Medium> Park for Migrating<T, M> {
    forward_transport!(base: waker watch);

    fn park(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        if !self.registry.is_settled() {
            return Ok(());
        }
        let Some(medium) = &mut self.medium else {
            return self.base.park(timeout);
        };
        if !medium.arm(&mut self.registry) {
            return Ok(());
        }
        let timeout = [timeout, self.check()].into_iter().flatten().min();
        let slept = self.base.park(timeout);
        self.wake_up();
        slept
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        match self.is_ready_to_sleep() {
            true => self.base.park_fd(),
            false => None,
        }
    }

    fn park_fd_ahead(&mut self) -> Option<BorrowedFd<'_>> {
        match self.is_ready_to_sleep() {
            true => self.base.park_fd_ahead(),
            false => None,
        }
    }

    fn patience(&mut self) -> Option<Duration> {
        let of_base = self.base.patience();
        [of_base, self.check()].into_iter().flatten().min()
    }

    fn unpark(&mut self) {
        self.base.unpark();
        self.wake_up();
    }
}

impl<T: Park, M: Medium> Migrating<T, M> {
    /// Prepares the medium for sleep. If the base then has no descriptor, the medium stays prepared
    /// until the next sleep, at the price of a needless wake-up.
    fn is_ready_to_sleep(&mut self) -> bool {
        self.registry.is_settled()
            && (self.medium.as_mut()).is_none_or(|medium| medium.arm(&mut self.registry))
    }

    /// How long a sleep may last because of times of the medium, and of links that migrate.
    fn check(&mut self) -> Option<Duration> {
        let waits = self.is_waiting().then_some(WAIT_CHECK);
        let registry = &mut self.registry;
        let of_medium = (self.medium.as_mut()).and_then(|medium| medium.patience(registry));
        [waits, of_medium].into_iter().flatten().min()
    }
}

impl<T, M: Medium> Migrating<T, M> {
    fn wake_up(&mut self) {
        if let Some(medium) = &mut self.medium {
            medium.disarm(&mut self.registry);
        }
        self.stirred = None;
    }
}

/// How often a thread that sleeps looks whether an answer is late, or a handshake's time has come.
const WAIT_CHECK: Duration = Duration::from_millis(100);
