//! Collects processes that nobody waits for, where this is the first process of a container.
//!
//! What a program leaves behind becomes a child of the first process. As long as that does not ask
//! for its end, it keeps a number and a place in the kernel.

use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitOptions, waitpid};

/// Looks for such processes now and then.
#[derive(Debug)]
pub(super) struct Reaper {
    is_first: bool,
    looked: Instant,
}

impl Reaper {
    pub(super) fn new() -> Self {
        Self {
            is_first: std::process::id() == 1,
            looked: Instant::now(),
        }
    }

    /// Collects all that have ended but those that `is_own` names, whose ends others ask for.
    pub(super) fn reap(&mut self, is_own: impl Fn(u32) -> bool) {
        if !self.is_first || self.looked.elapsed() < LOOK_INTERVAL {
            return;
        }
        self.looked = Instant::now();
        for number in children().filter(|&number| !is_own(number)) {
            let process = i32::try_from(number).ok().and_then(Pid::from_raw);
            if let Some(process) = process {
                // One that still runs is collected another time.
                let _ = waitpid(Some(process), WaitOptions::NOHANG);
            }
        }
    }
}

/// The children of all threads of this process, as far as the kernel tells.
fn children() -> impl Iterator<Item = u32> {
    let threads = std::fs::read_dir("/proc/self/task");
    let threads = threads.into_iter().flatten().flatten();
    let lists = threads.map(|thread| {
        let list = std::fs::read_to_string(thread.path().join("children"));
        list.unwrap_or_default()
    });
    let numbers = lists.map(|list| {
        let numbers = list.split_whitespace().map(str::parse);
        numbers.filter_map(Result::ok).collect::<Vec<u32>>()
    });
    numbers.flatten()
}

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
