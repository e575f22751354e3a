//! Calls of functions that were short so far, for the thread of the shard to run between two turns.

use std::collections::VecDeque;

use crate::compute::{Compute, ShortCall, timed};

/// The calls of one turn.
#[derive(Default)]
pub(super) struct ShortCalls {
    calls: VecDeque<ShortCall>,
    /// The thread of the shard runs them.
    are_run: bool,
}

impl ShortCalls {
    /// Whether the thread of the shard runs them.
    pub(super) fn are_run(&self) -> bool {
        self.are_run
    }

    pub(super) fn let_run(&mut self, are_run: bool) {
        self.are_run = are_run;
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

/// Lets the pools run calls that were short: `pool` is that of the engine's own, or of others.
pub(super) fn run_elsewhere<'a>(
    pool: impl Fn(bool) -> &'a dyn Compute,
    calls: &mut VecDeque<ShortCall>,
) {
    for call in calls.drain(..) {
        pool(call.is_own).spawn(call.peer, timed(call.pace, call.job));
    }
}
