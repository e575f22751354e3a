use std::cmp::Reverse;
use std::collections::BinaryHeap;

use grpcxx_transport::Time;

/// When each subject wants to be looked at again; one time per subject.
///
/// A subject that changes its mind leaves its old entry behind; such entries are dropped when they come up.
#[derive(Debug)]
pub(crate) struct Timers<S> {
    heap: BinaryHeap<Reverse<(Time, S)>>,
}

impl<S: Ord + Copy> Timers<S> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
        }
    }

    /// Notes a new time. `armed` is the subject's own record of its current time.
    pub(crate) fn arm(&mut self, subject: S, at: Option<Time>, armed: &mut Option<Time>) {
        if let Some(at) = at
            && armed.is_none_or(|armed| at < armed)
        {
            *armed = Some(at);
            self.heap.push(Reverse((at, subject)));
        }
    }

    /// The next subject whose time has come. It may have become stale: the caller clears its record and asks
    /// the subject for its present wish.
    pub(crate) fn poll(&mut self, now: Time) -> Option<(S, Time)> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse((at, subject))| (subject, at))
    }

    /// The earliest time noted, stale ones included.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}
