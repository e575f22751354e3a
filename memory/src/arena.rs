#![expect(unsafe_code, reason = "a place in the arena becomes a buffer")]

use std::{fmt, io};

use crate::beyond::Beyond;
use crate::block::Pool;
use crate::mapping::PAGE_BYTES;
use crate::options::{ARENA_BYTES_MAX, ArenaOptions};
use crate::places::{Place, Places};
use crate::reclaim::BlockPlace;
use crate::region::Region;
use crate::slabs::Slabs;
use crate::{BufferMut, Shortage, together};

mod force;
mod statistics;

pub use statistics::{ArenaRoom, ArenaStatistics, OutOfMemory};

/// The memory of one shard.
///
/// Allocates on the thread that owns it; the buffers may be dropped on any thread, also after the
/// arena. An arena moves between threads but is never shared:
/// ```compile_fail
/// fn shared<T: Clone>() {}
/// shared::<grpcxx_memory::Arena>();
/// ```
pub struct Arena {
    pool: Pool,
    places: Places,
    statistics: ArenaStatistics,
    in_use_bytes_max_since_trim: usize,
    /// What requests of more than [`SMALL_BYTES_MAX`] leave free.
    kept_for_small_bytes: usize,
    keeps_pages: bool,
    beyond: Option<Box<Beyond>>,
    /// Most bytes in use at a time when some lay beyond the capacity.
    peak_with_beyond_bytes: usize,
}

