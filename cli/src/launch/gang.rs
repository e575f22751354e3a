//! When a job is over: decides from the ends of its processes, and does nothing itself.

use serde::{Deserialize, Serialize};

use super::Roles;

/// How the process of a rank ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Whether it ended with exit code 0.
    pub is_success: bool,
    /// How, in words.
    pub how: String,
    /// Its last lines on standard error.
    pub last_lines: Vec<String>,
}

/// The processes of a job: they run together, are started again together, and end together.
#[derive(Debug)]
pub struct Gang {
    ranks: Vec<Rank>,
    restarts_left: u32,
    restart: u32,
}

#[derive(Debug)]
struct Rank {
    name: String,
    is_awaited: bool,
    has_ended: bool,
}

/// What follows from an end.
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
        let rank = |rank| Rank {
            name: format!("rank {rank} ({})", roles.name(rank)),
            is_awaited: roles.is_awaited(rank),
            has_ended: false,
        };
        Self {
            ranks: (0..roles.size()).map(rank).collect(),
            restarts_left: restarts,
            restart: 0,
        }
    }

    /// A single process, whose launcher looks after the others.
    pub fn alone(name: &str, restarts: u32) -> Self {
        Self {
            ranks: vec![Rank {
                name: name.to_owned(),
                is_awaited: true,
                has_ended: false,
            }],
            restarts_left: restarts,
            restart: 0,
        }
    }

    /// The process of `rank` ended, which had been started again `restart` times. Ends of processes
    /// that were replaced meanwhile mean nothing.
    pub fn ended(&mut self, rank: u32, restart: u32, end: &End) -> Decision {
        let Some(ending) = self.ranks.get_mut(rank as usize) else {
            return Decision::Continue;
        };
        if restart != self.restart || std::mem::replace(&mut ending.has_ended, true) {
            return Decision::Continue;
        }
        if !end.is_success {
            let reason = describe(&ending.name, end);
            return self.failed(reason);
        }
        if self
            .ranks
            .iter()
            .all(|rank| rank.has_ended || !rank.is_awaited)
        {
            Decision::Finish
        } else {
            Decision::Continue
        }
    }

    /// The launcher of `rank` is gone.
    pub fn lost(&mut self, rank: u32) -> Decision {
        let name = self
            .ranks
            .get(rank as usize)
            .map_or("a rank", |rank| rank.name.as_str());
        Decision::Fail(format!("{name} is lost: its launcher hung up"))
    }

    fn failed(&mut self, reason: String) -> Decision {
        if self.restarts_left == 0 {
            return Decision::Fail(reason);
        }
        self.restarts_left -= 1;
        self.restart += 1;
        for rank in &mut self.ranks {
            rank.has_ended = false;
        }
        Decision::Restart(self.restart, reason)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn end(is_success: bool) -> End {
        End {
            is_success,
            how: "exit status: 3".to_owned(),
            last_lines: vec!["no luck".to_owned()],
        }
    }

    #[test]
    fn a_job_is_over_when_all_but_the_servers_are_done() {
        let mut gang = Gang::new(Roles::new(3, 1, false).unwrap(), 0);
        assert_eq!(gang.ended(2, 0, &end(true)), Decision::Continue);
        assert_eq!(gang.ended(2, 0, &end(true)), Decision::Continue);
        assert_eq!(gang.ended(9, 0, &end(true)), Decision::Continue);
        assert_eq!(gang.ended(1, 0, &end(true)), Decision::Finish);
    }

    #[test]
    fn the_first_that_fails_is_named_with_its_last_lines() {
        let mut gang = Gang::new(Roles::new(3, 1, false).unwrap(), 0);
        let Decision::Fail(reason) = gang.ended(1, 0, &end(false)) else {
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
    fn restarts_are_counted_and_ends_of_replaced_processes_mean_nothing() {
        let mut gang = Gang::new(Roles::new(2, 0, false).unwrap(), 1);
        assert_eq!(gang.ended(0, 0, &end(true)), Decision::Continue);
        assert!(matches!(
            gang.ended(1, 0, &end(false)),
            Decision::Restart(1, _)
        ));
        // Rank 0 is ended for the restart, and says so late.
        assert_eq!(gang.ended(0, 0, &end(false)), Decision::Continue);
        assert_eq!(gang.ended(0, 1, &end(true)), Decision::Continue);
        assert!(matches!(gang.ended(1, 1, &end(false)), Decision::Fail(_)));
    }
}
