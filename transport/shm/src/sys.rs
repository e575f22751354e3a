use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Who is at the other end of a UNIX socket, or was when it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) user: u32,
    /// 0 if it has none here, because it lives in another namespace of processes.
    pub(crate) process: i32,
}

/// Who is at the other end of a UNIX socket.
pub(crate) fn peer_of(socket: impl AsFd) -> rustix::io::Result<Peer> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of a structure of this layout, which has three
    // integers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(Errno::IO);
    }
    Ok(Peer {
        user: credentials.uid,
        process: credentials.pid,
    })
}

/// Copies memory of another process, at least a byte of it unless `into` is empty. Returns how many
/// bytes.
///
/// # Errors
/// The process is gone, may not be read, or has nothing at the address.
pub(crate) fn read_process(
    process: i32,
    address: u64,
    into: &mut [u8],
) -> rustix::io::Result<usize> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: into.len(),
    };
    // SAFETY: the kernel writes to `into` alone, at most its length; it checks the other address,
    // which is never used in this process.
    let read = unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) };
    match usize::try_from(read) {
        Ok(0) if !into.is_empty() => Err(Errno::FAULT),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(last_errno()),
    }
}

/// What the kernel is asked about pages: `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// Pages that are alike: `struct page_region` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// Whether a stretch of this process's memory, at multiples of the page size, begins with a huge
/// page. `pagemap` is `/proc/self/pagemap`.
///
/// # Errors
/// The kernel is older than 6.7 and cannot say.
pub(crate) fn has_huge_page(
    pagemap: impl AsFd,
    address: u64,
    len_bytes: u64,
) -> rustix::io::Result<bool> {
    let mut region = PageRegion::default();
    let mut arguments = ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        start: address,
        end: address + len_bytes,
        regions: (&raw mut region).addr() as u64,
        regions_len: 1,
        max_pages: 1,
        category_mask: PAGE_IS_HUGE,
        return_mask: PAGE_IS_HUGE,
        ..ScanArguments::default()
    };
    let pagemap = pagemap.as_fd().as_raw_fd();
    // SAFETY: the kernel reads and writes a structure of this layout, whose size it checks, and
    // writes at most one region, to the place of one.
    let regions = unsafe { libc::ioctl(pagemap, PAGEMAP_SCAN, &raw mut arguments) };
    if regions < 0 {
        return Err(last_errno());
    }
    Ok(regions == 1 && region.start == address)
}

fn last_errno() -> Errno {
    let errno = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(errno.unwrap_or(libc::EIO))
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;

const PAGE_IS_HUGE: u64 = 1 << 6;
