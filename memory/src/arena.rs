#![expect(unsafe_code, reason = "a place in the arena becomes a buffer")]

use std::{fmt, io};

use crate::BufferMut;
use crate::block::Pool;
use crate::mapping::PAGE_BYTES;
use crate::options::{ARENA_BYTES_MAX, ArenaOptions};
use crate::places::Places;
use crate::region::Region;
use crate::slabs::Slabs;
use crate::together;

/// The memory of one shard.
///
/// Allocates on the thread that owns it; the buffers may be dropped on any thread, also after the arena.
/// An arena moves between threads but is never shared:
/// ```compile_fail
/// fn shared<T: Clone>() {}
/// shared::<grpcxx_memory::Arena>();
/// ```
pub struct Arena {
    pool: Pool,
    places: Places,
    statistics: ArenaStatistics,
    in_use_bytes_max_since_trim: usize,
    keeps_pages: bool,
}

/// What an [`Arena`] has handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStatistics {
    /// Bytes of the whole arena.
    pub capacity_bytes: usize,
    /// Bytes of the blocks handed out, rounded up as they are. A block counts until the arena has looked at what
    /// came back, which it does in every allocation and in [`Arena::reclaim`].
    pub in_use_bytes: usize,
    /// Most bytes in use at one time.
    pub peak_bytes: usize,
    /// Bytes that were in use since the last [`Arena::trim`] and no longer are: about what a trim would give back.
    pub idle_bytes: usize,
    /// Blocks handed out, counted as `in_use_bytes`.
    pub blocks: usize,
    /// Requests that found no place.
    pub failed_allocations: u64,
}

/// An allocation that the arena could not serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "arena of {capacity_bytes} bytes has no block of {requested_bytes} bytes left ({in_use_bytes} bytes in use)"
)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested_bytes: usize,
    /// Bytes handed out when the request came.
    pub in_use_bytes: usize,
    /// Bytes of the whole arena.
    pub capacity_bytes: usize,
}

