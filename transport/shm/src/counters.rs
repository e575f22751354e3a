/// What links over shared memory have done since their transport was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmCounters {
    /// Bytes copied into rings.
    pub copied_bytes: u64,
    /// Bytes lent to peers instead of being copied.
    pub lent_bytes: u64,
    /// Of those, the bytes that were copied into an arena for that.
    pub bounced_bytes: u64,
    /// Bytes that peers were to copy out of this process themselves.
    pub shown_bytes: u64,
    /// Bytes copied out of rings, out of what was lent, or out of another process.
    pub received_bytes: u64,
    /// Of those, the bytes copied out of another process.
    pub seen_bytes: u64,
    /// Bytes that were received without any copy.
    pub borrowed_bytes: u64,
    /// Times that a sleeping peer was woken.
    pub wakes: u64,
    /// Links opened, or moved to shared memory.
    pub links: u64,
    /// Links that should have moved to shared memory and stayed where they were.
    pub failures: u64,
    /// Links that stayed where they were because their peer is on another host.
    pub elsewhere: u64,
    /// Connections that were turned away, of other users or with garbage.
    pub refused: u64,
}
