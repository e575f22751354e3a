//! How a shard sleeps while all its links have nothing to do.

use std::os::fd::{AsFd, BorrowedFd};
use std::task::Waker;
use std::time::Duration;

use grpcxx_transport::{Park, TransportError};

use super::ShmTransport;
use crate::channel::failure;
use crate::driver::CLOSING_CHECK;
use crate::link::Phase;
use crate::poller::Subject;

impl Park for ShmTransport {
    fn park(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        if !self.fall_asleep() {
            return Ok(());
        }
        let patience = self.patience();
        let timeout = [timeout, patience].into_iter().flatten().min();
        let slept = self.driver.poll(timeout);
        self.wake_up();
        slept.map_err(|errno| failure("epoll_wait", errno))
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        if !self.fall_asleep() {
            return None;
        }
        if self.driver.look() {
            self.wake_up();
            return None;
        }
        Some(self.driver.poller.as_fd())
    }

    fn patience(&mut self) -> Option<Duration> {
        let links = &mut self.links;
        let is_flushing = links.slots().any(|slot| {
            let link = links.at(slot);
            link.is_some_and(|(_, link)| matches!(link.phase, Phase::Flushing { .. }))
        });
        is_flushing.then_some(CLOSING_CHECK)
    }

    fn unpark(&mut self) {
        self.wake_up();
    }

    fn waker(&self) -> Waker {
        self.wakeup.waker()
    }

    fn watch(&mut self, companion: BorrowedFd<'_>) -> Result<(), TransportError> {
        self.driver
            .poller
            .watch(companion, Subject::Other)
            .map_err(|errno| failure("watch a companion", errno))
    }
}

impl ShmTransport {
    /// Announces sleep to all links; false if one of them has work.
    fn fall_asleep(&mut self) -> bool {
        if self.driver.has_readable() || self.wakeup.take() {
            return false;
        }
        for slot in self.links.slots() {
            let Some((_, link)) = self.links.at(slot) else {
                continue;
            };
            if !link.fall_asleep() {
                self.wake_up();
                return false;
            }
        }
        true
    }

    fn wake_up(&mut self) {
        for slot in self.links.slots() {
            if let Some((_, link)) = self.links.at(slot) {
                link.wake_up();
            }
        }
        self.driver.look_soon();
    }
}
