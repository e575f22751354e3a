use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

use grpcxx_transport::{Park, Time};

use crate::host::ShardLoop;
use crate::mesh::Sleeper;
use crate::shard::Shard;

/// A shard that can sleep: the wake-ups of its links and of its queues come together here.
pub(crate) struct DrivenShard<T: Park> {
    shard: Shard<T>,
    sleeper: Sleeper,
}

impl<T: Park> DrivenShard<T> {
    pub(crate) fn new(shard: Shard<T>, mut sleeper: Sleeper) -> Self {
        sleeper.install(shard.transport().waker());
        Self { shard, sleeper }
    }
}

impl<T: Park> ShardLoop for DrivenShard<T> {
    fn turn(&mut self, now: Time) -> usize {
        self.shard.turn(now)
    }

    fn next_timeout(&self) -> Option<Time> {
        self.shard.next_timeout()
    }

    fn park(&mut self, timeout: Option<Duration>) {
        let core = self.shard.core();
        if !self.sleeper.may_sleep(|| core.has_work()) {
            return;
        }
        if let Err(error) = self.shard.transport_mut().park(timeout) {
            tracing::error!(%error, "a shard could not sleep");
        }
        self.sleeper.awake();
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        let core = self.shard.core();
        if !self.sleeper.may_sleep(|| core.has_work()) {
            return None;
        }
        self.shard.transport_mut().park_fd()
    }

    fn unpark(&mut self) {
        self.shard.transport_mut().unpark();
        self.sleeper.awake();
    }

    fn waker(&self) -> Waker {
        self.shard.transport().waker()
    }

    fn is_finished(&self) -> bool {
        self.shard.is_finished()
    }
}
