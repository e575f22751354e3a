#![expect(unsafe_code, reason = "maps and unmaps address space")]

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::exposed::Exposed;
use crate::forks::{self, Kept};

/// Zeroed memory of its own, which stays where it is until dropped.
///
/// Guard pages lie before and behind it, and none of it is committed before it is touched.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len_bytes: usize,
    // Before what it looks after.
    shared: Option<Shared>,
    reserved: Reserved,
}

// SAFETY: a mapping is an address range that any thread may release; access to its bytes is the
// business of whoever dereferences the base.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method that takes a shared reference touches the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `len_bytes`, a multiple of [`PAGE_BYTES`] and not zero, aligned to
    /// [`MAPPING_ALIGN_BYTES`].
    pub(crate) fn new(len_bytes: usize) -> io::Result<Self> {
        assert!(len_bytes > 0 && len_bytes.is_multiple_of(PAGE_BYTES));
        let reserved = Reserved::new(len_bytes)?;
        Ok(Self {
            base: reserved.usable_base(len_bytes)?,
            len_bytes,
            shared: None,
            reserved,
        })
    }

    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[inline]
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// As [`Mapping::new`], of memory that other processes can map too, for reading alone. It keeps
    /// its pages: what forbids others to write forbids everybody to take pages away.
    pub(crate) fn shared(len_bytes: usize) -> io::Result<Self> {
        let mut mapping = Self::new(len_bytes)?;
        mapping.reserved.share(mapping.base, len_bytes)?;
        let descriptor = mapping.reserved.descriptor();
        if let Some(descriptor) = descriptor {
            mapping.shared = Some(Shared::new(mapping.base, len_bytes, descriptor)?);
        }
        Ok(mapping)
    }

    /// What other processes map to read the memory, if it is shared. Not in a forked child, whose
    /// memory is its own.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let shared = self.shared.as_ref()?;
        if shared.exposed.is_own() {
            return None;
        }
        self.reserved.descriptor()
    }

    /// Users look at these bytes from now on: a forked child keeps them as they are.
    #[inline]
    pub(crate) fn expose(&self, place: Range<usize>) {
        if let Some(shared) = &self.shared {
            shared.exposed.note(place);
        }
    }

    /// Nobody looks at these whole pages any more.
    #[inline]
    pub(crate) fn forget_exposed(&self, place: Range<usize>) {
        if let Some(shared) = &self.shared {
            shared.exposed.forget(place);
        }
    }

    /// Asks for transparent huge pages. A kernel without them refuses, which changes nothing.
    pub(crate) fn advise_huge_pages(&self) {
        self.reserved.advise_huge_pages(self.base, self.len_bytes);
    }

    /// Gives the pages of a part back to the kernel; they are zero at their next use.
    ///
    /// # Safety
    /// Whole pages inside of the mapping, which nobody reads or writes meanwhile.
    ///
    /// # Panics
    /// If the memory is shared.
    pub(crate) unsafe fn discard(&self, offset_bytes: usize, len_bytes: usize) {
        assert!(self.shared.is_none(), "shared memory keeps its pages");
        assert!(offset_bytes.is_multiple_of(PAGE_BYTES) && len_bytes.is_multiple_of(PAGE_BYTES));
        assert!(offset_bytes + len_bytes <= self.len_bytes);
        // SAFETY: the part lies inside of the mapping (asserted) and the caller lets nobody use it.
        unsafe {
            let part = self.base.add(offset_bytes);
            self.reserved.discard(part, len_bytes);
        }
    }
}

/// What a forked child makes of memory that others can map.
#[derive(Debug)]
struct Shared {
    // Before what it keeps.
    _kept: Kept,
    exposed: Arc<Exposed>,
}

impl Shared {
    fn new(base: NonNull<u8>, len_bytes: usize, descriptor: BorrowedFd<'_>) -> io::Result<Self> {
        let exposed = Arc::new(Exposed::new(base, len_bytes, descriptor)?);
        Ok(Self {
            _kept: forks::keep(exposed.clone())?,
            exposed,
        })
    }
}
#[cfg(not(any(miri, loom)))]
mod reserved {
    use std::ffi::c_void;
    use std::io;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
    use std::ptr::{self, NonNull};

    use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
    use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
    use rustix::process::{Resource, getrlimit};

    use super::{MAPPING_ALIGN_BYTES, PAGE_BYTES};

