//! What keeps a log from stopping, slowing or filling anything: a bounded queue to a thread that
//! writes, and a limit on lines that are alike.
//!
//! `tracing` has one subscriber a process, so the limit and the counters are the process's too. A
//! subscriber asks [`admit`] before it formats an event, and pushes what it has formatted into a
//! [`LogQueue`].

mod limit;
mod queue;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use grpcxx_memory::forks::PerProcess;
use tracing::Event;

pub use queue::LogQueue;

use limit::Limit;

/// What became of log lines that were not written, since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogCounters {
    /// Lines that nobody took in time, or that could not be written.
    pub lines_lost: u64,
    /// Lines that were held back because they were like many before them.
    pub lines_suppressed: u64,
}

impl LogCounters {
    /// Name, meaning and value of each counter.
    pub fn entries(&self) -> [(&'static str, &'static str, u64); 2] {
        [
            (
                "log_lines_lost",
                "Log lines that nobody took in time, or that could not be written.",
                self.lines_lost,
            ),
            (
                "log_lines_suppressed",
                "Log lines held back because they were like many before them.",
                self.lines_suppressed,
            ),
        ]
    }
}

/// The counters of this process.
pub fn counters() -> LogCounters {
    LogCounters {
        lines_lost: LINES_LOST.load(Ordering::Relaxed),
        lines_suppressed: LINES_SUPPRESSED.load(Ordering::Relaxed),
    }
}

/// Whether `event` should be written. If it is like many before it, it only counts for the line
/// that later says how many there were.
pub fn admit(event: &Event<'_>) -> bool {
    let (is_admitted, ended) = limit().admit(event, Instant::now());
    for summary in ended {
        summary.tell();
    }
    if !is_admitted {
        LINES_SUPPRESSED.fetch_add(1, Ordering::Relaxed);
    }
    is_admitted
}

/// Says how many lines were held back in windows that have ended, or in all. Returns when the next
/// window ends.
fn tell_suppressed(now: Instant, all: bool) -> Option<Instant> {
    let (ended, next) = limit().end_windows(now, all);
    for summary in ended {
        summary.tell();
    }
    next
}

/// That of this process. A child begins anew: a thread that it has not may hold its parent's lock.
fn limit() -> &'static Limit {
    static LIMIT: PerProcess<Limit> = PerProcess::new();
    LIMIT.get_or_make(|_parents| Limit::new())
}

static LINES_LOST: AtomicU64 = AtomicU64::new(0);
static LINES_SUPPRESSED: AtomicU64 = AtomicU64::new(0);
