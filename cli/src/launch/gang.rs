//! When a job is over: decides from the ends of its processes, and does nothing itself.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Roles;

/// How the process of a rank ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// What the end says of its cause.
    pub kind: EndKind,
    /// How, in words.
    pub how: String,
    /// Its last lines on standard error.
    pub last_lines: Vec<String>,
}

/// What an end says of its cause; of several ends, the least of these is what the others follow
/// from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndKind {
    /// A signal ended it which nobody raises because another process is gone.
    Killed,
    /// It failed: by itself, or because another is gone.
    Failed,
    /// It says that another is gone: exit code 69, `EX_UNAVAILABLE`.
    MissesAnother,
    /// It ended with exit code 0.
    Success,
}

/// The processes of a job: they run together, are started again together, and end together.
#[derive(Debug)]
pub struct Gang {
    ranks: Vec<Rank>,
    failures: Vec<Failure>,
    restarts_left: u32,
    restart: u32,
    /// When all must have stopped for the restart that is under way.
    stopped_by: Option<Instant>,
}

#[derive(Debug)]
struct Rank {
    name: String,
    is_awaited: bool,
    has_ended: bool,
    /// Whether it is stopped for the restart that is under way.
    is_stopped: bool,
}

/// The end of a process that may be the cause of others.
#[derive(Debug)]
struct Failure {
    kind: EndKind,
    reason: String,
    decide_at: Instant,
}

/// What follows from the ends so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The others go on.
    Continue,
    /// All are ended and started again, for this reason; the number of the restart.
    Restart(u32, String),
    /// All awaited processes have ended well.
    Finish,
    /// The job has failed; the reason.
    Fail(String),
}

impl Gang {
    /// A job whose processes have all been started.
    pub fn new(roles: Roles, restarts: u32) -> Self {
        let rank = |rank| {
            let name = format!("rank {rank} ({})", roles.name(rank));
            Rank::started(name, roles.is_awaited(rank))
        };
        Self::of((0..roles.size()).map(rank).collect(), restarts)
    }

    /// A single process, whose launcher looks after the others.
    pub fn alone(name: &str, restarts: u32) -> Self {
        Self::of(vec![Rank::started(name.to_owned(), true)], restarts)
    }

    fn of(ranks: Vec<Rank>, restarts: u32) -> Self {
        Self {
            ranks,
            failures: Vec::new(),
            restarts_left: restarts,
            restart: 0,
            stopped_by: None,
        }
    }

    /// The process of `rank` ended, which had been started again `restart` times. Ends of processes
    /// that were replaced meanwhile mean nothing.
    pub fn ended(&mut self, rank: u32, restart: u32, end: &End, now: Instant) {
        let Some(ending) = self.ranks.get_mut(rank as usize) else {
            return;
        };
        if restart != self.restart || std::mem::replace(&mut ending.has_ended, true) {
            return;
        }
        if end.kind != EndKind::Success {
            self.failures.push(Failure {
                kind: end.kind,
                reason: describe(&ending.name, end),
                decide_at: now + end.kind.patience(),
            });
        }
    }

    /// When [`Gang::decide`] has something to say even if nobody else ends until then.
    pub fn decides_at(&self) -> Option<Instant> {
        self.failed_at().or(self.stopped_by)
    }

    fn failed_at(&self) -> Option<Instant> {
        let times = self.failures.iter().map(|failure| failure.decide_at);
        times.min()
    }

    /// What follows from the ends so far. Who misses another often ends before that other one, so
    /// a failure waits for what may be its cause.
    pub fn decide(&mut self, now: Instant) -> Decision {
        if self.stopped_by.is_some_and(|time| now >= time) {
            return Decision::Fail(self.not_stopped());
        }
        let Some(decides_at) = self.failed_at() else {
            let mut awaited = self.ranks.iter().filter(|rank| rank.is_awaited);
            return match awaited.all(|rank| rank.has_ended) {
                true => Decision::Finish,
                false => Decision::Continue,
            };
        };
        if now < decides_at && !self.ranks.iter().all(|rank| rank.has_ended) {
            return Decision::Continue;
        }
        // Of several of a kind, the first.
        match self.failures.drain(..).min_by_key(|failure| failure.kind) {
            Some(cause) => self.failed(cause.reason, now),
            None => Decision::Continue,
        }
    }