    /// Beyond the limit the kernel would not only refuse, but end a process that does not catch
    /// SIGXFSZ.
    fn check_file_size(len_bytes: u64) -> io::Result<()> {
        match getrlimit(Resource::Fsize).current {
            Some(limit) if limit < len_bytes => Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!(
                    "shared memory of {len_bytes} bytes counts as a file, and files may have {limit} bytes; raise `ulimit -f`"
                ),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Address space without access, released on drop.
    #[derive(Debug)]
    pub(crate) struct Reserved {
        start: *mut c_void,
        len_bytes: usize,
        /// For reading only; set if the memory is shared.
        descriptor: Option<OwnedFd>,
    }

    impl Reserved {
        pub(crate) fn new(usable_bytes: usize) -> io::Result<Self> {
            let len_bytes = usable_bytes + MAPPING_ALIGN_BYTES + 2 * PAGE_BYTES;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new private mapping at an address that the kernel chooses touches no other
            // memory.
            let start = unsafe {
                rustix::mm::mmap_anonymous(ptr::null_mut(), len_bytes, ProtFlags::empty(), flags)?
            };
            Ok(Self {
                start,
                len_bytes,
                descriptor: None,
            })
        }

        /// Puts memory that has a descriptor in place of the usable part. This mapping stays the
        /// only one through which it can be written: the seal forbids any later one, and writing
        /// calls too, also to who opens the descriptor again by its path in `/proc`.
        pub(crate) fn share(&mut self, base: NonNull<u8>, usable_bytes: usize) -> io::Result<()> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            check_file_size(usable_bytes as u64)?;
            let writable = rustix::fs::memfd_create("grpcxx-arena", flags)?;
            rustix::fs::ftruncate(&writable, usable_bytes as u64)?;
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: the usable part lies in the reserved range, which is ours alone and which
            // nobody uses yet. The file is nobody else's yet, and can be written by nobody else
            // once it is sealed, before its descriptor leaves this function.
            unsafe {
                rustix::mm::mmap(
                    base.as_ptr().cast(),
                    usable_bytes,
                    access,
                    flags,
                    &writable,
                    0,
                )?;
            }
            rustix::fs::fcntl_add_seals(&writable, SEALS)?;
            let path = format!("/proc/self/fd/{}", writable.as_raw_fd());
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            self.descriptor = Some(rustix::fs::open(path, flags, Mode::empty())?);
            Ok(())
        }

        pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            self.descriptor.as_ref().map(AsFd::as_fd)
        }

        /// Opens the aligned part in the middle; what is left before and behind it guards it.
        pub(crate) fn usable_base(&self, usable_bytes: usize) -> io::Result<NonNull<u8>> {
            let first = self.start.addr() + PAGE_BYTES;
            let lead_bytes = first.next_multiple_of(MAPPING_ALIGN_BYTES) - self.start.addr();
            let access = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: `lead_bytes` is at most the alignment plus a page, so base and usable part
            // lie inside of the reserved range, which is ours alone.
            unsafe {
                let base = self.start.byte_add(lead_bytes);
                rustix::mm::mprotect(base, usable_bytes, access)?;
                NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
            }
        }

        pub(crate) fn advise_huge_pages(&self, base: NonNull<u8>, len_bytes: usize) {
            // SAFETY: this advice leaves the content of the range as it is.
            unsafe {
                rustix::mm::madvise(base.as_ptr().cast(), len_bytes, Advice::LinuxHugepage).ok();
            }
        }

        /// # Safety
        /// The part lies in the usable part and nobody uses it meanwhile.
        pub(crate) unsafe fn discard(&self, part: NonNull<u8>, len_bytes: usize) {
            // SAFETY: stated by the caller. Refusal only means that the pages stay committed.
            unsafe {
                let advice = Advice::LinuxDontNeed;
                rustix::mm::madvise(part.as_ptr().cast(), len_bytes, advice).ok();
            }
        }
    }

    impl Drop for Reserved {
        fn drop(&mut self) {
            // SAFETY: the range was mapped by `new` and its owner is going, so nobody refers to it.
            let refused = unsafe { rustix::mm::munmap(self.start, self.len_bytes) };
            debug_assert!(refused.is_ok(), "unmapping our own range");
        }
    }

    /// What can be done with shared memory by nobody any more (Linux 5.1 or later).
    const SEALS: SealFlags = SealFlags::SHRINK
        .union(SealFlags::GROW)
        .union(SealFlags::FUTURE_WRITE)
        .union(SealFlags::SEAL);
}

#[cfg(any(miri, loom))]
mod reserved {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::ptr::NonNull;

    use super::MAPPING_ALIGN_BYTES;

    /// Heap memory in place of a mapping, for checkers that know no `mmap`.
    #[derive(Debug)]
    pub(crate) struct Reserved {
        start: NonNull<u8>,
        layout: Layout,
        /// Makes loom report memory that was never freed.
        #[cfg(loom)]
        _freed: loom::alloc::Track<()>,
    }

