/// Bounds of a [`Rendezvous`](crate::Rendezvous). Whatever would go beyond one is refused with
/// `RESOURCE_EXHAUSTED` and a text that names the field; so is what goes beyond 2^32 keys, or waits
/// for keys, of all steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RendezvousLimits {
    /// Most steps in which something waits: a tensor or a receiver.
    pub steps: usize,
    /// Most keys of one step for which something waits.
    pub keys_per_step: usize,
    /// Longest key, in bytes.
    pub key_bytes: usize,
    /// Most keys of one request.
    pub keys_per_request: usize,
    /// Most requests that wait, or whose outcome was not taken yet.
    pub waiters: usize,
    /// Most requests that wait for the same key; more than one is an asker that repeats itself.
    pub waiters_per_key: usize,
    /// Most bytes of data in tensors that wait for a receiver.
    pub stored_bytes: u64,
    /// How many aborted and cleaned steps are remembered, so that what comes late for them fails at
    /// once. When there are more, the one closed first is forgotten.
    pub closed_steps: usize,
}

impl RendezvousLimits {
    /// These limits with what `change` sets; fields that it leaves alone keep their values.
    ///
    /// ```
    /// use grpcxx_rpc::RendezvousLimits;
    ///
    /// let limits = RendezvousLimits::default().with(|limits| limits.steps = 1024);
    /// assert_eq!(limits.steps, 1024);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for RendezvousLimits {
    fn default() -> Self {
        Self {
            // A step may hold as little as one request.
            steps: 65_536,
            keys_per_step: 65_536,
            // Names on the wire carry a 16-bit length.
            key_bytes: 65_535,
            // One record per key, and a frame takes two fragments per record of at most 65,535.
            keys_per_request: 32_767,
            waiters: 65_536,
            waiters_per_key: 64,
            stored_bytes: 64 << 30,
            closed_steps: 4096,
        }
    }
}
