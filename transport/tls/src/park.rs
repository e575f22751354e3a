//! How a thread sleeps while no link has work.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use grpcxx_transport::{Park, TransportError, forward_transport};

use crate::transport::{Origin, Tls};

impl<T: Park> Park for Tls<T>
where
    T::Accepted: Origin,
{
    forward_transport!(base: unpark waker watch);

    fn park(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        let Some(layer) = &self.layer else {
            return self.base.park(timeout);
        };
        if layer.has_work() {
            return Ok(());
        }
        let timeout = [timeout, self.check()].into_iter().flatten().min();
        self.base.park(timeout)
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        if self.layer.as_ref().is_some_and(|layer| layer.has_work()) {
            return None;
        }
        self.base.park_fd()
    }

    fn park_fd_ahead(&mut self) -> Option<BorrowedFd<'_>> {
        match &self.layer {
            // What is still to be sealed waits until frames of the base have left.
            Some(layer) if !layer.is_idle() => self.park_fd(),
            _ => self.base.park_fd_ahead(),
        }
    }

    fn patience(&mut self) -> Option<Duration> {
        let of_base = self.base.patience();
        [of_base, self.check()].into_iter().flatten().min()
    }
}

impl<T: Park> Tls<T>
where
    T::Accepted: Origin,
{
    /// How long a sleep may last because of times of this layer.
    fn check(&self) -> Option<Duration> {
        let layer = self.layer.as_ref();
        let waits = layer.is_some_and(|layer| layer.waits_for_time());
        waits.then_some(WAIT_CHECK)
    }
}

/// How often a thread that sleeps looks whether a peer has let its time pass.
const WAIT_CHECK: Duration = Duration::from_millis(100);