    impl Reserved {
        pub(crate) fn new(usable_bytes: usize) -> io::Result<Self> {
            let layout = Layout::from_size_align(usable_bytes, MAPPING_ALIGN_BYTES)
                .map_err(io::Error::other)?;
            // SAFETY: the size is not zero, as `Mapping::new` asserts.
            let start = unsafe { alloc_zeroed(layout) };
            let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self {
                start,
                layout,
                #[cfg(loom)]
                _freed: loom::alloc::Track::new(()),
            })
        }

        pub(crate) fn usable_base(&self, _usable_bytes: usize) -> io::Result<NonNull<u8>> {
            Ok(self.start)
        }

        pub(crate) fn share(&mut self, _base: NonNull<u8>, _usable_bytes: usize) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        pub(crate) fn advise_huge_pages(&self, _base: NonNull<u8>, _len_bytes: usize) {}

        /// # Safety
        /// The part lies in the usable part and nobody uses it meanwhile.
        pub(crate) unsafe fn discard(&self, part: NonNull<u8>, len_bytes: usize) {
            // SAFETY: stated by the caller.
            unsafe { part.write_bytes(0, len_bytes) };
        }
    }

    impl Drop for Reserved {
        fn drop(&mut self) {
            // SAFETY: allocated by `new` with the same layout; the owner is going.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}

use reserved::Reserved;

/// Unit in which address space is handed out.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Alignment of a mapping: one huge page where there are such.
pub(crate) const MAPPING_ALIGN_BYTES: usize = if cfg!(any(miri, loom)) {
    PAGE_BYTES
} else {
    2 << 20
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_aligned_and_zero_again_after_discard() {
        let len_bytes = 4 * PAGE_BYTES;
        let mapping = Mapping::new(len_bytes).unwrap();
        mapping.advise_huge_pages();
        assert_eq!(mapping.len_bytes(), len_bytes);
        assert!(
            mapping
                .base()
                .addr()
                .get()
                .is_multiple_of(MAPPING_ALIGN_BYTES)
        );
        // SAFETY: the mapping is ours alone and `len_bytes` long.
        let bytes = unsafe { std::slice::from_raw_parts_mut(mapping.base().as_ptr(), len_bytes) };
        assert!(bytes.iter().all(|&byte| byte == 0));
        bytes.fill(7);
        // SAFETY: the slice is not used until after the call.
        unsafe { mapping.discard(PAGE_BYTES, 2 * PAGE_BYTES) };
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.base().as_ptr(), len_bytes) };
        let sum = |part: &[u8]| part.iter().map(|&byte| usize::from(byte)).sum::<usize>();
        assert_eq!(sum(&bytes[..PAGE_BYTES]), 7 * PAGE_BYTES);
        assert_eq!(sum(&bytes[PAGE_BYTES..3 * PAGE_BYTES]), 0);
        assert_eq!(sum(&bytes[3 * PAGE_BYTES..]), 7 * PAGE_BYTES);
    }

    /// Whoever has the descriptor is of the same user, and can open it again with any access.
    #[test]
    #[cfg(not(any(miri, loom)))]
    fn shared_memory_can_be_written_by_nobody_else() {
        use std::fs::OpenOptions;
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::FileExt;

        use rustix::fs::FallocateFlags;
        use rustix::io::Errno;
        use rustix::mm::{MapFlags, ProtFlags};

        let mapping = Mapping::shared(4 * PAGE_BYTES).unwrap();
        // SAFETY: the mapping is ours alone and longer than that.
        unsafe { mapping.base().write(7) };
        let path = format!(
            "/proc/self/fd/{}",
            mapping.descriptor().unwrap().as_raw_fd()
        );
        let again = OpenOptions::new().read(true).write(true).open(path);
        let again = again.unwrap();
        let refused = again.write_at(&[8], 0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::PERM.raw_os_error()));
        assert!(again.set_len(0).is_err() && again.set_len(1 << 20).is_err());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = rustix::fs::fallocate(&again, punch, 0, PAGE_BYTES as u64);
        assert_eq!(punched, Err(Errno::PERM));
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let mapped = unsafe {
            let start = std::ptr::null_mut();
            rustix::mm::mmap(start, PAGE_BYTES, access, MapFlags::SHARED, &again, 0)
        };
        assert_eq!(mapped, Err(Errno::PERM));
        let mut seen = [0];
        again.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, [7]);
    }

    #[test]
    #[cfg(not(any(miri, loom)))]
    fn more_than_the_address_space_is_an_error() {
        assert!(Mapping::new(1 << 50).is_err());
    }
}
