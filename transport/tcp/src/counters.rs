/// What a transport has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpCounters {
    /// Bytes received through staging memory and copied from there.
    pub staged_bytes: u64,
    /// Bytes that the kernel put straight into their final memory.
    pub direct_bytes: u64,
    /// Bytes that the kernel took from where they lay.
    pub sent_bytes: u64,
    /// Send operations that took at least one byte.
    pub sends: u64,
    /// Receive operations that brought at least one byte.
    pub receives: u64,
    /// Calls of `io_uring_enter` or `epoll_wait`.
    pub polls: u64,
    /// Receives that found all staging buffers in use and were repeated.
    pub staging_exhausted: u64,
    /// Connections that peers have made to our listeners.
    pub accepted: u64,
    /// Times that a listener had to wait because the system was out of descriptors or memory.
    pub accept_stalls: u64,
}
