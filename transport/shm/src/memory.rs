#![expect(
    unsafe_code,
    reason = "maps memory that other processes map too, and copies to and from it"
)]

use std::fmt;
use std::ptr::NonNull;

/// Memory that this process and another one map, for reading and writing.
pub(crate) struct Memory {
    base: NonNull<u8>,
    len_bytes: usize,
    backing: backing::Backing,
}

// SAFETY: a mapping is an address range that any thread may use and release; who copies to and from
// it answers for what lies where.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// # Safety
    /// The place lies inside of the memory, and no reference points to it.
    #[inline]
    pub(crate) unsafe fn copy_in(&self, at: usize, bytes: &[u8]) {
        debug_assert!(at + bytes.len() <= self.len_bytes);
        self.backing.note_write(at, bytes.len());
        // SAFETY: stated by the caller; `bytes` is memory of this process alone, so the two do not
        // overlap.
        unsafe {
            let place = self.base.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
        }
    }

    /// # Safety
    /// The place lies inside of the memory.
    #[inline]
    pub(crate) unsafe fn copy_out(&self, at: usize, into: &mut [u8]) {
        debug_assert!(at + into.len() <= self.len_bytes);
        self.backing.note_read(at, into.len());
        // SAFETY: as in `copy_in`.
        unsafe {
            let place = self.base.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(place, into.as_mut_ptr(), into.len());
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.len_bytes)
    }
}

#[cfg(not(all(loom, test)))]
mod backing {
    use std::ops::Range;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::ptr::{self, NonNull};
    use std::sync::Arc;

