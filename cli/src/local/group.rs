//! The process group of a child: itself, and those that it has started.

use std::io;
use std::process::Child;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid,
};

/// A group that a child leads.
///
/// Its number is not given to another one as long as its leader is not collected, or another
/// process belongs to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    leader: Pid,
}

impl Group {
    pub(super) fn of(leader: &Child) -> Self {
        Self {
            leader: Pid::from_child(leader),
        }
    }

    /// Whether the leader has ended, which stays to be collected.
    pub(super) fn leader_has_ended(self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(self.leader), options)?.is_some())
    }

    /// Sends a signal to all that belong to it; nobody may be left.
    pub(super) fn signal(self, signal: Signal) {
        let _ = kill_process_group(self.leader, signal);
    }

    /// Whether one of it runs still. Those that have ended and that nobody collects count as gone:
    /// the first process of a container may never do that.
    pub(super) fn runs(self) -> bool {
        if test_kill_process_group(self.leader) == Err(Errno::SRCH) {
            return false;
        }
        let Ok(processes) = std::fs::read_dir("/proc") else {
            return true;
        };
        processes.flatten().any(|entry| {
            let stat = std::fs::read_to_string(entry.path().join("stat"));
            stat.is_ok_and(|stat| self.has(&stat))
        })
    }

    /// Whether the process of this `/proc/PID/stat` belongs to it and runs. The name of a program,
    /// in parentheses, may have any letters.
    fn has(self, stat: &str) -> bool {
        let words = stat.rsplit_once(") ").map_or("", |(_, words)| words);
        let mut words = words.split(' ');
        let (state, _parent, group) = (words.next(), words.next(), words.next());
        let number = group.and_then(|group| group.parse().ok());
        number == Some(self.leader.as_raw_nonzero().get()) && state != Some("Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_told_by_their_group_unless_they_have_ended() {
        let group = Group {
            leader: Pid::from_raw(7).unwrap(),
        };
        assert!(group.has("9 (a) Z 1 8 (b)) S 7 7 7 0"));
        assert!(!group.has("9 (sh) Z 7 7 7 0"));
        assert!(!group.has("7 (sh) S 7 77 7 0"));
        assert!(!group.has(""));
    }
}
