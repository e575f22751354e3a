//! The executor of the glommio host.

use std::panic::catch_unwind;
use std::time::Duration;

use glommio::{LocalExecutor, LocalExecutorBuilder, Placement};

use crate::blame::panic_text;

/// An executor for the calling thread, which may be pinned already.
pub(super) fn executor() -> Result<LocalExecutor, String> {
    let make = || {
        LocalExecutorBuilder::new(Placement::Unbound)
            .io_memory(IO_MEMORY_BYTES)
            .ring_depth(RING_DEPTH)
            .preempt_timer(NO_PREEMPTION)
            .make()
    };
    match catch_unwind(make) {
        Ok(Ok(executor)) => Ok(executor),
        Ok(Err(error)) => Err(error.to_string()),
        Err(payload) => Err(panic_text(payload.as_ref()).to_owned()),
    }
}

/// Longer than anything runs on, and far from where a timer would overflow.
const NO_PREEMPTION: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Memory for glommio's own direct input and output; the shard's does not come from here.
const IO_MEMORY_BYTES: usize = 64 << 10;
/// Entries of each of glommio's three rings.
const RING_DEPTH: usize = 128;
