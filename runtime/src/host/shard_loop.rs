//! A shard as those see it that turn it, and the time of its turns.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::{Duration, Instant};

use grpcxx_transport::Time;

use super::error::HostError;
use crate::blame::blamed;
use crate::compute::ShortCall;

/// A shard as its host sees it.
pub trait ShardLoop {
    /// Does a bounded amount of work. Returns the number of events; 0 means that there was nothing
    /// to do.
    fn turn(&mut self, now: Time) -> usize;

    /// When the shard wants its next turn even if nothing happens.
    fn next_timeout(&self) -> Option<Time>;

    /// Sleeps until there may be work, the waker was used, or `timeout` is over. Returns at once if
    /// work already waits.
    fn park(&mut self, timeout: Option<Duration>);

    /// Prepares for sleep elsewhere: the returned descriptor becomes readable when there may be
    /// work or the waker was used. `None` if work already waits. It must be something that can be
    /// polled, and not a socket.
    fn park_fd(&mut self) -> Option<BorrowedFd<'_>>;

    /// Does so for who has only given the shard something to send since the last turn, though that
    /// turn's successor has to hear that it has left.
    fn park_fd_ahead(&mut self) -> Option<BorrowedFd<'_>> {
        self.park_fd()
    }

    /// How long such a sleep may last because of what only a clock will tell.
    fn patience(&mut self) -> Option<Duration>;

    /// Ends the preparation of [`ShardLoop::park_fd`]; called after each of its calls.
    fn unpark(&mut self);

    /// Ends a sleep, present or next, from any thread.
    fn waker(&self) -> Waker;

    /// Says whether another thread than the shard's own turns it from now on.
    fn set_borrowed(&mut self, is_borrowed: bool) {
        let _ = is_borrowed;
    }

    /// Whether something was handed over that no turn has taken yet.
    fn has_work(&self) -> bool {
        false
    }

    /// Whether something waits for the shard's own thread.
    fn wants_owner(&self) -> bool {
        false
    }

    /// Lets the thread of the shard run calls of short functions, or says that it does so no more.
    fn let_run_short_calls(&mut self, may: bool) {
        let _ = may;
    }

    /// Whether there are calls for the thread to run before the next turn.
    fn has_short_calls(&self) -> bool {
        false
    }

    /// Hands these calls over.
    fn take_short_calls(&mut self, calls: &mut VecDeque<ShortCall>) {
        let _ = calls;
    }

    /// Lets the compute pool run calls that were short.
    fn run_elsewhere(&mut self, calls: &mut VecDeque<ShortCall>) {
        let _ = calls;
    }

    /// Whether code of the program relies on the shard's own thread.
    fn relies_on_thread(&self) -> bool {
        false
    }

    /// Another thread owns the shard from now on.
    fn note_new_owner(&mut self) {}

    /// Whether the shard wants no further turn.
    fn is_finished(&self) -> bool;

    /// Ends what waits on the shard, in which code has panicked. It may be in disorder.
    fn die(self, error: &HostError);
}

/// The clock of an engine: all its shards count from the same origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

/// What a panic leaves behind.
pub(super) type Panic = Box<dyn Any + Send>;

impl Clock {
    /// A clock that begins now.
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// The present.
    pub fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }
}

/// The time of each turn. While turns bring nothing the clock is read only now and then: a look for
/// work costs less than that where the clock is a system call.
pub(super) struct TurnTime {
    clock: Clock,
    now: Time,
    turns_left: u32,
}

impl TurnTime {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            now: clock.now(),
            turns_left: 0,
        }
    }

    /// The time of the next turn.
    pub(super) fn next(&mut self) -> Time {
        if self.turns_left == 0 {
            self.now = self.clock.now();
            self.turns_left = EMPTY_TURNS_PER_READING;
        }
        self.turns_left -= 1;
        self.now
    }

    /// Lets the clock be read before the next turn.
    pub(super) fn forget(&mut self) {
        self.turns_left = 0;
    }
}

/// How long the thread of a shard may sleep beside whose futures the first timer is over at
/// `timer`; `None` is without end. Zero means that the next turn is due.
pub(super) fn sleep_limit<L: ShardLoop>(
    shard: &mut L,
    timer: Option<Time>,
    clock: Clock,
) -> Option<Duration> {
    let end = sleep_end(shard, timer, clock)?;
    Some(end.since(clock.now()))
}

/// When that sleep is over.
pub(super) fn sleep_end<L: ShardLoop>(
    shard: &mut L,
    timer: Option<Time>,
    clock: Clock,
) -> Option<Time> {
    [next_look(shard, clock), timer].into_iter().flatten().min()
}

/// When a shard wants its next turn even if its descriptor tells of nothing.
pub(super) fn next_look<L: ShardLoop>(shard: &mut L, clock: Clock) -> Option<Time> {
    let patience = shard.patience().map(|patience| clock.now() + patience);
    [shard.next_timeout(), patience].into_iter().flatten().min()
}

/// A shard in which code has panicked.
pub(super) struct Dead<L> {
    pub(super) shard: L,
    pub(super) panic: Panic,
    /// Whose code it was.
    pub(super) code: &'static str,
}

impl<L> Dead<L> {
    /// After a panic on the calling thread.
    pub(super) fn of(shard: L, panic: Panic) -> Self {
        Self {
            shard,
            panic,
            code: blamed(),
        }
    }

    /// The same death, of the shard on the heap.
    pub(super) fn boxed(self) -> Dead<Box<L>> {
        Dead {
            shard: Box::new(self.shard),
            panic: self.panic,
            code: self.code,
        }
    }

    /// The same death, of another part of the shard.
    pub(super) fn of_shard<M>(self, shard: M) -> Dead<M> {
        Dead {
            shard,
            panic: self.panic,
            code: self.code,
        }
    }
}

/// Turns without events for which the clock is read once.
const EMPTY_TURNS_PER_READING: u32 = 32;