    /// The process of `rank` is stopped for the restart of this number. Tells whether it was the
    /// last of all: they start again then, and none meets one that has not stopped yet.
    pub fn stopped(&mut self, rank: u32, restart: u32) -> bool {
        let Some(stopping) = self.ranks.get_mut(rank as usize) else {
            return false;
        };
        if restart != self.restart || std::mem::replace(&mut stopping.is_stopped, true) {
            return false;
        }
        let are_all = self.ranks.iter().all(|rank| rank.is_stopped);
        if are_all {
            self.all_stopped();
        }
        are_all
    }

    /// The processes of all ranks are stopped for the restart that is under way.
    pub fn all_stopped(&mut self) {
        self.stopped_by = None;
    }

    fn not_stopped(&self) -> String {
        let names = self.ranks.iter().filter(|rank| !rank.is_stopped);
        let names: Vec<&str> = names.map(|rank| rank.name.as_str()).collect();
        format!(
            "{} did not stop for a restart within {STOP_TIMEOUT:?}; look at the launcher there",
            names.join(", ")
        )
    }

    /// The launcher of `rank` is gone.
    pub fn lost(&self, rank: u32) -> Decision {
        let name = self
            .ranks
            .get(rank as usize)
            .map_or("a rank", |rank| rank.name.as_str());
        Decision::Fail(format!("{name} is lost: its launcher hung up"))
    }

    fn failed(&mut self, reason: String, now: Instant) -> Decision {
        if self.restarts_left == 0 {
            return Decision::Fail(reason);
        }
        self.restarts_left -= 1;
        self.restart += 1;
        self.stopped_by = Some(now + STOP_TIMEOUT);
        for rank in &mut self.ranks {
            rank.has_ended = false;
            rank.is_stopped = false;
        }
        Decision::Restart(self.restart, reason)
    }
}

impl Rank {
    fn started(name: String, is_awaited: bool) -> Self {
        Self {
            name,
            is_awaited,
            has_ended: false,
            is_stopped: true,
        }
    }
}

impl EndKind {
    /// The kind of an exit status.
    pub fn of(status: std::process::ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match (status.code(), status.signal()) {
            (Some(0), _) => Self::Success,
            (Some(EXIT_UNAVAILABLE), _) => Self::MissesAnother,
            // TensorFlow aborts where a task that it needs is gone.
            (_, Some(signal)) if signal != rustix::process::Signal::ABORT.as_raw() => Self::Killed,
            _ => Self::Failed,
        }
    }

    /// How long a job waits for another end that would explain this one.
    fn patience(self) -> Duration {
        match self {
            Self::Killed | Self::Success => Duration::ZERO,
            Self::Failed => Duration::from_millis(200),
            Self::MissesAnother => Duration::from_secs(3),
        }
    }
}

fn describe(name: &str, end: &End) -> String {
    let mut text = format!("{name} ended ({})", end.how);
    if !end.last_lines.is_empty() {
        text.push_str("; its last lines:\n    ");
        text.push_str(&end.last_lines.join("\n    "));
    }
    text
}

/// Far longer than a launcher takes to end a process, or to see that it does not end.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// `EX_UNAVAILABLE` of `sysexits.h`.
const EXIT_UNAVAILABLE: i32 = 69;

#[cfg(test)]
mod tests {
    use super::*;

    fn end(kind: EndKind) -> End {
        End {
            kind,
            how: "exit status: 3".to_owned(),
            last_lines: vec!["no luck".to_owned()],
        }
    }

    fn two_workers(restarts: u32) -> Gang {
        Gang::new(Roles::new(2, 0, false).unwrap(), restarts)
    }

    #[test]
    fn a_job_is_over_when_all_but_the_servers_are_done() {
        let now = Instant::now();
        let mut gang = Gang::new(Roles::new(3, 1, false).unwrap(), 0);
        for rank in [2, 2, 9] {
            gang.ended(rank, 0, &end(EndKind::Success), now);
            assert_eq!(gang.decide(now), Decision::Continue);
        }
        gang.ended(1, 0, &end(EndKind::Success), now);
        assert_eq!(gang.decide(now), Decision::Finish);
    }

    #[test]
    fn the_first_that_fails_is_named_with_its_last_lines() {
        let now = Instant::now();
        let mut gang = Gang::new(Roles::new(3, 1, false).unwrap(), 0);
        gang.ended(1, 0, &end(EndKind::Failed), now);
        assert_eq!(gang.decide(now), Decision::Continue);
        gang.ended(2, 0, &end(EndKind::Failed), now);
        let Decision::Fail(reason) = gang.decide(gang.decides_at().unwrap()) else {
            panic!("a failure ends the job");
        };
        assert!(reason.contains("rank 1 (worker:0)"), "{reason}");
        assert!(
            reason.contains("exit status: 3") && reason.contains("no luck"),
            "{reason}"
        );
        assert!(matches!(gang.lost(2), Decision::Fail(reason) if reason.contains("worker:1")));
    }

