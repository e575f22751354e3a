/// A description of a cluster that cannot be used: where, what was found, and what to write
/// instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: found `{found}`; {wanted}")]
pub struct ClusterError {
    /// Which part.
    pub place: String,
    /// What is there, shortened.
    pub found: String,
    /// What to do.
    pub wanted: String,
}

impl ClusterError {
    pub(super) fn new(place: String, found: &str, wanted: &str) -> Self {
        let mut shown: String = found.chars().take(SHOWN_CHARS_MAX).collect();
        if shown.len() < found.len() {
            shown.push('…');
        }
        Self {
            place,
            found: shown,
            wanted: wanted.to_owned(),
        }
    }
}

/// How much of what was found an error repeats.
const SHOWN_CHARS_MAX: usize = 80;
