//! Who is at the other end of a socket, copies out of its memory, and how pages lie.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
    let len = size_of::<libc::ucred>();
    // SAFETY: the kernel writes to three integers, for which any bits are a value.
    unsafe {
        let place = (&raw mut credentials).cast();
        socket_option(socket, libc::SO_PEERCRED, place, len)?;
    }
    Ok(Peer {
        user: credentials.uid,
        process: credentials.pid,
    })
}

/// The process at the other end of a UNIX socket, which stays the same whoever gets its number.
///
/// # Errors
/// It has ended, or the kernel is older than 6.5 and does not tell.
pub(crate) fn peer_process(socket: impl AsFd) -> rustix::io::Result<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    let len = size_of::<libc::c_int>();
    // SAFETY: the kernel writes to an integer.
    unsafe {
        let place = (&raw mut descriptor).cast();
        socket_option(socket, SO_PEERPIDFD, place, len)?;
    }
    if descriptor < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the kernel has opened it for this call, so nobody else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Whether a process of [`peer_process`] has ended, or cannot be asked about. As long as it has
/// not, nobody else has its number.
pub(crate) fn has_ended(process: impl AsFd) -> bool {
    let process = process.as_fd();
    let mut asked = [PollFd::new(&process, PollFlags::IN)];
    !matches!(poll(&mut asked, Some(&Timespec::default())), Ok(0))
}

/// # Safety
/// At `place` the kernel may write `len` bytes.
unsafe fn socket_option(
    socket: impl AsFd,
    option: libc::c_int,
    place: *mut libc::c_void,
    len: usize,
) -> rustix::io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    let mut len = len as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, as the caller allows.
    let result = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, option, place, &raw mut len) };
    match result {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
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

/// Asks for a descriptor of the peer's process (`asm-generic/socket.h`).
const SO_PEERPIDFD: libc::c_int = 77;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;

const PAGE_IS_HUGE: u64 = 1 << 6;