    #[test]
    fn an_end_that_explains_another_is_the_reason_also_where_it_comes_later() {
        let now = Instant::now();
        let kinds = [EndKind::Killed, EndKind::Failed, EndKind::MissesAnother];
        for (cause, consequence) in [(0, 1), (0, 2), (1, 2)] {
            let mut gang = Gang::new(Roles::new(3, 0, false).unwrap(), 0);
            gang.ended(0, 0, &end(kinds[consequence]), now);
            assert_eq!(gang.decide(now), Decision::Continue);
            gang.ended(1, 0, &end(kinds[cause]), now);
            let decided = gang.decide(now + kinds[cause].patience());
            assert!(matches!(decided, Decision::Fail(reason) if reason.starts_with("rank 1 ")));
        }
        // Nobody is left who could explain it.
        let mut gang = two_workers(0);
        gang.ended(0, 0, &end(EndKind::MissesAnother), now);
        gang.ended(1, 0, &end(EndKind::Success), now);
        assert!(
            matches!(gang.decide(now), Decision::Fail(reason) if reason.starts_with("rank 0 "))
        );
    }

    #[test]
    fn restarts_are_counted_and_ends_of_replaced_processes_mean_nothing() {
        let now = Instant::now();
        let mut gang = two_workers(1);
        gang.ended(0, 0, &end(EndKind::Success), now);
        assert_eq!(gang.decide(now), Decision::Continue);
        gang.ended(1, 0, &end(EndKind::Killed), now);
        assert!(matches!(gang.decide(now), Decision::Restart(1, _)));
        // Rank 0 is ended for the restart, and says so late.
        gang.ended(0, 0, &end(EndKind::Failed), now);
        assert_eq!(gang.decide(now), Decision::Continue);
        gang.ended(0, 1, &end(EndKind::Success), now);
        assert_eq!(gang.decide(now), Decision::Continue);
        gang.ended(1, 1, &end(EndKind::Failed), now);
        assert!(matches!(gang.decide(now), Decision::Fail(_)));
    }

    #[test]
    fn all_start_again_when_the_last_is_stopped() {
        let now = Instant::now();
        let mut gang = two_workers(2);
        for restart in 1..=2 {
            gang.ended(1, restart - 1, &end(EndKind::Killed), now);
            assert!(matches!(gang.decide(now), Decision::Restart(number, _) if number == restart));
            assert!(!gang.stopped(0, restart));
            assert!(!gang.stopped(0, restart));
            assert!(!gang.stopped(1, restart - 1) && !gang.stopped(9, restart));
            assert!(gang.stopped(1, restart));
            assert!(!gang.stopped(1, restart));
        }
    }

    #[test]
    fn who_does_not_stop_for_a_restart_is_named_in_time() {
        let now = Instant::now();
        let mut gang = Gang::new(Roles::new(3, 1, false).unwrap(), 2);
        for restart in 1..=2 {
            gang.ended(1, restart - 1, &end(EndKind::Killed), now);
            assert!(matches!(gang.decide(now), Decision::Restart(..)));
            assert_eq!(gang.decides_at(), Some(now + STOP_TIMEOUT));
            gang.stopped(0, restart);
            gang.stopped(1, restart);
            assert_eq!(gang.decide(now + STOP_TIMEOUT / 2), Decision::Continue);
            if restart == 1 {
                assert!(gang.stopped(2, restart));
                assert_eq!(gang.decides_at(), None);
            }
        }
        let Decision::Fail(reason) = gang.decide(now + STOP_TIMEOUT) else {
            panic!("the others wait for it");
        };
        assert!(
            reason.starts_with("rank 2 (worker:1) did not stop"),
            "{reason}"
        );
    }

    #[test]
    fn exit_statuses_tell_their_kind() {
        use std::os::unix::process::ExitStatusExt;
        let kind = |wait_status| EndKind::of(std::process::ExitStatus::from_raw(wait_status));
        let [kill, segmentation_fault, abort] = [9, 11, 6];
        assert_eq!(kind(0), EndKind::Success);
        assert_eq!(kind(1 << 8), EndKind::Failed);
        assert_eq!(kind(69 << 8), EndKind::MissesAnother);
        assert_eq!(kind(kill), EndKind::Killed);
        assert_eq!(kind(segmentation_fault), EndKind::Killed);
        assert_eq!(kind(abort), EndKind::Failed);
    }
}
