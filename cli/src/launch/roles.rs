use grpcxx_runtime::cluster::TaskId;

use super::LaunchError;

/// Which rank is which task: the first ranks are `ps`, then comes the chief, if there is one, and
/// all others are workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    size: u32,
    ps: u32,
    has_chief: bool,
}

impl Roles {
    /// The roles of `size` ranks.
    ///
    /// # Errors
    /// There are fewer ranks than parameter servers and chief.
    pub fn new(size: u32, ps: u32, has_chief: bool) -> Result<Self, LaunchError> {
        if size == 0 {
            return Err(LaunchError::Contradiction(
                "-n is 0; a job has at least one process".to_owned(),
            ));
        }
        if ps > size || (has_chief && ps == size) {
            return Err(LaunchError::Contradiction(format!(
                "--ps is {ps}{}, but there are only {size} processes",
                if has_chief {
                    " and one more is the chief"
                } else {
                    ""
                }
            )));
        }
        Ok(Self {
            size,
            ps,
            has_chief,
        })
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The task of a rank.
    pub fn task(&self, rank: u32) -> TaskId {
        let chiefs = u32::from(self.has_chief);
        if rank < self.ps {
            TaskId::new(PS, rank)
        } else if rank < self.ps + chiefs {
            TaskId::new("chief", 0)
        } else {
            TaskId::new("worker", rank - self.ps - chiefs)
        }
    }

    /// The task of a rank, as in `ps:0`.
    pub fn name(&self, rank: u32) -> String {
        let task = self.task(rank);
        format!("{}:{}", task.job, task.index)
    }

    /// Whether a job goes on until this rank has ended by itself: parameter servers never do, as
    /// long as there is anybody to serve.
    pub fn is_awaited(&self, rank: u32) -> bool {
        rank >= self.ps || self.ps == self.size
    }
}

const PS: &str = "ps";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_servers_come_first_then_the_chief() {
        let names = |roles: Roles| -> Vec<String> {
            (0..roles.size()).map(|rank| roles.name(rank)).collect()
        };
        let roles = Roles::new(4, 1, true).unwrap();
        assert_eq!(names(roles), ["ps:0", "chief:0", "worker:0", "worker:1"]);
        assert!(!roles.is_awaited(0) && roles.is_awaited(1));
        assert_eq!(
            names(Roles::new(2, 0, false).unwrap()),
            ["worker:0", "worker:1"]
        );
        assert!(Roles::new(2, 2, false).unwrap().is_awaited(1));
        assert!(Roles::new(2, 2, true).is_err());
        assert!(Roles::new(0, 0, false).is_err());
        let text = Roles::new(2, 3, false).unwrap_err().to_string();
        assert!(
            text.contains("--ps is 3") && text.contains("2 processes"),
            "{text}"
        );
    }
}
