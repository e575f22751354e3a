//! The name of a task that the peer of a link has proven.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A task of a cluster, as a certificate names it: `grpcxx://cluster/job/index`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerName {
    /// The cluster, which its certificates agree on.
    pub cluster: Arc<str>,
    /// The job, as in the ClusterSpec: `ps`.
    pub job: Arc<str>,
    /// The index of the task in its job.
    pub index: u32,
}

/// A text that names no task of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not `grpcxx://cluster/job/index` (parts of 1 to {PART_BYTES_MAX} letters, digits, \
     `_`, `-` and `.`, and a number)"
)]
pub struct NoPeerName {
    text: String,
}

impl FromStr for PeerName {
    type Err = NoPeerName;

    fn from_str(text: &str) -> Result<Self, NoPeerName> {
        let name = || {
            let mut parts = text.strip_prefix(SCHEME)?.split('/');
            let (cluster, job, index) = (parts.next()?, parts.next()?, parts.next()?);
            let is_whole = parts.next().is_none() && is_part(cluster) && is_part(job);
            let has_digits = index.bytes().all(|byte| byte.is_ascii_digit());
            (is_whole && has_digits).then_some(())?;
            Some(Self {
                cluster: cluster.into(),
                job: job.into(),
                index: index.parse().ok()?,
            })
        };
        name().ok_or_else(|| NoPeerName {
            text: text.chars().take(TEXT_CHARS_MAX).collect(),
        })
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cluster,
            job,
            index,
        } = self;
        write!(f, "{SCHEME}{cluster}/{job}/{index}")
    }
}

/// Whether a text may name a cluster or a job.
fn is_part(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (1..=PART_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

const SCHEME: &str = "grpcxx://";

/// Longest name of a cluster or a job.
const PART_BYTES_MAX: usize = 128;

/// How much of a wrong text its error shows.
const TEXT_CHARS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tasks_parse_and_print() {
        let name: PeerName = "grpcxx://blue-1/ps/12".parse().unwrap();
        assert_eq!(
            (&*name.cluster, &*name.job, name.index),
            ("blue-1", "ps", 12)
        );
        assert_eq!(name.to_string(), "grpcxx://blue-1/ps/12");
    }

    #[test]
    fn other_texts_are_no_names() {
        let long = format!("grpcxx://{}/ps/0", "c".repeat(PART_BYTES_MAX + 1));
        for text in [
            "",
            "grpcxx://",
            "grpcxx://c/ps",
            "grpcxx://c/ps/0/1",
            "grpcxx://c//0",
            "grpcxx:///ps/0",
            "grpcxx://c/ps/x",
            "grpcxx://c/ps/+1",
            "grpcxx://c/ps/",
            "grpcxx://c/ps/4294967296",
            "grpcxx://c\u{7}/ps/0",
            "https://c/ps/0",
            &long,
        ] {
            let error = text.parse::<PeerName>().unwrap_err().to_string();
            assert!(error.contains("grpcxx://cluster/job/index"), "{error}");
        }
    }
}
