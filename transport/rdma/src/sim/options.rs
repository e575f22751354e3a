use std::time::Duration;

use crate::adapter::AdapterLimits;

/// What a [`SimFabric`](super::SimFabric) does to those who use it. A chance is between 0 and 1.
#[derive(Clone, Debug)]
pub struct SimFabricOptions {
    /// All that is random follows from it.
    pub seed: u64,
    /// Least time that a request takes.
    pub latency_min: Duration,
    /// Most time that a request takes, but for its bytes.
    pub latency_max: Duration,
    /// Bytes that one queue carries each second.
    pub bytes_per_second: u64,
    /// How long a request waits for a peer that does not answer.
    pub retry_time: Duration,
    /// Chance, for each request, that the peer does not answer it.
    pub loss_chance: f64,
    /// Chance, for each read, that the peer refuses access.
    pub refusal_chance: f64,
    /// Whether memory of other devices can be registered.
    pub has_dma_buf: bool,
    /// Most memory that one adapter may register, in bytes.
    pub lockable_bytes: usize,
    /// What each device can do.
    pub limits: AdapterLimits,
}

impl SimFabricOptions {
    /// A fabric that never fails.
    pub fn reliable(seed: u64) -> Self {
        Self {
            seed,
            latency_min: Duration::from_micros(2),
            latency_max: Duration::from_micros(8),
            bytes_per_second: 10_000_000_000,
            retry_time: Duration::from_millis(200),
            loss_chance: 0.0,
            refusal_chance: 0.0,
            has_dma_buf: false,
            lockable_bytes: usize::MAX,
            limits: AdapterLimits {
                reads_per_queue: 16,
                requests_per_queue: 1024,
                inline_bytes: 64,
                message_bytes: 1 << 30,
                is_software: false,
            },
        }
    }
}
