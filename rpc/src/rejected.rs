use std::fmt;

use crate::Status;

/// A value that was not accepted, handed back unchanged, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected<T> {
    /// The value, unchanged.
    pub value: T,
    /// Why it came back, and what to do.
    pub status: Status,
}

impl<T> From<Rejected<T>> for Status {
    fn from(rejected: Rejected<T>) -> Self {
        rejected.status
    }
}

impl<T> fmt::Display for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for Rejected<T> {}
