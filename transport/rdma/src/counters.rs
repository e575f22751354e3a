/// What the RDMA links of one shard have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmaCounters {
    /// Messages sent; several small frames may share one.
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Bytes of the stream that were copied into messages or out of them.
    pub eager_bytes: u64,
    /// Pieces of frames that peers were invited to read.
    pub offers_sent: u64,
    /// Bytes that were read straight into their final memory.
    pub read_bytes: u64,
    /// Reads that began while others were on their way.
    pub reads_beside: u64,
    /// Bytes that were read into staging memory and copied from there.
    pub staged_read_bytes: u64,
    /// Grants that needed a message of their own.
    pub immediates_sent: u64,
    /// Links that ended because of the device or a request.
    pub failures: u64,
    /// Arena memory that is registered, in bytes.
    pub registered_arena_bytes: u64,
    /// Foreign payload that was registered already.
    pub registration_hits: u64,
    /// Foreign payload that was registered for its use.
    pub registration_misses: u64,
    /// Registrations that the system refused; that payload was copied.
    pub registrations_refused: u64,
}
