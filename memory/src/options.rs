use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::{Headroom, control_group};

/// How much memory an [`Arena`](crate::Arena) may hand out, and how it is obtained.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ArenaOptions {
    /// Address space reserved at start, rounded up to whole pages of 4096 bytes; pages are
    /// committed at their first use. At most [`ARENA_BYTES_MAX`].
    pub capacity_bytes: usize,
    /// Ask the kernel for transparent huge pages where it allows them.
    pub huge_pages: bool,
    /// Take memory that other processes can map, and never write, if they are given the descriptor
    /// of [`Buffer::shared_memory`]. They see all of the arena. It keeps its pages.
    ///
    /// [`Buffer::shared_memory`]: crate::Buffer::shared_memory
    pub shared: bool,
    /// Where to take memory beyond the capacity while some is free. It is private in any case, and
    /// [`Arena::give_back`](crate::Arena::give_back) returns it.
    pub headroom: Option<Headroom>,
}

impl ArenaOptions {
    /// These options with what `change` sets; fields that it leaves alone keep their values.
    ///
    /// ```
    /// use grpcxx_memory::ArenaOptions;
    ///
    /// let options = ArenaOptions::default().with(|options| options.capacity_bytes = 64 << 20);
    /// assert_eq!(options.capacity_bytes, 64 << 20);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// An equal part for each of `shards` arenas of [`MEMORY_SHARE_PERCENT`] of the memory that
    /// this process may use: that of the machine, or what its control groups allow, nested ones
    /// too, if that is less.
    ///
    /// [`CAPACITY_BYTES_DEFAULT`] if the system does not tell.
    pub fn share_of_machine(shards: usize) -> Self {
        let usable_bytes = usable_memory_bytes();
        let capacity_bytes = if usable_bytes == 0 {
            CAPACITY_BYTES_DEFAULT
        } else {
            share_bytes(usable_bytes, shards)
        };
        Self {
            capacity_bytes,
            ..Self::default()
        }
    }
}

impl Default for ArenaOptions {
    fn default() -> Self {
        Self {
            capacity_bytes: CAPACITY_BYTES_DEFAULT,
            huge_pages: true,
            shared: false,
            headroom: None,
        }
    }
}

fn share_bytes(usable_bytes: u64, shards: usize) -> usize {
    let share = usable_bytes / 100 * MEMORY_SHARE_PERCENT / shards.max(1) as u64;
    let rounded = share / SHARE_STEP_BYTES * SHARE_STEP_BYTES;
    usize::try_from(rounded)
        .unwrap_or(ARENA_BYTES_MAX)
        .clamp(SHARE_BYTES_MIN, ARENA_BYTES_MAX)
}

/// The memory that this process may use: that of the machine, what its control groups allow, nested
/// ones too, or half of the addresses that it may have (`ulimit -v`), whatever is least. 0 if the
/// system does not tell.
pub fn usable_memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    let physical_bytes = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit.max(1)));
    let limit_bytes = control_group::memory_limit_bytes(Path::new("/"));
    // The other half is for code, stacks, and what is reserved and not used.
    let addresses_bytes = getrlimit(Resource::As).current.map(|bytes| bytes / 2);
    let limits = [limit_bytes, addresses_bytes].into_iter().flatten();
    limits.fold(physical_bytes, u64::min)
}

/// Capacity of an arena if nothing else is said: address space only, until it is used.
pub const CAPACITY_BYTES_DEFAULT: usize = 4 << 30;

/// Largest capacity of one arena; keeps every page number well inside of 31 bits.
pub const ARENA_BYTES_MAX: usize = 1 << 40;

/// Part of the usable memory that all arenas of [`ArenaOptions::share_of_machine`] together may
/// fill.
pub const MEMORY_SHARE_PERCENT: u64 = 75;

const SHARE_STEP_BYTES: u64 = 2 << 20;
const SHARE_BYTES_MIN: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stay_in_their_bounds() {
        assert_eq!(share_bytes(16 << 30, 3) % (2 << 20), 0);
        assert!(share_bytes(16 << 30, 3) <= 4 << 30);
        assert!(share_bytes(16 << 30, 3) > (4 << 30) - (4 << 20));
        assert_eq!(share_bytes(1 << 20, 64), SHARE_BYTES_MIN);
        assert_eq!(share_bytes(u64::MAX, 1), ARENA_BYTES_MAX);
        assert_eq!(share_bytes(16 << 30, 0), share_bytes(16 << 30, 1));
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the operating system")]
    fn the_machine_has_some_memory() {
        let options = ArenaOptions::share_of_machine(1);
        assert!((SHARE_BYTES_MIN..=ARENA_BYTES_MAX).contains(&options.capacity_bytes));
    }
}
