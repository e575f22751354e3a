use grpcxx_transport::LinkLimits;

/// How links over shared memory shall work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShmOptions {
    /// Bounds of each link and of their number.
    pub limits: LinkLimits,
    /// Length of the ring of each direction, in bytes: rounded up to a power of two, and to what is
    /// allowed ([`RING_BYTES_MIN`] to [`RING_BYTES_MAX`]).
    pub ring_bytes: usize,
    /// Payloads of at least this many bytes are lent instead of passing through the ring: those in
    /// shared arenas as they are, others as [`ShmOptions::bounce_arena_bytes`] says.
    pub lend_bytes_min: usize,
    /// Most bytes that one link lends at a time; what is beyond is copied.
    pub lent_bytes_max: usize,
    /// Other payloads of at least this many bytes that lie in huge pages are read by the peer out
    /// of this process, if the system lets it, instead of passing through the ring. `usize::MAX`
    /// neither lets peers read nor reads from them.
    pub show_bytes_min: usize,
    /// Length of the arena into which payloads that lie elsewhere are copied, to be lent to peers
    /// that go on with such memory. All links share it, and what finds no place there passes
    /// through the ring. 0: there is none.
    pub bounce_arena_bytes: usize,
    /// Most address space that memory of peers takes in this process, in bytes, over all
    /// transports. Beyond that links stay where they are, and what is lent of arenas that found no
    /// room is copied out of their files.
    pub mapped_bytes_max: u64,
    /// Processes that have dialled and said nothing; the oldest goes when another comes.
    pub silent_max: usize,
}

impl ShmOptions {
    /// These options with what `change` sets; fields that it leaves alone keep their values.
    ///
    /// ```
    /// use grpcxx_shm::ShmOptions;
    ///
    /// let options = ShmOptions::default().with(|options| options.ring_bytes = 4 << 20);
    /// assert_eq!(options.ring_bytes, 4 << 20);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The length of rings that the options mean.
    pub(crate) fn ring_bytes(&self) -> usize {
        self.ring_bytes
            .clamp(RING_BYTES_MIN, RING_BYTES_MAX)
            .next_power_of_two()
    }
}

impl Default for ShmOptions {
    fn default() -> Self {
        Self {
            limits: LinkLimits::default(),
            ring_bytes: 1 << 20,
            lend_bytes_min: 16 << 10,
            lent_bytes_max: 1 << 30,
            show_bytes_min: 4 << 20,
            bounce_arena_bytes: BOUNCE_ARENA_BYTES_DEFAULT,
            mapped_bytes_max: MAPPED_BYTES_MAX_DEFAULT,
            silent_max: 64,
        }
    }
}

/// Shortest ring.
pub const RING_BYTES_MIN: usize = 16 << 10;

/// Longest ring.
pub const RING_BYTES_MAX: usize = 64 << 20;

/// A sixteenth of what a process has on most machines.
const MAPPED_BYTES_MAX_DEFAULT: u64 = 8 << 40;

/// Address space only, until it is used.
const BOUNCE_ARENA_BYTES_DEFAULT: usize = 256 << 20;
