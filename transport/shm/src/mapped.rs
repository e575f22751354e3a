use std::sync::atomic::{AtomicU64, Ordering};

/// Address space that this process gives to the memory of a peer, until dropped.
#[derive(Debug)]
pub(crate) struct Mapped {
    bytes: u64,
}

impl Mapped {
    /// Takes so many bytes, unless all such memory of this process would take more than
    /// `bytes_max`.
    pub(crate) fn reserve(bytes: u64, bytes_max: u64) -> Option<Self> {
        let sum = |mapped: u64| {
            let sum = mapped.checked_add(bytes)?;
            (sum <= bytes_max).then_some(sum)
        };
        let reserved = MAPPED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        reserved.ok().map(|_| Self { bytes })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        MAPPED_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Address space that memory of peers takes in this process, in bytes, over all transports.
pub fn mapped_bytes() -> u64 {
    MAPPED_BYTES.load(Ordering::Relaxed)
}

/// Why a link stays where it is if there is no room for its memory.
pub(crate) fn no_room(bytes_max: u64) -> String {
    format!(
        "memory of peers takes {} bytes of address space, allowed are {bytes_max}; raise \
         ShmOptions::mapped_bytes_max (GRPCXX_SHM_MAPPED_BYTES_MAX)",
        mapped_bytes()
    )
}

/// Address space is of the process, so all transports count together.
static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);
