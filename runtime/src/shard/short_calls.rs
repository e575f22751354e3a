//! Calls of functions that were short so far, for the thread of the shard to run between two turns.

use std::collections::VecDeque;

use crate::compute::{Compute, ShortCall, timed};

/// The calls of one turn.
#[derive(Default)]
pub(super) struct ShortCalls {
    calls: VecDeque<ShortCall>,
    /// The thread of the shard runs them.
    are_run: bool,
    /// How many went to a pool, because the shard is lent, since a thread last came for it.
    passed_on: u32,
    /// How often threads had come then.
    comings: usize,
}

impl ShortCalls {
    /// Whether the thread of the shard runs them.
    pub(super) fn are_run(&self) -> bool {
        self.are_run
    }

    pub(super) fn let_run(&mut self, are_run: bool) {
        self.are_run = are_run;
    }

    /// A short call goes to a pool, since the shard is lent, for which threads have come so often.
    /// Returns whether none has for long.
    pub(super) fn pass_on(&mut self, comings: usize) -> bool {
        let before = std::mem::replace(&mut self.comings, comings);
        self.passed_on = match comings == before {
            true => self.passed_on.saturating_add(1),
            false => 1,
        };
        self.passed_on >= PASSED_ON_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn push(&mut self, call: ShortCall) {
        self.calls.push_back(call);
    }

    /// Hands them all over.
    pub(super) fn take(&mut self, calls: &mut VecDeque<ShortCall>) {
        calls.append(&mut self.calls);
    }
}

/// Most short calls in a row that go to a pool, because threads may turn the shard that wait.
const PASSED_ON_MAX: u32 = 32;

/// Lets the pools run calls that were short: `pool` is that of the engine's own, or of others.
pub(super) fn run_elsewhere<'a>(
    pool: impl Fn(bool) -> &'a dyn Compute,
    calls: &mut VecDeque<ShortCall>,
) {
    for call in calls.drain(..) {
        pool(call.is_own).spawn(call.peer, timed(call.pace, call.job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_no_thread_comes_for_is_lent_until_many_short_calls_have_come() {
        let mut calls = ShortCalls::default();
        for comings in [0, 7, 8] {
            let kept_at = (1..100).find(|_| calls.pass_on(comings));
            assert_eq!(kept_at, Some(PASSED_ON_MAX));
        }
        let is_kept = (9..100).any(|comings| calls.pass_on(comings));
        assert!(!is_kept);
    }
}
