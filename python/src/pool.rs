//! Memory that arrays had before: for large arrays that come, and for copies that peers may see.
//!
//! New memory costs more than the copy into it, so what an array has left is kept for the next one.

use std::sync::{Mutex, MutexGuard, TryLockError};

use grpcxx_memory::forks;
use grpcxx_memory::{Arena, ArenaOptions, Buffer, BufferMut};

/// An arena that is made at its first use.
struct Pool {
    arena: Mutex<Made>,
    is_shared: bool,
}

enum Made {
    NotYet,
    /// The system did not give the address space, which is not asked for again.
    Refused,
    Arena {
        arena: Box<Arena>,
        /// Of the process that made it. What a child has of it is of no use there.
        generation: u32,
    },
}

impl Pool {
    const fn new(is_shared: bool) -> Self {
        Self {
            arena: Mutex::new(Made::NotYet),
            is_shared,
        }
    }

    fn allocate(&self, bytes: usize) -> Option<BufferMut> {
        let mut made = self.lock()?;
        let is_inherited = made.is_inherited();
        if is_inherited || matches!(*made, Made::NotYet) {
            let options =
                ArenaOptions::share_of_machine(1).with(|options| options.shared = self.is_shared);
            let arena = Arena::new(options).map_or(Made::Refused, |arena| Made::Arena {
                arena: Box::new(arena),
                generation: forks::generation(),
            });
            let before = std::mem::replace(&mut *made, arena);
            if is_inherited {
                // Arrays of the child may lie in it, and threads of the parent may have been at it.
                std::mem::forget(before);
            }
        }
        match &mut *made {
            Made::Arena { arena, .. } => arena.allocate(bytes).ok(),
            Made::NotYet | Made::Refused => None,
        }
    }

    /// The arena, unless another thread has it: after a fork that may be one of the parent's.
    fn lock(&self) -> Option<MutexGuard<'_, Made>> {
        match self.arena.try_lock() {
            Ok(made) => Some(made),
            Err(TryLockError::Poisoned(made)) => Some(made.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Made {
    fn is_inherited(&self) -> bool {
        matches!(self, Self::Arena { generation, .. } if *generation != forks::generation())
    }
}

/// Memory for the data of a tensor that will be one array's alone, if that is worth it.
pub(crate) fn for_array(bytes: u64) -> Option<BufferMut> {
    let bytes = usize::try_from(bytes).ok()?;
    (bytes >= ARRAY_BYTES_MIN).then(|| ARRAYS.allocate(bytes))?
}

/// A copy that processes of this host can be lent, if that is worth it.
pub(crate) fn lendable_copy(data: &[u8]) -> Option<Buffer> {
    if data.len() < LENDABLE_BYTES_MIN {
        return None;
    }
    let mut copy = LENDABLE.allocate(data.len())?;
    copy.copy_from_slice(data);
    Some(copy.freeze())
}

/// Gives memory back to the system if more of it waits than is allowed.
pub(crate) fn settle() {
    if let Some(mut made) = ARRAYS.lock()
        && !made.is_inherited()
        && let Made::Arena { arena, .. } = &mut *made
    {
        arena.reclaim();
        if arena.statistics().idle_bytes > IDLE_BYTES_MAX {
            arena.trim();
        }
    }
}

/// Arrays of this many bytes are copied once, out of the memory of a process of the same host.
pub(crate) const ARRAY_BYTES_MIN: usize = 4 << 20;

/// Links over shared memory lend from here on.
const LENDABLE_BYTES_MIN: usize = 16 << 10;

/// Most memory that waits for arrays to come.
const IDLE_BYTES_MAX: usize = 256 << 20;

static ARRAYS: Pool = Pool::new(false);
static LENDABLE: Pool = Pool::new(true);
