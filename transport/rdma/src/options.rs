use std::time::Duration;

use grpcxx_transport::LinkLimits;

use crate::blob::{SLOT_BYTES_MAX, SLOT_BYTES_MIN};
use crate::credits::CreditLimits;

/// How RDMA links shall work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaOptions {
    /// Which device; the first one with an active port if `None`.
    pub device: Option<String>,
    /// Which port; the first active one if `None`.
    pub port: Option<u8>,
    /// Which entry of the port's table of global identifiers; if `None` the first of RoCE version 2
    /// with an IPv4 address, else the first of version 2, else the first.
    pub gid_index: Option<u8>,
    /// Bounds of each link and of their number.
    pub limits: LinkLimits,
    /// What each link posts for its peer.
    pub credits: CreditLimits,
    /// Length of a message: small frames are put together up to it.
    pub message_bytes: usize,
    /// Payload of this length and more is announced and read by the peer; shorter is copied into
    /// messages.
    pub offer_bytes_min: usize,
    /// Payload is read in requests of this length.
    pub chunk_bytes: usize,
    /// Reads of one link that are on their way at a time.
    pub reads: u8,
    /// Most arena memory that is registered; lowered by itself where less may be locked.
    pub registered_bytes: usize,
    /// Foreign memory shorter than this is copied rather than registered.
    pub foreign_bytes_min: usize,
    /// Most foreign memory that is registered at a time.
    pub foreign_bytes: usize,
    /// Most foreign tensors that are registered at a time.
    pub foreign_entries: usize,
    /// How long the device waits for an answer of the peer: 4.096 us times two to the power of
    /// this.
    pub timeout: u8,
    /// How often the device asks again before it gives the link up.
    pub retries: u8,
    /// How long a link that closes may take to get its frames to the peer.
    pub flush_timeout: Duration,
    /// Entries of a completion queue; links that have no room in one get a further one.
    pub completion_entries: u32,
}

impl RdmaOptions {
    /// These options with what `change` sets; fields that it leaves alone keep their values.
    ///
    /// ```
    /// use grpcxx_rdma::RdmaOptions;
    ///
    /// let options = RdmaOptions::default().with(|options| options.reads = 8);
    /// assert_eq!(options.reads, 8);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The options with every number in its bounds.
    pub fn checked(mut self) -> Self {
        self.message_bytes = self.message_bytes.clamp(SLOT_BYTES_MIN, SLOT_BYTES_MAX);
        self.offer_bytes_min = self.offer_bytes_min.max(1);
        self.chunk_bytes = self.chunk_bytes.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
        self.reads = self.reads.max(1);
        self.timeout = self.timeout.clamp(1, 31);
        self.retries = self.retries.min(7);
        if !self.credits.are_valid() {
            self.credits = CreditLimits::default();
        }
        self
    }
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            device: None,
            port: None,
            gid_index: None,
            limits: LinkLimits::default(),
            credits: CreditLimits::default(),
            message_bytes: 8 << 10,
            offer_bytes_min: 8 << 10,
            chunk_bytes: 4 << 20,
            reads: 16,
            registered_bytes: 1 << 30,
            foreign_bytes_min: 64 << 10,
            foreign_bytes: 256 << 20,
            foreign_entries: 128,
            timeout: 14,
            retries: 7,
            flush_timeout: Duration::from_secs(2),
            completion_entries: 4096,
        }
    }
}

const CHUNK_BYTES_MIN: usize = 4 << 10;

/// Below the largest message that verbs allow, 2 GiB.
const CHUNK_BYTES_MAX: usize = 1 << 30;
