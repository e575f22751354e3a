//! When peers, connections and calls want to be looked at again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use grpcxx_transport::{SlotId, Time};

/// Who wants to be looked at when a timer is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Peer(usize),
    Server(SlotId),
    Call(SlotId),
    Leaving(SlotId),
}

/// When each subject wants to be looked at again; one time per subject.
///
/// A subject that changes its mind leaves its old entry behind; such entries are dropped when they
/// come up, or when there may be more of them than of others.
#[derive(Debug)]
pub(crate) struct Timers<S> {
    heap: BinaryHeap<Reverse<(Time, S)>>,
    /// How long the heap may get before it is searched for subjects that are gone.
    prune_above: usize,
}

impl<S: Ord + Copy> Timers<S> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            prune_above: PRUNE_ABOVE_MIN,
        }
    }

    /// Drops times that their subjects have given up, as soon as there may be more of them than of
    /// others.
    pub(crate) fn prune(&mut self, mut is_present: impl FnMut(S, Time) -> bool) {
        if self.heap.len() <= self.prune_above {
            return;
        }
        let mut noted = std::mem::take(&mut self.heap).into_vec();
        noted.retain(|Reverse((at, subject))| is_present(*subject, *at));
        noted.sort_unstable();
        noted.dedup();
        self.prune_above = (2 * noted.len()).max(PRUNE_ABOVE_MIN);
        self.heap = noted.into();
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

    /// The next subject whose time has come. It may have become stale: the caller clears its record
    /// and asks the subject for its present wish.
    pub(crate) fn poll(&mut self, now: Time) -> Option<(S, Time)> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse((at, subject))| (subject, at))
    }

    /// All times noted, stale ones included.
    #[cfg(debug_assertions)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (Time, S)> {
        self.heap.iter().map(|Reverse(entry)| *entry)
    }

    /// The earliest time noted, stale ones included.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

const PRUNE_ABOVE_MIN: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_subjects_that_are_gone_do_not_pile_up() {
        let mut timers = Timers::new();
        let far = Time::from_nanos(1_000_000);
        for subject in 0..100_000_u64 {
            timers.arm(subject, Some(far), &mut None);
            timers.prune(|other, _| other == subject || other == 0);
        }
        assert!(timers.heap.len() <= PRUNE_ABOVE_MIN + 1);
        assert_eq!(timers.poll(far), Some((0, far)));
    }

    #[test]
    fn times_of_a_subject_that_changes_its_mind_do_not_pile_up() {
        let (mut timers, mut armed) = (Timers::new(), None);
        for before in 0..100_000 {
            timers.arm(7, Some(Time::from_nanos(200_000 - before)), &mut armed);
            timers.prune(|_, at| armed == Some(at));
        }
        assert!(timers.heap.len() <= PRUNE_ABOVE_MIN + 1);
        let first = Time::from_nanos(100_001);
        assert_eq!(timers.poll(first), Some((7, first)));
        for _ in 0..100_000 {
            timers.arm(7, Some(first), &mut None);
            timers.prune(|_, _| true);
        }
        assert!(timers.heap.len() <= PRUNE_ABOVE_MIN + 1);
    }
}