    use grpcxx_memory::forks::{self, Inherited, Kept};
    use grpcxx_memory::sealed_len_bytes;
    use rustix::fs::{MemfdFlags, SealFlags};
    use rustix::io::Errno;
    use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};
    use rustix::process::{Resource, getrlimit};

    use super::Memory;
    use crate::mapped::Mapped;

    /// A range of addresses, unmapped on drop.
    pub(super) struct Backing {
        kept: Option<Kept>,
        base: NonNull<u8>,
        len_bytes: usize,
        /// Set if a peer has made the memory.
        _mapped: Option<Mapped>,
    }

    impl Backing {
        #[inline]
        pub(super) fn note_write(&self, _at: usize, _len: usize) {}

        #[inline]
        pub(super) fn note_read(&self, _at: usize, _len: usize) {}
    }

    impl Drop for Backing {
        fn drop(&mut self) {
            // Before the addresses may be those of something else.
            self.kept = None;
            // SAFETY: the range was mapped for this value, whose owner is going.
            let refused = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len_bytes) };
            debug_assert!(refused.is_ok(), "unmapping our own range");
        }
    }

    /// Memory into which both ends of a link write.
    struct Common {
        base: NonNull<u8>,
        len_bytes: usize,
    }

    // SAFETY: an address range, at which only a child looks, which has one thread then.
    unsafe impl Send for Common {}
    // SAFETY: as above.
    unsafe impl Sync for Common {}

    /// A child has no part in the link: what it writes shows nowhere.
    impl Inherited for Common {
        fn in_child(&self) {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            let place = self.base.as_ptr().cast();
            // SAFETY: the range of the mapping, which exists as long as this is kept. What lies
            // there are atomics and bytes, for which zeros will do.
            let emptied =
                unsafe { rustix::mm::mmap_anonymous(place, self.len_bytes, access, flags) };
            if let Err(errno) = emptied {
                forks::give_up(errno);
            }
        }

        fn must_wait(&self) -> bool {
            false
        }
    }

    impl Memory {
        /// Fresh zeroed memory that nobody can shrink, and the descriptor to give away.
        pub(crate) fn create(len_bytes: usize) -> rustix::io::Result<(Self, OwnedFd)> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            // Beyond the limit the kernel would end a process that does not catch SIGXFSZ.
            let file_bytes_max = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
            if file_bytes_max < len_bytes as u64 {
                return Err(Errno::FBIG);
            }
            let descriptor = rustix::fs::memfd_create("grpcxx-link", flags)?;
            rustix::fs::ftruncate(&descriptor, len_bytes as u64)?;
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&descriptor, seals)?;
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let memory = Self::map(descriptor.as_fd(), len_bytes, access, None)?;
            Ok((memory, descriptor))
        }

        /// The memory of a peer's descriptor, if it is what [`Memory::create`] makes and of this
        /// length. [`Errno::NOMEM`] if peers would take more than `mapped_bytes_max`.
        pub(crate) fn open(
            descriptor: BorrowedFd<'_>,
            len_bytes: usize,
            mapped_bytes_max: u64,
        ) -> rustix::io::Result<Self> {
            if sealed_len_bytes(descriptor)? != len_bytes as u64 {
                return Err(Errno::INVAL);
            }
            let mapped = Mapped::reserve(len_bytes as u64, mapped_bytes_max);
            let mapped = mapped.ok_or(Errno::NOMEM)?;
            let access = ProtFlags::READ | ProtFlags::WRITE;
            Self::map(descriptor, len_bytes, access, Some(mapped))
        }

        fn map(
            descriptor: BorrowedFd<'_>,
            len_bytes: usize,
            access: ProtFlags,
            mapped: Option<Mapped>,
        ) -> rustix::io::Result<Self> {
            // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
            let base = unsafe {
                let flags = MapFlags::SHARED | MapFlags::NORESERVE;
                rustix::mm::mmap(ptr::null_mut(), len_bytes, access, flags, descriptor, 0)?
            };
            let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
            let is_common = access.contains(ProtFlags::WRITE);
            let kept = is_common.then(|| forks::keep(Arc::new(Common { base, len_bytes })));
            Ok(Self {
                base,
                len_bytes,
                backing: Backing {
                    kept: kept.transpose().map_err(|_| Errno::NOMEM)?,
                    base,
                    len_bytes,
                    _mapped: mapped,
                },
            })
        }
    }

    /// An arena of a peer, for reading.
    #[derive(Debug)]
    pub(crate) struct PeerArena {
        memory: Memory,
    }

    impl PeerArena {
        /// Length of what a peer has sent, if it can never become shorter and is no longer than
        /// `len_bytes_max`.
        pub(crate) fn check(
            descriptor: BorrowedFd<'_>,
            len_bytes_max: u64,
        ) -> rustix::io::Result<usize> {
            let len_bytes = sealed_len_bytes(descriptor)?;
            if len_bytes == 0 || len_bytes > len_bytes_max {
                return Err(Errno::FBIG);
            }
            usize::try_from(len_bytes).map_err(|_| Errno::FBIG)
        }

        /// Maps what [`PeerArena::check`] has found to be so long. [`Errno::NOMEM`] if peers would
        /// take more than `mapped_bytes_max`.
        pub(crate) fn open(
            descriptor: BorrowedFd<'_>,
            len_bytes: usize,
            mapped_bytes_max: u64,
        ) -> rustix::io::Result<Self> {
            let mapped = Mapped::reserve(len_bytes as u64, mapped_bytes_max);
            let mapped = mapped.ok_or(Errno::NOMEM)?;
            let memory = Memory::map(descriptor, len_bytes, ProtFlags::READ, Some(mapped))?;
            Ok(Self { memory })
        }

        /// A part that the peer has lent, and that is not given back as long as anybody looks at
        /// it.
        ///
        /// # Panics
        /// If it reaches beyond the arena.
        pub(crate) fn part(&self, place: Range<usize>) -> &[u8] {
            assert!(place.start <= place.end && place.end <= self.memory.len_bytes());
            // SAFETY: the place lies inside of the mapping, as asserted, which stays as long as
            // `self` and cannot get shorter. It is assumed that the owner does not write there
            // until the part is given back, which it has promised; this process cannot enforce it.
            // Should the owner break that, the bytes differ between two looks. So no value may rest
            // on them: buffers over such memory say so (`Buffer::is_borrowed`), texts and bools are
            // made of copies, landings that are parsed are never replaced, and what was dialled
            // copies all. What is left are numbers, of which any bits are a value.
            unsafe {
                let start = self.memory.base().as_ptr().add(place.start);
                std::slice::from_raw_parts(start, place.len())
            }
        }
    }

    impl PeerArena {
        /// Puts private copies of these parts, in the order of their addresses, in their own place,
        /// and lets go of the peer's memory. Nothing else may be looked at from now on; the
        /// addresses stay taken.
        ///
        /// # Errors
        /// The system has no memory for the copies, or no place for more mappings. All parts are
        /// there all the same.
        pub(crate) fn keep_copies(&self, parts: &[Range<usize>]) -> rustix::io::Result<()> {
            let (base, len_bytes) = (self.memory.base, self.memory.len_bytes);
            let mut free_from = 0;
            for pages in whole_pages(parts, len_bytes) {
                if free_from < pages.start {
                    // SAFETY: inside of the mapping, between the parts that are looked at.
                    unsafe { empty(base.as_ptr().add(free_from), pages.start - free_from)? };
                }
                // SAFETY: whole pages inside of the mapping, which can be read.
                unsafe { replace_by_copy(base.as_ptr().add(pages.start), pages.len())? };
                free_from = pages.end;
            }
            let end = len_bytes.next_multiple_of(PAGE_BYTES);
            if free_from < end {
                // SAFETY: inside of the mapping, behind the parts that are looked at.
                unsafe { empty(base.as_ptr().add(free_from), end - free_from)? };
            }
            Ok(())
        }
    }

    /// The pages that parts lie in, in order of their addresses and without overlap.
    fn whole_pages(parts: &[Range<usize>], len_bytes: usize) -> Vec<Range<usize>> {
        let mut all: Vec<Range<usize>> = Vec::with_capacity(parts.len());
        for part in parts {
            assert!(part.start <= part.end && part.end <= len_bytes);
            let start = part.start / PAGE_BYTES * PAGE_BYTES;
            let end = part.end.next_multiple_of(PAGE_BYTES);
            match all.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(end),
                _ => all.push(start..end),
            }
        }
        all
    }

    /// Puts private memory with the same bytes in place of some pages. Other threads may read there
    /// meanwhile: the kernel exchanges the pages as one step, as far as a reader can see.
    ///
    /// # Safety
    /// Whole mapped pages, which this process reads alone and only as long as it may.
    unsafe fn replace_by_copy(place: *mut u8, len_bytes: usize) -> rustix::io::Result<()> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the copy is made in a new mapping at an address that the kernel chooses, is as
        // long as the pages, and takes their place once it is written. A refusal comes before the
        // kernel has changed anything.
        unsafe {
            let copy =
                rustix::mm::mmap_anonymous(ptr::null_mut(), len_bytes, access, MapFlags::PRIVATE)?;
            ptr::copy_nonoverlapping(place, copy.cast::<u8>(), len_bytes);
            let moved = rustix::mm::mprotect(copy, len_bytes, MprotectFlags::READ).and_then(|()| {
                let flags = MremapFlags::MAYMOVE;
                rustix::mm::mremap_fixed(copy, len_bytes, len_bytes, flags, place.cast())
            });
            if let Err(errno) = moved {
                // What could not take the place is of no use.
                let _ = rustix::mm::munmap(copy, len_bytes);
                return Err(errno);
            }
        }
        Ok(())
    }

    /// Takes the memory away from some pages, and keeps their addresses.
    ///
    /// # Safety
    /// Whole pages of a mapping of our own, at which nobody looks any more.
    unsafe fn empty(place: *mut u8, len_bytes: usize) -> rustix::io::Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: stated by the caller.
        unsafe {
            rustix::mm::mmap_anonymous(place.cast(), len_bytes, ProtFlags::empty(), flags)?;
        }
        Ok(())
    }

    const PAGE_BYTES: usize = 4096;
}

