use std::os::fd::{AsRawFd, OwnedFd};

use rustix::ioctl::{Getter, ioctl};

/// Bytes written to a TCP socket that the peer's system has not acknowledged.
pub(crate) fn unacknowledged_bytes(socket: &OwnedFd) -> rustix::io::Result<usize> {
    // SAFETY: for sockets this request writes one C int, and nothing else.
    let bytes = unsafe { ioctl(socket, Getter::<TIOCOUTQ, i32>::new())? };
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Asks the system to call a socket readable only once `bytes` bytes are there, or all that will
/// ever come.
pub(crate) fn set_wake_bytes(socket: &OwnedFd, bytes: usize) {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    let size = size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the option is one C int, which the system only reads. Were it refused, the socket
    // would be readable sooner, which costs wake-ups and nothing else.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size,
        );
    }
}

const TIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
