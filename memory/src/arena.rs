#![expect(unsafe_code, reason = "a place in the arena becomes a buffer")]

use std::{fmt, io};

use crate::BufferMut;
use crate::block::Pool;
use crate::mapping::PAGE_BYTES;
use crate::options::{ARENA_BYTES_MAX, ArenaOptions};
use crate::places::Places;
use crate::region::Region;
use crate::slabs::Slabs;

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
mod tests {
    use super::*;
    use crate::Buffer;

    fn arena(capacity_bytes: usize) -> Arena {
        Arena::new(ArenaOptions {
            capacity_bytes,
            huge_pages: false,
            shared: false,
        })
        .unwrap()
    }

    /// Bytes of every page; all of them would take Miri minutes.
    fn sample(bytes: &[u8]) -> impl Iterator<Item = u8> {
        bytes
            .iter()
            .copied()
            .step_by(if cfg!(miri) { 4001 } else { 1 })
    }

    fn is_aligned(buffer: &BufferMut, align_bytes: usize) -> bool {
        buffer.as_ptr().addr().is_multiple_of(align_bytes)
    }

    #[test]
    fn blocks_have_their_length_and_alignment() {
        let mut arena = arena(1 << 20);
        for len in [1, 63, 64, 65, 2048, 2049, 4095] {
            let buffer = arena.allocate(len).unwrap();
            assert!(buffer.len() == len && is_aligned(&buffer, 64));
        }
        for len in [4096, 4097, 100_000] {
            let buffer = arena.allocate(len).unwrap();
            assert!(buffer.len() == len && is_aligned(&buffer, 4096));
        }
        let empty = arena.allocate(0).unwrap();
        assert!(empty.is_empty() && !empty.is_arena());
    }

    #[test]
    fn a_full_arena_refuses_and_recovers() {
        let mut arena = arena(64 << 10);
        let error = arena.allocate((64 << 10) + 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "arena of 65536 bytes has no block of 65537 bytes left (0 bytes in use)"
        );
        let all = arena.allocate(64 << 10).unwrap();
        assert_eq!(arena.allocate(1).unwrap_err().in_use_bytes, 64 << 10);
        assert_eq!(
            arena.allocate(usize::MAX).unwrap_err().requested_bytes,
            usize::MAX
        );
        drop(all);
        let small: Vec<BufferMut> = (0..1024).map(|_| arena.allocate(64).unwrap()).collect();
        assert!(arena.allocate(64).is_err());
        drop(small);
        assert!(arena.allocate(64 << 10).is_ok());
        assert_eq!(arena.statistics().failed_allocations, 4);
    }

    #[test]
    fn one_block_may_take_most_of_an_arena_in_use() {
        let mut arena = arena(1 << 20);
        let small = arena.allocate(64).unwrap();
        let most = arena.allocate(900 << 10).unwrap();
        assert!(is_aligned(&most, 4096));
        drop((small, most));
        assert!(arena.allocate(1 << 20).is_ok());
    }

    #[test]
    fn statistics_count_blocks_and_bytes() {
        let mut arena = arena(1 << 20);
        let (first, second) = (arena.allocate(100).unwrap(), arena.allocate(5000).unwrap());
        let both = ArenaStatistics {
            capacity_bytes: 1 << 20,
            in_use_bytes: 128 + 8192,
            peak_bytes: 128 + 8192,
            idle_bytes: 0,
            blocks: 2,
            failed_allocations: 0,
        };
        assert_eq!(arena.statistics(), both);
        drop((first, second));
        assert_eq!(arena.reclaim(), 2);
        assert_eq!(arena.reclaim(), 0);
        let none = ArenaStatistics {
            in_use_bytes: 0,
            idle_bytes: both.in_use_bytes,
            blocks: 0,
            ..both
        };
        assert_eq!(arena.statistics(), none);
        arena.trim();
        assert_eq!(arena.statistics().idle_bytes, 0);
        assert_eq!(arena.statistics().peak_bytes, both.peak_bytes);
    }

    #[test]
    fn trim_gives_back_what_is_free_and_nothing_else() {
        let mut arena = arena(16 << 20);
        let mut kept = arena.allocate(1 << 20).unwrap();
        kept.fill(1);
        let mut burst = arena.allocate(8 << 20).unwrap();
        burst.fill(2);
        let burst_start = burst.as_ptr();
        drop(burst);
        assert_eq!(arena.trim(), (8 + 4 + 2) << 20);
        assert!(sample(&kept).all(|byte| byte == 1));
        let again = arena.allocate(8 << 20).unwrap();
        assert_eq!(again.as_ptr(), burst_start);
        assert!(sample(&again).all(|byte| byte == 0));
    }