impl Arena {
    /// Reserves the arena's address space.
    ///
    /// # Errors
    /// The operating system refused the mapping, or the capacity is zero or above
    /// [`ARENA_BYTES_MAX`]. Where the kernel never overcommits (`vm.overcommit_memory=2`), the
    /// whole capacity counts as used from the start. For shared memory the system must be Linux 5.1
    /// or later and have `/proc`.
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
            kept_for_small_bytes: 0,
            keeps_pages: options.shared,
            beyond: (options.headroom)
                .map(|headroom| Box::new(Beyond::new(headroom, options.huge_pages))),
            peak_with_beyond_bytes: 0,
        })
    }

    /// Takes `len` bytes of initialised memory with unspecified content: zeros, or what was there
    /// before.
    ///
    /// The memory is aligned to 64 bytes, from 4096 bytes on to 4096. Blocks are rounded up: to a
    /// power of two up to 2 KiB, to pages and by at most an eighth above. Nothing is allocated on
    /// the heap.
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
            Some(place) if self.may_take(len, place.len_bytes) => place,
            unfit => match self.find_by_force(len, unfit) {
                Some(place) => place,
                None => return self.take_beyond(|beyond| beyond.allocate(len), len),
            },
        };
        Ok(self.issue(place, len))
    }

    /// Takes memory for `whole_len` bytes that are announced, of which `len` are handed out, beyond
    /// the capacity: what that holds stays for others.
    ///
    /// # Errors
    /// The arena has no [`Headroom`](crate::Headroom), or there is too little for all of the bytes.
    pub fn begin_beyond(&mut self, whole_len: usize, len: usize) -> Result<BufferMut, OutOfMemory> {
        let begin = |beyond: &mut Beyond| {
            beyond.check(whole_len)?;
            beyond.begin(whole_len, len)
        };
        self.take_beyond(begin, whole_len)
    }

    /// Checks that what is announced could have memory, if it is more than the capacity.
    ///
    /// # Errors
    /// There is too little of it beyond the capacity.
    pub fn check_announced(&mut self, whole_len: usize) -> Result<(), OutOfMemory> {
        if whole_len <= self.statistics.capacity_bytes {
            return Ok(());
        }
        let checked = self
            .beyond
            .as_ref()
            .map_or(Ok(()), |beyond| beyond.check(whole_len));
        checked.map_err(|shortage| self.refuse(whole_len, Some(shortage)))
    }

    /// Takes memory for `whole_len` bytes that are announced, of which `len` are handed out, at
    /// least 1. They become more, in place, with [`Arena::grow`].
    ///
    /// The rest stays free for other requests: if one finds no place, the arena takes the rest of
    /// reservations back, first from the one that has grown least recently. What has never grown
    /// takes an eighth of the arena at most, so that it cannot leave holes everywhere.
    ///
    /// Nothing if there is no place for all of it, or too much is reserved. [`Arena::allocate`] may
    /// have memory for a smaller first part, which can grow too.
    pub fn reserve(&mut self, whole_len: usize, len: usize) -> Option<BufferMut> {
        if len >= whole_len {
            return self.allocate(whole_len).ok();
        }
        self.reclaim_up_to(RECLAIMED_PER_ALLOCATION);
        if !self.has_room_for(len) {
            return None;
        }
        let place = match self.places.reserve(whole_len, len, false) {
            Some(place) => place,
            None => {
                self.reclaim();
                self.places.reserve(whole_len, len, false)?
            }
        };
        Some(self.issue(place, len))
    }

    /// Makes memory longer that is a first part of what is announced: at least `len` of the
    /// `whole_len` bytes that it shall have in the end. It stays where it is, unless its
    /// reservation was taken back or it is not of this arena: then the bytes that it has are
    /// copied.
    ///
    /// # Errors
    /// There is no place for `len` bytes. The memory is dropped.
    pub fn grow(
        &mut self,
        mut memory: BufferMut,
        len: usize,
        whole_len: usize,
    ) -> Result<BufferMut, OutOfMemory> {
        debug_assert!(memory.len() <= len && len <= whole_len);
        if let Some(beyond) = &self.beyond
            && beyond.has(&memory)
        {
            return self.take_beyond(|beyond| beyond.grow(memory, len, whole_len), len);
        }
        if !self.has_room_for(len - memory.len()) {
            return self.take_beyond(|beyond| beyond.grow_from(&memory, len, whole_len), len);
        }
        let granted = memory
            .block_in(&self.pool)
            .and_then(|id| self.places.grant(id, len, len == whole_len));
        if let Some(more_bytes) = granted {
            self.count(more_bytes);
            // SAFETY: `places` has handed out the first `len` bytes of the block's place, which is
            // mapped memory.
            unsafe { memory.extend_to(len) };
            return Ok(memory);
        }
        self.grow_elsewhere(&memory, len, whole_len)
    }

    /// Leaves so many bytes free for requests of at most 64 KiB: longer ones are refused before.
    pub fn keep_for_small(&mut self, bytes: usize) {
        self.kept_for_small_bytes = bytes.min(self.statistics.capacity_bytes);
    }

    /// Takes home all blocks that were given back, and says how many.
    pub fn reclaim(&mut self) -> usize {
        together::settle();
        let beyond = self.beyond.as_mut().map_or(0, |beyond| beyond.reclaim());
        self.reclaim_up_to(usize::MAX) + beyond
    }

    /// Whether it has memory of the machine beyond its capacity, which [`Arena::give_back`] returns
    /// once it is not in use.
    pub fn is_beyond(&self) -> bool {
        self.beyond.as_ref().is_some_and(|beyond| beyond.is_made())
    }

    /// What it was lent of the machine.
    #[cfg(all(test, not(any(miri, loom))))]
    pub(crate) fn lent_bytes(&self) -> u64 {
        self.beyond.as_ref().map_or(0, |beyond| beyond.lent_bytes())
    }

    /// Gives the memory beyond the capacity that is not in use back to the machine. What comes next
    /// pays for new pages, so call it some time after the use.
    pub fn give_back(&mut self) {
        if let Some(beyond) = &mut self.beyond {
            beyond.give_back();
        }
    }

    /// Gives the pages of free memory back to the kernel, and says how many bytes were free for
    /// that.
    ///
    /// Pages stay committed after their first use, so that the next use finds them. After a burst,
    /// this returns them: all free stretches of at least 2 MiB, at once (`MADV_DONTNEED`: the
    /// resident size falls now, where `MADV_FREE` would wait for memory pressure; later uses find
    /// zeros). It makes system calls and costs page faults later, so call it while idle, when
    /// [`ArenaStatistics::idle_bytes`] is worth it.
    ///
    /// Does nothing but [`Arena::reclaim`] after [`Arena::keep_pages`], and in a shared arena: the
    /// seal that keeps other processes from writing keeps the pages in their place.
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

    /// Gives no page back from now on. A device that was told of the arena's memory goes on with
    /// the pages it was told of: what it wrote would not be seen in pages that came later.
    pub fn keep_pages(&mut self) {
        self.keeps_pages = true;
    }

    /// Whether more than an eighth of it is handed out.
    #[inline]
    pub fn is_scarce(&self) -> bool {
        self.statistics.in_use_bytes > self.statistics.capacity_bytes / 8
    }

    /// What is handed out.
    pub fn statistics(&self) -> ArenaStatistics {
        let in_use_bytes = self.statistics.in_use_bytes;
        let (beyond_bytes, beyond_blocks) = match &self.beyond {
            Some(beyond) => (beyond.used_bytes(), beyond.blocks()),
            None => (0, 0),
        };
        ArenaStatistics {
            beyond_bytes,
            peak_bytes: self.statistics.peak_bytes.max(self.peak_with_beyond_bytes),
            idle_bytes: self.in_use_bytes_max_since_trim - in_use_bytes,
            reserved_bytes: self.places.ungranted_bytes(),
            blocks: self.pool.outstanding() as usize + beyond_blocks,
            ..self.statistics
        }
    }

    /// Whether the memory is of this arena, not of what it has beyond its capacity.
    pub(crate) fn has(&self, memory: &BufferMut) -> bool {
        memory.block_in(&self.pool).is_some()
    }

    /// What is free, of the machine's memory too if the arena goes beyond its capacity. Takes home
    /// what was given back.
    pub fn room(&mut self) -> ArenaRoom {
        self.reclaim();
        let statistics = &self.statistics;
        let capacity_bytes = statistics.capacity_bytes as u64;
        let free_bytes = capacity_bytes - statistics.in_use_bytes as u64;
        // Pages of the capacity that were never used are free memory of the machine, so the sum
        // would count them twice.
        let beyond = self.beyond.as_ref();
        ArenaRoom {
            free_bytes: free_bytes.max(beyond.map_or(0, |beyond| beyond.free_bytes())),
            whole_bytes: capacity_bytes.max(beyond.map_or(0, |beyond| beyond.whole_bytes())),
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
            let freed_bytes = self.places.free(id);
            self.statistics.in_use_bytes -= freed_bytes;
            if let BlockPlace::Span { page } = id.place() {
                let offset_bytes = page as usize * PAGE_BYTES;
                self.pool
                    .forget_exposed(offset_bytes..offset_bytes + freed_bytes);
            }
        }
        blocks_max
    }

    /// Makes memory of a place, which is `len` bytes long at least.
    #[inline]
    fn issue(&mut self, place: Place, len: usize) -> BufferMut {
        self.count(place.len_bytes);
        // SAFETY: `places` hands out neither this id nor any part of this place again before the id
        // was returned.
        let (block, start) = unsafe { self.pool.issue(place.id, place.offset_bytes) };
        // SAFETY: the place is `len` bytes long at least, lies in mapped memory, and belongs to the
        // block.
        unsafe { BufferMut::from_block(block, start, len) }
    }

    /// Whether a request may have so many bytes more.
    #[inline]
    fn may_take(&self, len: usize, place_bytes: usize) -> bool {
        let most_bytes = self.statistics.capacity_bytes - self.kept_for_small_bytes;
        len <= SMALL_BYTES_MAX || self.statistics.in_use_bytes + place_bytes <= most_bytes
    }

    #[inline]
    fn count(&mut self, len_bytes: usize) {
        let in_use_bytes = self.statistics.in_use_bytes + len_bytes;
        self.statistics.in_use_bytes = in_use_bytes;
        self.statistics.peak_bytes = self.statistics.peak_bytes.max(in_use_bytes);
        self.in_use_bytes_max_since_trim = self.in_use_bytes_max_since_trim.max(in_use_bytes);
    }

    #[cold]
    fn refuse(&mut self, len: usize, beyond: Option<Shortage>) -> OutOfMemory {
        self.statistics.failed_allocations += 1;
        OutOfMemory {
            requested_bytes: len,
            in_use_bytes: self.statistics.in_use_bytes,
            capacity_bytes: self.statistics.capacity_bytes,
            beyond,
        }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Arena").field(&self.statistics()).finish()
    }
}

/// Most returned blocks that one allocation takes home, to bound its work. More than one, so that
/// the list gets shorter.
const RECLAIMED_PER_ALLOCATION: usize = 32;

/// Longest request that is small: what [`Arena::keep_for_small`] keeps is for such.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// Shortest free stretch worth giving back: one huge page.
const TRIMMED_BYTES_MIN: usize = 2 << 20;

#[cfg(all(test, not(loom)))]
mod tests;
