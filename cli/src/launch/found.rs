//! What the environment says about who started this process beside whom.

use super::{Allocation, LaunchError};

/// The place that counts, and what else the environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where this process is; `None` if no launcher has set anything.
    pub place: Option<Place>,
    /// A line about variables that say something else, and are not used.
    pub unused: Option<String>,
}

/// A process among others, as far as the environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A rank, which meets the others.
    Rank(Allocation),
    /// A task that was told all addresses that it needs.
    Told(Told),
}

/// A task by `TF_CONFIG`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The task, as in `worker:0`.
    pub name: String,
    /// Its number among all tasks, if it is one of them and all are known.
    pub rank: Option<u32>,
    /// How many tasks there are, if all are known.
    pub size: Option<u32>,
    /// `TF_CONFIG` for the program, where the one that is set does not say what a program reads.
    pub tf_config: Option<String>,
    /// Whether no cluster was told.
    pub is_alone: bool,
}

impl Place {
    /// Who says it.
    pub fn launcher(&self) -> &'static str {
        match self {
            Self::Rank(allocation) => allocation.launcher.name(),
            Self::Told(_) => TF_CONFIG,
        }
    }
}

impl Told {
    /// Compares the number of tasks with the one that was `asked` for.
    ///
    /// # Errors
    /// They differ.
    pub fn check_size(&self, asked: Option<u32>) -> Result<(), LaunchError> {
        match (self.size, asked) {
            (Some(told), Some(asked)) if told != asked => {
                let of = match self.is_alone {
                    true => "has no cluster, so this process is alone".to_owned(),
                    false => format!("has a cluster of {told}"),
                };
                Err(LaunchError::Contradiction(format!(
                    "-n is {asked}, but {TF_CONFIG} {of}; leave -n out, or say --launcher local \
                     to start {asked} on this host"
                )))
            }
            _ => Ok(()),
        }
    }
}

pub(super) const TF_CONFIG: &str = "TF_CONFIG";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_number_of_processes_is_refused() {
        let mut told = Told {
            name: "worker:0".to_owned(),
            rank: Some(0),
            size: Some(2),
            tf_config: None,
            is_alone: false,
        };
        assert!(told.check_size(None).is_ok() && told.check_size(Some(2)).is_ok());
        let text = told.check_size(Some(3)).unwrap_err().to_string();
        assert!(
            text.contains("-n is 3") && text.contains("cluster of 2"),
            "{text}"
        );
        told.size = None;
        assert!(told.check_size(Some(3)).is_ok());
    }
}
