use std::os::fd::OwnedFd;

use rustix::ioctl::{Getter, ioctl};

/// Bytes written to a TCP socket that the peer's system has not acknowledged.
pub(crate) fn unacknowledged_bytes(socket: &OwnedFd) -> rustix::io::Result<usize> {
    // SAFETY: for sockets this request writes one C int, and nothing else.
    let bytes = unsafe { ioctl(socket, Getter::<TIOCOUTQ, i32>::new())? };
    Ok(usize::try_from(bytes).unwrap_or(0))
}

const TIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
