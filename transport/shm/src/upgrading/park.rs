//! How a shard sleeps while links on both media have nothing to do.

use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

use grpcxx_transport::{LinkId, Park, TransportError};

use super::Upgrading;
use super::flow::{Flow, Stage};
use crate::link::Phase;
use crate::transport::CLOSING_CHECK;

impl<T: Park> Park for Upgrading<T> {
    fn park(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        if !self.fall_asleep() || self.hear_sockets() {
            return Ok(());
        }
        let timeout = [timeout, self.patience()].into_iter().flatten().min();
        let slept = self.base.park(timeout);
        self.wake_up();
        self.stirred = None;
        slept
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        if self.patience().is_some() || !self.fall_asleep() {
            return None;
        }
        if self.hear_sockets() {
            self.wake_up();
            return None;
        }
        // Without a descriptor the flags of sleep stay until the next one, at the price of a needless wake-up.
        self.base.park_fd()
    }

    fn unpark(&mut self) {
        self.base.unpark();
        self.wake_up();
        self.stirred = None;
    }

    fn waker(&self) -> Waker {
        self.base.waker()
    }

    fn watch(&mut self, companion: BorrowedFd<'_>) -> Result<(), TransportError> {
        self.base.watch(companion)
    }
}

impl<T: Park> Upgrading<T> {
    /// Announces sleep to all links in shared memory; false if one of them has work.
    fn fall_asleep(&mut self) -> bool {
        if let Some(medium) = &self.medium
            && (medium.others_heard || !medium.heard.is_empty() || !self.notes.is_empty())
        {
            return false;
        }
        for index in 0..self.moved.len() {
            let id = self.moved[index];
            let Some(Flow {
                stage: Stage::Moved(link),
                base,
                ..
            }) = self.flows.find(id)
            else {
                continue;
            };
            // A link that has ended waits for its end on the first medium, which wakes by itself.
            let waits = matches!(link.phase, Phase::Ended(_)) && base.is_some();
            if !waits && !link.fall_asleep() {
                self.wake_up();
                return false;
            }
        }
        true
    }

    fn wake_up(&mut self) {
        for index in 0..self.moved.len() {
            let id = self.moved[index];
            if let Some(Flow {
                stage: Stage::Moved(link),
                ..
            }) = self.flows.find(id)
            {
                link.wake_up();
            }
        }
        if let Some(medium) = &mut self.medium {
            medium.polled = None;
        }
    }

    /// How long a sleep may last because of what only a clock will tell.
    fn patience(&mut self) -> Option<Duration> {
        let flows = &mut self.flows;
        let mut is_flushing = |id: &LinkId| {
            matches!(
                flows.find(*id),
                Some(Flow { stage: Stage::Moved(link), .. }) if matches!(link.phase, Phase::Flushing { .. })
            )
        };
        self.moved
            .iter()
            .any(&mut is_flushing)
            .then_some(CLOSING_CHECK)
    }
}