#[cfg(not(all(loom, test)))]
pub(crate) use backing::PeerArena;

#[cfg(all(loom, test))]
mod backing {
    use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
    use std::ptr::NonNull;

    use loom::cell::UnsafeCell;

    use super::Memory;
    use crate::segment::Header;

    /// Heap memory in place of a mapping, with a cell for each word by which loom sees accesses.
    pub(super) struct Backing {
        base: NonNull<u8>,
        layout: Layout,
        words: Vec<UnsafeCell<()>>,
    }

    impl Backing {
        pub(super) fn note_write(&self, at: usize, len: usize) {
            for word in &self.words[at / 8..(at + len).div_ceil(8)] {
                word.with_mut(|_| ());
            }
        }

        pub(super) fn note_read(&self, at: usize, len: usize) {
            for word in &self.words[at / 8..(at + len).div_ceil(8)] {
                word.with(|_| ());
            }
        }
    }

    impl Drop for Backing {
        fn drop(&mut self) {
            // SAFETY: made by `heap`, header included, and dropped once.
            unsafe {
                self.base.cast::<Header>().drop_in_place();
                dealloc(self.base.as_ptr(), self.layout);
            }
        }
    }

    impl Memory {
        pub(crate) fn heap(len_bytes: usize) -> Self {
            let layout = Layout::from_size_align(len_bytes, 4096).expect("a valid layout");
            // SAFETY: the size is not zero; the header fits and is aligned.
            let base = unsafe {
                let base = NonNull::new(alloc_zeroed(layout));
                let base = base.unwrap_or_else(|| handle_alloc_error(layout));
                base.cast::<Header>().write(Header::default());
                base
            };
            let words = (0..len_bytes / 8).map(|_| UnsafeCell::new(())).collect();
            Self {
                base,
                len_bytes,
                backing: Backing {
                    base,
                    layout,
                    words,
                },
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, SealFlags};
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn both_mappings_are_the_same_memory() {
        let (ours, descriptor) = Memory::create(8192).unwrap();
        let theirs = Memory::open(descriptor.as_fd(), 8192, u64::MAX).unwrap();
        let mut seen = [0; 3];
        // SAFETY: inside of the memory, and nobody has references there.
        unsafe {
            ours.copy_in(8189, b"abc");
            theirs.copy_out(8189, &mut seen);
        }
        assert_eq!(&seen, b"abc");
        let arena = PeerArena::open(descriptor.as_fd(), 8192, u64::MAX).unwrap();
        assert_eq!(arena.part(8190..8192), b"bc");
    }

    /// Readers see the same bytes before, meanwhile and after, and the owner's file is free.
    #[test]
    fn copies_take_the_place_of_what_was_mapped() {
        let len_bytes = 64 << 12;
        let (ours, descriptor) = Memory::create(len_bytes).unwrap();
        let bytes: Vec<u8> = (0..len_bytes).map(|index| (index / 7) as u8).collect();
        // SAFETY: inside of the memory, and nobody has references there.
        unsafe { ours.copy_in(0, &bytes) };
        let arena = PeerArena::open(descriptor.as_fd(), len_bytes, u64::MAX).unwrap();
        let parts = [100..9000, 8000..8001, 12288..12289, 200_000..200_100];
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for part in &parts {
                let (arena, bytes, is_over) = (&arena, &bytes, &is_over);
                scope.spawn(move || {
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        assert_eq!(arena.part(part.clone()), &bytes[part.clone()]);
                    }
                });
            }
            for _ in 0..100 {
                arena.keep_copies(&parts).unwrap();
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        // SAFETY: as above.
        unsafe { ours.copy_in(0, &vec![0xee; len_bytes]) };
        for part in parts {
            assert_eq!(arena.part(part.clone()), &bytes[part]);
        }
    }

    #[test]
    fn what_could_shrink_or_is_no_memory_is_refused() {
        let (_, descriptor) = Memory::create(8192).unwrap();
        assert_eq!(
            Memory::open(descriptor.as_fd(), 4096, u64::MAX).unwrap_err(),
            Errno::INVAL
        );
        assert_eq!(PeerArena::check(descriptor.as_fd(), 8192), Ok(8192));
        assert_eq!(PeerArena::check(descriptor.as_fd(), 4096), Err(Errno::FBIG));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let unsealed = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&unsealed, 8192).unwrap();
        assert_eq!(
            Memory::open(unsealed.as_fd(), 8192, u64::MAX).unwrap_err(),
            Errno::PERM
        );
        rustix::fs::fcntl_add_seals(&unsealed, SealFlags::SHRINK).unwrap();
        assert!(PeerArena::check(unsealed.as_fd(), 8192).is_err());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(PeerArena::check(file.as_fd(), u64::MAX).is_err());
    }
}