    #[test]
    #[cfg(not(miri))]
    fn shared_memory_can_be_read_elsewhere_and_is_given_back_by_a_trim() {
        use std::os::unix::fs::{FileExt, MetadataExt};
        let mut arena = Arena::new(ArenaOptions {
            capacity_bytes: 16 << 20,
            huge_pages: true,
            shared: true,
        })
        .unwrap();
        let mut kept = arena.allocate(1 << 20).unwrap();
        kept.fill(1);
        let mut burst = arena.allocate(8 << 20).unwrap();
        burst.fill(2);
        let kept = kept.freeze();
        let offset = kept.region().unwrap().offset_of(&kept).unwrap();
        let shared = kept.shared_memory().unwrap();
        assert_eq!(shared.region, kept.region().unwrap());
        let descriptor = shared.descriptor.try_clone_to_owned().unwrap();
        let file = std::fs::File::from(descriptor);
        let mut seen = vec![0; kept.len()];
        file.read_exact_at(&mut seen, offset as u64).unwrap();
        assert_eq!(seen, kept[..]);
        assert!(file.write_at(&[3], 0).is_err(), "nobody else may write");
        assert!(file.set_len(0).is_err(), "nor take the memory away");
        let held_bytes = || file.metadata().unwrap().blocks() * 512;
        assert!(held_bytes() >= 9 << 20);
        drop(burst);
        arena.trim();
        assert!(held_bytes() < 9 << 20);
        drop(arena);
        assert!(kept.iter().all(|&byte| byte == 1));
        assert!(Buffer::from(vec![1]).shared_memory().is_none());
    }

    #[test]
    fn an_arena_that_keeps_its_pages_trims_nothing() {
        let mut arena = arena(8 << 20);
        let mut burst = arena.allocate(4 << 20).unwrap();
        burst.fill(2);
        drop(burst);
        arena.keep_pages();
        assert_eq!(arena.trim(), 0);
        let again = arena.allocate(4 << 20).unwrap();
        assert!(sample(&again).all(|byte| byte == 2));
    }

    #[test]
    fn buffers_outlive_their_arena() {
        let mut arena = arena(1 << 20);
        let mut unique = arena.allocate(1000).unwrap();
        unique.fill(3);
        let mut shared = arena.allocate(10_000).unwrap();
        shared.fill(4);
        let shared = shared.freeze();
        drop(arena.allocate(64));
        drop(arena);
        assert!(unique.iter().all(|&byte| byte == 3));
        let part = shared.slice(5000..);
        drop((unique, shared));
        assert!(part.len() == 5000 && part.iter().all(|&byte| byte == 4));
    }

    #[test]
    fn a_buffer_knows_its_region() {
        let mut arena = arena(1 << 20);
        let region = arena.region();
        assert_eq!(region.len, 1 << 20);
        let first = arena.allocate(4096).unwrap();
        assert_eq!(first.region(), Some(region));
        assert_eq!(region.offset_of(&first), Some(0));
        let second = arena.allocate(4096).unwrap().freeze().slice(8..);
        assert_eq!(second.region(), Some(region));
        assert_eq!(region.offset_of(&second), Some(4096 + 8));
        assert_eq!(Buffer::from(vec![1]).region(), None);
    }

    #[test]
    fn capacities_without_sense_are_errors() {
        for capacity_bytes in [0, ARENA_BYTES_MAX + 1, usize::MAX] {
            let options = ArenaOptions {
                capacity_bytes,
                huge_pages: true,
                shared: false,
            };
            assert_eq!(
                Arena::new(options).unwrap_err().kind(),
                io::ErrorKind::InvalidInput
            );
        }
    }

    #[test]
    fn debug_shows_numbers_only() {
        let mut arena = arena(1 << 20);
        let buffer = arena.allocate(3).unwrap();
        assert_eq!(format!("{buffer:?}"), "BufferMut(3 bytes, arena)");
        assert_eq!(format!("{:?}", buffer.freeze()), "Buffer(3 bytes, arena)");
        assert!(format!("{arena:?}").len() < 200);
    }
}
