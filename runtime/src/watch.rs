//! Who hears what becomes of a request.

/// Hears what becomes of a request that a service has taken. The engine lets go of it once the
/// request is over.
///
/// Runs on the shard's thread and must not block.
pub trait RequestWatch: Send + Sync {
    /// Nobody wants the answer any more: the peer gave the request up, its deadline is over, or the
    /// connection is gone. Comes at most once, and not behind the answer.
    fn withdrawn(&self) {}

    /// The answer has left to its last byte. Never comes for an answer that was lost.
    fn delivered(&self) {}
}
