//! Memory that an arena has beyond its capacity.

use crate::headroom::{Loan, Need};
use crate::options::{ARENA_BYTES_MAX, ArenaOptions};
use crate::{Arena, BufferMut, Headroom, Shortage};

/// What an arena takes of what is free of the machine: a second arena, of addresses for all memory
/// of the machine, that is there while something lies in it.
///
/// It is private, so that its pages can be given back, and so that peers which map the first one
/// pay nothing for it.
pub(crate) struct Beyond {
    headroom: Headroom,
    huge_pages: bool,
    made: Option<Made>,
}

struct Made {
    arena: Arena,
    loan: Loan,
}

impl Beyond {
    pub(crate) fn new(headroom: Headroom, huge_pages: bool) -> Self {
        Self {
            headroom,
            huge_pages,
            made: None,
        }
    }

    /// Whether the memory lies here.
    pub(crate) fn has(&self, memory: &BufferMut) -> bool {
        self.made
            .as_ref()
            .is_some_and(|made| made.arena.has(memory))
    }

    /// As [`Arena::allocate`].
    pub(crate) fn allocate(&mut self, len: usize) -> Result<BufferMut, Shortage> {
        self.take(len, len, |arena| arena.allocate(len).ok())
    }

    /// As [`Arena::reserve`], or a first part without a reservation.
    pub(crate) fn begin(&mut self, whole_len: usize, len: usize) -> Result<BufferMut, Shortage> {
        self.take(len, whole_len, |arena| {
            let reserved = arena.reserve(whole_len, len);
            reserved.or_else(|| arena.allocate(len).ok())
        })
    }

    /// Makes memory longer that lies here.
    pub(crate) fn grow(
        &mut self,
        memory: BufferMut,
        len: usize,
        whole_len: usize,
    ) -> Result<BufferMut, Shortage> {
        let more_bytes = len - memory.len();
        self.take(more_bytes, whole_len, |arena| {
            arena.grow(memory, len, whole_len).ok()
        })
    }

    /// Longer memory with these bytes at its start, which lie elsewhere.
    pub(crate) fn grow_from(
        &mut self,
        first: &[u8],
        len: usize,
        whole_len: usize,
    ) -> Result<BufferMut, Shortage> {
        self.take(len, whole_len, |arena| {
            arena.grow_elsewhere(first, len, whole_len).ok()
        })
    }

    /// Checks that there is enough for so many bytes, which are announced.
    pub(crate) fn check(&self, whole_len: usize) -> Result<(), Shortage> {
        let whole_bytes = whole_len as u64;
        if whole_bytes <= self.headroom.step_bytes() {
            return Ok(());
        }
        let used_bytes = self.used_bytes() as u64;
        let more_bytes = (used_bytes.saturating_add(whole_bytes)).saturating_sub(self.lent_bytes());
        self.headroom.check(more_bytes, self.made.is_some())?;
        Ok(())
    }

    /// What it was lent of the machine.
    pub(crate) fn lent_bytes(&self) -> u64 {
        self.made.as_ref().map_or(0, |made| made.loan.bytes())
    }

    /// Bytes of it that are handed out.
    pub(crate) fn used_bytes(&self) -> usize {
        (self.made.as_ref()).map_or(0, |made| made.arena.statistics().in_use_bytes)
    }

    /// What could be handed out now.
    pub(crate) fn free_bytes(&self) -> u64 {
        let more_bytes = self.headroom.check(0, self.made.is_some()).unwrap_or(0);
        more_bytes + self.lent_bytes().saturating_sub(self.used_bytes() as u64)
    }

    /// All memory of the machine.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.headroom.usable_bytes()
    }

    /// Blocks of it that are handed out.
    pub(crate) fn blocks(&self) -> usize {
        (self.made.as_ref()).map_or(0, |made| made.arena.statistics().blocks)
    }

    /// Whether it has memory of the machine.
    pub(crate) fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// Takes home all blocks that were given back, and says how many.
    pub(crate) fn reclaim(&mut self) -> usize {
        (self.made.as_mut()).map_or(0, |made| made.arena.reclaim())
    }

    /// Gives the memory that is not in use back to the machine.
    pub(crate) fn give_back(&mut self) {
        self.reclaim();
        if self.used_bytes() == 0 {
            self.made = None;
        }
        let step_bytes = self.headroom.step_bytes();
        if let Some(Made { arena, loan }) = &mut self.made {
            if arena.statistics().idle_bytes as u64 >= step_bytes {
                arena.trim();
            }
            loan.lower_to(arena.statistics().in_use_bytes as u64);
        }
    }

    /// Takes memory of at least `len` bytes, as part of `whole_len`, and has it lent.
    fn take(
        &mut self,
        len: usize,
        whole_len: usize,
        take: impl FnOnce(&mut Arena) -> Option<BufferMut>,
    ) -> Result<BufferMut, Shortage> {
        // What is refused in any case is not mapped before.
        if self.made.is_none() {
            self.headroom.check(len as u64, false)?;
            self.made = Some(Made {
                arena: self.reserve(whole_len)?,
                loan: self.headroom.open(),
            });
        }
        let made = self.made.as_mut().ok_or(Shortage::AddressSpace)?;
        let memory = take(&mut made.arena).ok_or(Shortage::AddressSpace)?;
        let need = Need {
            whole_bytes: whole_len as u64,
            rest_bytes: whole_len.saturating_sub(memory.len()) as u64,
        };
        // Pages that were not touched yet cost nothing, so it is early enough to ask for them now.
        if made.loan.raise_to(made.used_bytes(), need).is_ok() {
            return Ok(memory);
        }
        made.arena.reclaim();
        let raised = made.loan.raise_or_return(made.used_bytes(), need);
        let Err((shortage, returning)) = raised else {
            return Ok(memory);
        };
        // Others, which do not fit beside it, need not wait until the shard gives back.
        drop(memory);
        self.give_back();
        drop(returning);
        Err(shortage)
    }

    /// Addresses for all memory of the machine; for less, if the system refuses so many.
    fn reserve(&self, whole_len: usize) -> Result<Arena, Shortage> {
        let usable_bytes = usize::try_from(self.headroom.usable_bytes()).unwrap_or(usize::MAX);
        let mut capacity_bytes = usable_bytes.clamp(CAPACITY_BYTES_MIN, ARENA_BYTES_MAX);
        loop {
            let options = ArenaOptions::default().with(|options| {
                options.capacity_bytes = capacity_bytes;
                options.huge_pages = self.huge_pages;
            });
            if let Ok(arena) = Arena::new(options) {
                return Ok(arena);
            }
            capacity_bytes /= 2;
            if capacity_bytes < whole_len.max(CAPACITY_BYTES_MIN) {
                return Err(Shortage::AddressSpace);
            }
        }
    }
}

impl Made {
    fn used_bytes(&self) -> u64 {
        self.arena.statistics().in_use_bytes as u64
    }
}

/// Less is not worth a mapping of its own.
const CAPACITY_BYTES_MIN: usize = 64 << 20;

#[cfg(all(test, not(any(miri, loom))))]
mod tests;
