use std::collections::VecDeque;
use std::fmt;

use grpcxx_transport::Time;

/// What happened in a run, one line each, and a hash of all of it: equal seeds give equal hashes.
#[derive(Debug)]
pub(super) struct Journal {
    lines: VecDeque<String>,
    lines_max: usize,
    count: u64,
    hash: u64,
}

impl Journal {
    /// A journal that keeps its newest `lines_max` lines.
    pub(super) fn new(lines_max: usize) -> Self {
        Self {
            lines: VecDeque::new(),
            lines_max,
            count: 0,
            hash: FNV_OFFSET,
        }
    }

    pub(super) fn note(&mut self, now: Time, what: fmt::Arguments<'_>) {
        let line = format!("{:>12} {what}", now.as_nanos());
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
        self.count += 1;
        if self.lines.len() == self.lines_max {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

impl fmt::Display for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "the last {} of {} events (virtual ns):",
            self.lines.len(),
            self.count
        )?;
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;
