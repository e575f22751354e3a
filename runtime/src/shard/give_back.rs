//! When a shard gives memory beyond its arena back to the machine.

use std::time::Duration;

use grpcxx_memory::Arena;
use grpcxx_transport::Time;

/// Gives memory beyond an arena back some time after its use. Nobody wakes the shard when the last
/// of that memory is dropped, so the shard looks while there is any.
#[derive(Debug, Default)]
pub(super) struct GiveBack {
    next: Option<Time>,
}

impl GiveBack {
    /// Gives back what is not in use, if it is time for that.
    pub(super) fn run(&mut self, arena: &mut Arena, now: Time) {
        if !arena.is_beyond() {
            self.next = None;
            return;
        }
        if now >= *self.next.get_or_insert(now + GIVE_BACK_EVERY) {
            self.next = None;
            arena.give_back();
        }
    }

    /// When to look next, if ever.
    pub(super) fn next(&self, arena: &Arena, now: Time) -> Option<Time> {
        (arena.is_beyond()).then(|| self.next.unwrap_or(now + GIVE_BACK_EVERY))
    }
}

/// New pages cost more than a copy, so memory that was used just now waits so long for the next
/// payload.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(1);
