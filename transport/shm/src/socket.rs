//! UNIX sockets in the abstract namespace, which leave nothing behind in any file system.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use grpcxx_memory::OwnFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::message::MESSAGE_BYTES_MAX;
use crate::sys::peer_of;

/// Messages that one look at a socket takes, so that other links have their turn.
pub(crate) const MESSAGES_MAX: usize = 64;

/// A message as it came.
#[derive(Debug)]
pub(crate) struct Packet {
    bytes: [u8; MESSAGE_BYTES_MAX],
    len: usize,
    pub(crate) descriptor: Option<OwnedFd>,
}

impl Packet {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

pub(crate) fn listen(name: &[u8]) -> rustix::io::Result<OwnFd> {
    let socket = new_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Dials a process of the same user.
pub(crate) fn dial(name: &[u8]) -> rustix::io::Result<OwnFd> {
    let socket = new_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    check_user(&socket)?;
    Ok(socket)
}

/// Accepts a process of the same user; others are turned away with [`Errno::PERM`].
pub(crate) fn accept(listener: impl AsFd) -> rustix::io::Result<OwnFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::accept_with(listener, flags).map(OwnFd::from)?;
    check_user(&socket)?;
    Ok(socket)
}

/// Sends a message, with a descriptor if there is one. Never waits.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(|_| ())
}

/// Takes a message; `None` is the end. Never waits.
pub(crate) fn receive(socket: impl AsFd) -> rustix::io::Result<Option<Packet>> {
    let mut packet = Packet {
        bytes: [0; MESSAGE_BYTES_MAX],
        len: 0,
        descriptor: None,
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut slices = [IoSliceMut::new(&mut packet.bytes)];
    let received = rustix::net::recvmsg(socket, &mut slices, &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            // More than one is not asked for, and closed here.
            packet.descriptor = descriptors.last();
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    packet.len = received.bytes.min(MESSAGE_BYTES_MAX);
    Ok(Some(packet))
}

fn new_socket() -> rustix::io::Result<OwnFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map(OwnFd::from)
}

fn check_user(socket: &OwnFd) -> rustix::io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if peer_of(socket)?.user == own && Some(own) != overflow_user() {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

/// Whether this process has a user that others can be found to be of too.
///
/// # Errors
/// It has not: why, and what would help.
pub(crate) fn check_own_user() -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    if Some(own) != overflow_user() {
        return Ok(());
    }
    Err(format!(
        "this process runs as user {own}, as which the kernel shows all users without a number in their namespace, so it proves nothing; run it as another user"
    ))
}

/// The user that stands for all who have no number in this namespace of users; `None` if all have.
fn overflow_user() -> Option<u32> {
    static OVERFLOW: OnceLock<Option<u32>> = OnceLock::new();
    *OVERFLOW.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if has_all_users(&map) {
            return None;
        }
        let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
        Some(text.trim().parse().unwrap_or(OVERFLOW_USER_DEFAULT))
    })
}

/// Whether a map of users has all, as that of the first namespace.
fn has_all_users(map: &str) -> bool {
    let mut words = map.split_whitespace();
    words.next() == Some("0") && words.nth(1) == Some("4294967295")
}

/// What Linux begins with.
const OVERFLOW_USER_DEFAULT: u32 = 65534;

/// Dials that wait to be accepted.
const BACKLOG: i32 = 128;

/// Descriptors of one message that are taken in, to be closed.
const DESCRIPTORS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_namespace_with_all_users_has_no_stand_in() {
        assert!(has_all_users("         0          0 4294967295\n"));
        for map in ["", "0 1000 1\n", "0 100000 65536\n", "1 1 4294967294\n"] {
            assert!(!has_all_users(map), "{map}");
        }
    }

    #[test]
    fn messages_and_descriptors_cross_and_the_end_is_told() {
        let name = format!("grpcxx-test-{}", std::process::id());
        let listener = listen(name.as_bytes()).unwrap();
        assert!(listen(name.as_bytes()).is_err(), "the name is taken");
        assert_eq!(accept(&listener).unwrap_err(), Errno::AGAIN);
        let near = dial(name.as_bytes()).unwrap();
        let far = accept(&listener).unwrap();
        send(&near, b"with", Some(listener.as_fd())).unwrap();
        send(&near, b"without", None).unwrap();
        let first = receive(&far).unwrap().unwrap();
        assert_eq!(first.bytes(), b"with");
        assert!(first.descriptor.is_some());
        let second = receive(&far).unwrap().unwrap();
        assert_eq!(second.bytes(), b"without");
        assert!(second.descriptor.is_none());
        assert_eq!(receive(&far).unwrap_err(), Errno::AGAIN);
        drop(near);
        assert!(receive(&far).unwrap().is_none());
        drop((listener, first));
        assert_eq!(dial(name.as_bytes()).unwrap_err(), Errno::CONNREFUSED);
    }
}
