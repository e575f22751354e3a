use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use grpcxx_transport::{Park, Time};

use crate::client::Lender;
use crate::command::Command;
use crate::compute::ShortCall;
use crate::host::{HostError, Lent, ShardLoop};
use crate::limits::FLUSH_TIME;
use crate::mesh::Sleeper;
use crate::shard::Shard;
use crate::shard::short_calls::run_elsewhere;

/// A shard that can sleep: the wake-ups of its links and of its queues come together here.
pub(crate) struct DrivenShard<T: Park> {
    shard: Shard<T>,
    sleeper: Sleeper,
    /// Calls begun between two turns since the last one.
    begun_ahead: u32,
}

impl<T: Park> DrivenShard<T> {
    pub(crate) fn new(shard: Shard<T>, mut sleeper: Sleeper) -> Self {
        sleeper.install(shard.transport().waker());
        Self {
            shard,
            sleeper,
            begun_ahead: 0,
        }
    }

    /// Announces a sleep to whoever hands commands over, unless there is work.
    fn may_sleep(&mut self) -> bool {
        let core = self.shard.core();
        self.sleeper.may_sleep(|| core.has_work())
    }
}

impl<T: Park + Send> Lender for Lent<DrivenShard<T>> {
    fn begin(&self, command: Command) -> Result<(), Command> {
        let mut command = Some(command);
        let takes = |driven: &DrivenShard<T>| {
            driven.begun_ahead < BEGUN_AHEAD_MAX && !driven.shard.core().has_work()
        };
        self.visit(takes, |driven, now| {
            if let Some(command) = command.take() {
                driven.begun_ahead += 1;
                driven.shard.execute_now(now, command);
            }
        });
        command.map_or(Ok(()), Err)
    }

    fn stir(&self) {
        Lent::stir(self);
    }

    fn comings(&self) -> usize {
        Lent::comings(self)
    }
}

impl<T: Park> ShardLoop for DrivenShard<T> {
    // The star bench counts instructions while this function runs, and finds it by its name.
    #[inline(never)]
    fn turn(&mut self, now: Time) -> usize {
        self.begun_ahead = 0;
        self.shard.turn(now)
    }

    fn next_timeout(&self) -> Option<Time> {
        self.shard.next_timeout()
    }

    fn park(&mut self, timeout: Option<Duration>) {
        if !self.may_sleep() {
            return;
        }
        if let Err(error) = self.shard.transport_mut().park(timeout) {
            tracing::error!(%error, "a shard could not sleep");
        }
        self.sleeper.awake();
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        if !self.may_sleep() {
            return None;
        }
        self.shard.transport_mut().park_fd()
    }

    fn park_fd_ahead(&mut self) -> Option<BorrowedFd<'_>> {
        if self.shard.transport().frames_in_flight() > 1 {
            // The rest of a message may follow when its first part has left.
            return self.park_fd();
        }
        if !self.may_sleep() {
            return None;
        }
        self.shard.transport_mut().park_fd_ahead()
    }

    fn patience(&mut self) -> Option<Duration> {
        self.shard.transport_mut().patience()
    }

    fn unpark(&mut self) {
        self.shard.transport_mut().unpark();
        self.sleeper.awake();
    }

    fn waker(&self) -> Waker {
        self.shard.transport().waker()
    }

    fn set_borrowed(&mut self, is_borrowed: bool) {
        self.shard.core_mut().set_borrowed(is_borrowed);
    }

    fn has_work(&self) -> bool {
        self.shard.core().has_work()
    }

    fn wants_owner(&self) -> bool {
        self.shard.core().wants_owner()
    }

    fn let_run_short_calls(&mut self, may: bool) {
        self.shard.core_mut().short_calls.let_run(may);
    }

    fn has_short_calls(&self) -> bool {
        !self.shard.core().short_calls.is_empty()
    }

    fn take_short_calls(&mut self, calls: &mut VecDeque<ShortCall>) {
        self.shard.core_mut().short_calls.take(calls);
    }

    fn run_elsewhere(&mut self, calls: &mut VecDeque<ShortCall>) {
        let shared = &self.shard.core().shared;
        run_elsewhere(|is_own| shared.pool(is_own), calls);
    }

    fn relies_on_thread(&self) -> bool {
        self.shard.core().mailboxes().are_bound()
    }

    fn note_new_owner(&mut self) {
        self.shard.core().counters().owners_replaced.add(1);
    }

    fn is_finished(&self) -> bool {
        self.shard.is_finished()
    }

    fn die(self, error: &HostError) {
        self.shard.core().mailboxes().die(error);
        let mut core = self.shard.into_dead_core();
        // What the other shards hand over until they have ended would be lost without an end.
        let until = Instant::now() + OUTLAST_TIME;
        while !core.all_have_ended() && Instant::now() < until {
            core.end_arrivals();
            thread::sleep(OUTLAST_POLL);
        }
        core.end_arrivals();
    }
}

/// Calls that leave one by one while the shard's thread sleeps. A thread that makes more at once
/// is served better by the shard's thread, which sends them together.
const BEGUN_AHEAD_MAX: u32 = 1;

/// How long a dead shard waits for the others: as long as they may take to send what they hold,
/// and some.
const OUTLAST_TIME: Duration = Duration::from_millis(2 * FLUSH_TIME.as_millis() as u64);
const OUTLAST_POLL: Duration = Duration::from_millis(1);