impl Arena {
    /// Reserves the arena's address space.
    ///
    /// # Errors
    /// The operating system refused the mapping, or the capacity is zero or above [`ARENA_BYTES_MAX`]. Where the
    /// kernel never overcommits (`vm.overcommit_memory=2`), the whole capacity counts as used from the start. For
    /// shared memory the system must have `memfd_create` and `/proc`.
    pub fn new(options: ArenaOptions) -> io::Result<Self> {
        let capacity_bytes = options.capacity_bytes;
        if capacity_bytes == 0 || capacity_bytes > ARENA_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "arena capacity is {capacity_bytes} bytes, allowed are 1 to {ARENA_BYTES_MAX}"
                ),
            ));
        }
        let page_count = capacity_bytes.div_ceil(PAGE_BYTES) as u32;
        let slab_count = Slabs::count_max(page_count);
        Ok(Self {
            pool: Pool::new(page_count, slab_count, &options)?,
            places: Places::new(page_count),
            statistics: ArenaStatistics {
                capacity_bytes: page_count as usize * PAGE_BYTES,
                ..ArenaStatistics::default()
            },
            in_use_bytes_max_since_trim: 0,
            keeps_pages: false,
        })
    }

    /// Takes `len` bytes of initialised memory with unspecified content: zeros, or what was there before.
    ///
    /// The memory is aligned to 64 bytes, from 4096 bytes on to 4096. Blocks are rounded up: to a power of two up
    /// to 2 KiB, to pages and by at most an eighth above. Nothing is allocated on the heap.
    ///
    /// # Errors
    /// No free block is large enough.
    #[inline]
    pub fn allocate(&mut self, len: usize) -> Result<BufferMut, OutOfMemory> {
        if len == 0 {
            return Ok(BufferMut::new());
        }
        self.reclaim_up_to(RECLAIMED_PER_ALLOCATION);
        let place = match self.places.allocate(len) {
            Some(place) => place,
            None => {
                self.reclaim();
                match self.places.allocate(len) {
                    Some(place) => place,
                    None => return Err(self.refuse(len)),
                }
            }
        };
        self.count(place.len_bytes);
        // SAFETY: `places` hands out neither this id nor any part of this place again before the id was returned.
        let (block, start) = unsafe { self.pool.issue(place.id, place.offset_bytes) };
        // SAFETY: the place is `len` bytes long at least, lies in mapped memory, and belongs to the block.
        Ok(unsafe { BufferMut::from_block(block, start, len) })
    }

    /// Takes home all blocks that were given back, and says how many.
    pub fn reclaim(&mut self) -> usize {
        together::settle();
        self.reclaim_up_to(usize::MAX)
    }

    /// Gives the pages of free memory back to the kernel, and says how many bytes were free for that.
    ///
    /// Pages stay committed after their first use, so that the next use finds them. After a burst, this returns
    /// them: all free stretches of at least 2 MiB, at once (`MADV_DONTNEED`: the resident size falls now, where
    /// `MADV_FREE` would wait for memory pressure; later uses find zeros). It makes system calls and costs page
    /// faults later, so call it while idle, when [`ArenaStatistics::idle_bytes`] is worth it.
    ///
    /// Does nothing but [`Arena::reclaim`] after [`Arena::keep_pages`].
    pub fn trim(&mut self) -> usize {
        self.reclaim();
        if self.keeps_pages {
            return 0;
        }
        self.places.merge();
        let pool = &self.pool;
        let mut given_bytes = 0;
        self.places
            .each_free(TRIMMED_BYTES_MIN, |offset_bytes, len_bytes| {
                // SAFETY: `places` has handed out no part of this stretch.
                unsafe { pool.discard(offset_bytes, len_bytes) };
                given_bytes += len_bytes;
            });
        self.in_use_bytes_max_since_trim = self.statistics.in_use_bytes;
        given_bytes
    }

    /// Gives no page back from now on. A device that was told of the arena's memory goes on with the pages it was
    /// told of: what it wrote would not be seen in pages that came later.
    pub fn keep_pages(&mut self) {
        self.keeps_pages = true;
    }

    /// What is handed out.
    pub fn statistics(&self) -> ArenaStatistics {
        let in_use_bytes = self.statistics.in_use_bytes;
        ArenaStatistics {
            idle_bytes: self.in_use_bytes_max_since_trim - in_use_bytes,
            blocks: self.pool.outstanding() as usize,
            ..self.statistics
        }
    }

    /// The addresses that all buffers of this arena lie in.
    pub fn region(&self) -> Region {
        self.pool.region()
    }

    #[inline]
    fn reclaim_up_to(&mut self, blocks_max: usize) -> usize {
        for count in 0..blocks_max {
            let Some(id) = self.pool.next_returned() else {
                return count;
            };
            self.statistics.in_use_bytes -= self.places.free(id);
        }
        blocks_max
    }

    #[inline]
    fn count(&mut self, len_bytes: usize) {
        let in_use_bytes = self.statistics.in_use_bytes + len_bytes;
        self.statistics.in_use_bytes = in_use_bytes;
        self.statistics.peak_bytes = self.statistics.peak_bytes.max(in_use_bytes);
        self.in_use_bytes_max_since_trim = self.in_use_bytes_max_since_trim.max(in_use_bytes);
    }

    #[cold]
    fn refuse(&mut self, len: usize) -> OutOfMemory {
        self.statistics.failed_allocations += 1;
        OutOfMemory {
            requested_bytes: len,
            in_use_bytes: self.statistics.in_use_bytes,
            capacity_bytes: self.statistics.capacity_bytes,
        }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Arena").field(&self.statistics()).finish()
    }
}

/// Most returned blocks that one allocation takes home, to bound its work. More than one, so that the list
/// gets shorter.
const RECLAIMED_PER_ALLOCATION: usize = 32;

/// Shortest free stretch worth giving back: one huge page.
const TRIMMED_BYTES_MIN: usize = 2 << 20;

#[cfg(all(test, not(loom)))]
mod tests;
