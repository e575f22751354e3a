//! What a shard is run with.

use super::choice::HostKind;
use super::shard_loop::Clock;
use crate::idle::IdlePolicy;

/// How a shard's thread is run.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Name of the thread; the system shows its first 15 bytes.
    pub name: String,
    /// Which host.
    pub kind: HostKind,
    /// CPU to pin the thread to.
    pub cpu: Option<usize>,
    /// What it does while there is nothing to do.
    pub idle: IdlePolicy,
    /// The engine's clock.
    pub clock: Clock,
}
