//! The variables that launchers set, as texts.

use std::collections::BTreeMap;

use super::LaunchError;

/// The variables of a process.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// The variables of this process. A value that is no UTF-8 is kept with marks in it, which no
    /// number and no name has.
    pub fn of_process() -> Self {
        let variables = std::env::vars_os().map(|(name, value)| {
            let text = |part: std::ffi::OsString| part.to_string_lossy().into_owned();
            (text(name), text(value))
        });
        Self {
            variables: variables.collect(),
        }
    }

    /// The value of `name`, if it is set and not empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        let value = self.variables.get(name)?.trim();
        (!value.is_empty()).then_some(value)
    }

    /// The number in `name`, if it is set.
    pub(super) fn number(&self, name: &'static str) -> Result<Option<u32>, LaunchError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| LaunchError::Value {
            name,
            value: text.chars().take(VALUE_CHARS_MAX).collect(),
            allowed: "a number from 0 to 4294967295".to_owned(),
        })
    }

    /// Rank and size, which come together or not at all.
    pub(super) fn rank_of(
        &self,
        launcher: &'static str,
        rank: &'static str,
        size: &'static str,
    ) -> Result<Option<(u32, u32)>, LaunchError> {
        let half = |set, missing| LaunchError::Half {
            launcher,
            set,
            missing,
        };
        match (self.number(rank)?, self.number(size)?) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(half(rank, size)),
            (None, Some(_)) => Err(half(size, rank)),
            (Some(found), Some(of)) if found < of && of <= RANKS_MAX => Ok(Some((found, of))),
            (Some(_), Some(of)) if of > RANKS_MAX => Err(LaunchError::Value {
                name: size,
                value: of.to_string(),
                allowed: format!("at most {RANKS_MAX} ranks"),
            }),
            (Some(found), Some(of)) => Err(LaunchError::Contradiction(format!(
                "{rank} is {found}, but {size} is {of}: ranks count from 0 and stay below the size"
            ))),
        }
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Environment {
    fn from_iter<T: IntoIterator<Item = (&'a str, &'a str)>>(variables: T) -> Self {
        let owned = variables
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            variables: owned.collect(),
        }
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(variables: [(&str, &str); N]) -> Self {
        variables.into_iter().collect()
    }
}

/// Most processes that find each other.
pub const RANKS_MAX: u32 = 4096;
/// Most letters of a wrong value that an error shows.
const VALUE_CHARS_MAX: usize = 80;
