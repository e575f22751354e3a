use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// The user of the process at the other end of a UNIX socket, when it connected or listened.
pub(crate) fn peer_user(socket: impl AsFd) -> rustix::io::Result<u32> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of a structure of this layout, which has three integers.
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
    Ok(credentials.uid)
}
