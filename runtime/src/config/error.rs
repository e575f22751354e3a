//! What is odd or wrong with the environment.

use std::fmt;

/// Something that was read but probably not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// What is odd and what is done about it.
    pub message: String,
}

/// Everything that is wrong with the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// One message for each problem, in the order of the table.
    pub problems: Vec<String>,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [problem] => f.write_str(problem),
            problems => {
                write!(f, "{} settings are wrong:", problems.len())?;
                problems
                    .iter()
                    .try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl std::error::Error for ConfigError {}
