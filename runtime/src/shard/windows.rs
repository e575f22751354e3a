//! How much of the arena bytes get that a peer has announced: what has come of them, and a window
//! for the next.

use std::fmt;

use grpcxx_memory::{Arena, BufferMut, OutOfMemory};
use grpcxx_rpc::{Code, Reason, Status};

/// Memory for `announced_bytes`, of which so many have come: for all of them, or for those and a
/// first window.
#[inline]
pub(super) fn begin(
    arena: &mut Arena,
    announced_bytes: u64,
    there_bytes: usize,
) -> Result<BufferMut, Status> {
    let whole_len = usize::try_from(announced_bytes).unwrap_or(usize::MAX);
    if whole_len <= SCARCE_WINDOW_BYTES || there_bytes >= whole_len {
        return arena.allocate(whole_len).map_err(refusal);
    }
    arena.check_announced(whole_len).map_err(refusal)?;
    let window_bytes = match arena.is_scarce() {
        false => FIRST_WINDOW_BYTES,
        true => SCARCE_WINDOW_BYTES,
    };
    let first_len = |window_bytes| there_bytes.saturating_add(window_bytes).min(whole_len);
    match arena.reserve(whole_len, first_len(window_bytes)) {
        Some(memory) => Ok(memory),
        // Too much is reserved by others: a small piece, which is copied once when it is full.
        None => (arena.allocate(first_len(SCARCE_WINDOW_BYTES))).map_err(refusal),
    }
}

/// As [`begin`], of what the machine has free beyond the arena, which others have a share of.
#[cold]
pub(super) fn begin_beyond(
    arena: &mut Arena,
    announced_bytes: u64,
    there_bytes: usize,
) -> Result<BufferMut, Status> {
    let whole_len = usize::try_from(announced_bytes).unwrap_or(usize::MAX);
    let first_len = there_bytes
        .saturating_add(SCARCE_WINDOW_BYTES)
        .min(whole_len);
    arena
        .begin_beyond(whole_len, first_len)
        .map_err(|error| match error.beyond {
            Some(shortage) => refused(&shortage),
            None => refusal(error),
        })
}

/// Longer memory in place of memory that is full, of which `whole_len` bytes are announced.
pub(super) fn grow(
    arena: &mut Arena,
    memory: BufferMut,
    whole_len: usize,
) -> Result<BufferMut, Status> {
    let window_bytes = memory
        .len()
        .saturating_mul(WINDOW_GROWTH)
        .min(WINDOW_BYTES_MAX);
    let len = memory.len().saturating_add(window_bytes).min(whole_len);
    arena.grow(memory, len, whole_len).map_err(refusal)
}

fn refusal(error: OutOfMemory) -> Status {
    refused(&error)
}

fn refused(why: &dyn fmt::Display) -> Status {
    let text = format!("{why}; send less at once, or raise GRPCXX_ARENA_BYTES of the receiver");
    Status::new(Code::ResourceExhausted, text).because(Reason::Memory)
}

/// The first window: as long as what one receive takes at most, so that it costs none.
const FIRST_WINDOW_BYTES: usize = 1 << 20;

/// The first window while the arena is scarce or much of it is reserved; what is shorter gets all
/// of its memory at once.
const SCARCE_WINDOW_BYTES: usize = 64 << 10;

/// Windows are so many times as long as what has come...
const WINDOW_GROWTH: usize = 3;

/// ...up to this.
const WINDOW_BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use grpcxx_memory::ArenaOptions;

    use super::*;

    fn arena(capacity_bytes: usize) -> Arena {
        Arena::new(ArenaOptions::default().with(|options| options.capacity_bytes = capacity_bytes))
            .expect("address space")
    }

    #[test]
    fn memory_follows_the_bytes_that_have_come() {
        let mut arena = arena(512 << 20);
        let mut memory = begin(&mut arena, 60 << 20, 1000).unwrap();
        let mut lengths = vec![memory.len()];
        while memory.len() < 60 << 20 {
            let start = memory.as_ptr();
            memory = grow(&mut arena, memory, 60 << 20).unwrap();
            assert_eq!(memory.as_ptr(), start, "it grows in place");
            assert!(memory.len() <= 4 * lengths[lengths.len() - 1]);
            lengths.push(memory.len());
        }
        assert_eq!(lengths[0], (1 << 20) + 1000);
        assert!(lengths.len() <= 10, "{lengths:?}");
    }

    #[test]
    fn what_is_short_or_there_has_all_of_its_memory() {
        let mut arena = arena(16 << 20);
        for (announced_bytes, there_bytes) in [(1, 0), (64 << 10, 0), (8 << 20, 8 << 20)] {
            let memory = begin(&mut arena, announced_bytes, there_bytes).unwrap();
            assert_eq!(memory.len() as u64, announced_bytes);
        }
        assert_eq!(arena.statistics().reserved_bytes, 0);
    }

    #[test]
    fn announcements_of_many_leave_room_for_others() {
        let mut arena = arena(64 << 20);
        for announced_bytes in [600 << 10, 2 << 20, 15 << 20, 32 << 20, 1 << 40] {
            let announced: Vec<BufferMut> = (0..105)
                .map(|_| begin(&mut arena, announced_bytes, 0).expect("a window"))
                .collect();
            assert!(arena.statistics().in_use_bytes <= 24 << 20);
            assert!(begin(&mut arena, 1000, 0).is_ok());
            let mut honest = begin(&mut arena, 24 << 20, 0).unwrap();
            while honest.len() < 24 << 20 {
                honest = grow(&mut arena, honest, 24 << 20).unwrap();
            }
            drop(announced);
        }
    }
}
