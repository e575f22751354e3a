//! Memory of others that is sure to stay there.

use std::os::fd::BorrowedFd;

use rustix::fs::SealFlags;
use rustix::io::Errno;

/// Length of memory that can never get shorter and never raises a bus error: sealed, and not of a
/// file.
///
/// # Errors
/// `EPERM` or `EMEDIUMTYPE` if it could get shorter.
pub fn sealed_len_bytes(descriptor: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    let seals = rustix::fs::fcntl_get_seals(descriptor)?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(Errno::PERM);
    }
    if rustix::fs::fstatfs(descriptor)?.f_type != TMPFS_MAGIC {
        return Err(Errno::MEDIUMTYPE);
    }
    u64::try_from(rustix::fs::fstat(descriptor)?.st_size).map_err(|_| Errno::INVAL)
}

/// What `statfs` says of memory without huge pages of its own, which alone is sure to be there when
/// touched.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
