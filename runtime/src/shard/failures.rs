//! The calls and requests of a shard that failed last.

use std::collections::VecDeque;

use grpcxx_rpc::{Code, Reason, Status};
use grpcxx_transport::Time;

use crate::inspection::RecentFailure;
use crate::latency::CallSide;

/// The calls and requests of a shard that failed last.
#[derive(Debug, Default)]
pub(super) struct Failures {
    last: VecDeque<Failure>,
}

#[derive(Debug)]
struct Failure {
    side: CallSide,
    at: Time,
    code: Code,
    reason: Reason,
    message: String,
}

impl Failures {
    /// Notes a failure, in place of the oldest if there are enough.
    pub(super) fn note(&mut self, side: CallSide, status: &Status, at: Time) {
        let mut message = match self.last.len() < FAILURES_MAX {
            true => String::new(),
            // Its memory serves again.
            false => (self.last.pop_front()).map_or_else(String::new, |oldest| oldest.message),
        };
        message.clear();
        message.extend(status.message.chars().take(FAILURE_CHARS_MAX));
        self.last.push_back(Failure {
            side,
            at,
            code: status.code,
            reason: status.reason,
            message,
        });
    }

    /// What failed, oldest first.
    pub(super) fn tell(&self, now: Time) -> Vec<RecentFailure> {
        let tell = |failure: &Failure| RecentFailure {
            side: failure.side,
            age: now.since(failure.at),
            code: failure.code,
            reason: failure.reason,
            message: failure.message.clone(),
        };
        self.last.iter().map(tell).collect()
    }
}

/// Failures that a shard remembers.
const FAILURES_MAX: usize = 32;

/// Most letters of a failure's text that are remembered.
const FAILURE_CHARS_MAX: usize = 300;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_last_failures_are_remembered_and_cut() {
        let mut failures = Failures::default();
        for number in 0..100 {
            let text = format!("{number}{}", "ä".repeat(1_000));
            let status = Status::new(Code::NotFound, text);
            failures.note(CallSide::Client, &status, Time::from_nanos(number));
        }
        let told = failures.tell(Time::from_nanos(100));
        assert_eq!(told.len(), FAILURES_MAX);
        assert!(told[0].message.starts_with("68ä"), "{:?}", told[0]);
        assert!(told.iter().all(|one| one.message.chars().count() == 300));
        assert_eq!(told[31].age, Duration::from_nanos(1));
    }
}
