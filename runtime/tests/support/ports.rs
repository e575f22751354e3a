//! Ports that tests tell to others before anybody listens on them.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// A port on which this process and its children can listen, one after the other, and which the
/// system gives to nobody else as long as this process lives.
///
/// A socket is bound to it and does not listen. The system gives out no port that is bound. Sockets
/// share one if all of them say so before (`SO_REUSEADDR`), as listeners of Rust, of OpenSSL and of
/// gRPC do, and no other one listens.
pub(crate) fn held_port() -> u16 {
    static HELD: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    // Children do not get it: one that lives on would hold the port.
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    rustix::net::bind(&socket, &any).unwrap();
    let bound: SocketAddr = rustix::net::getsockname(&socket)
        .unwrap()
        .try_into()
        .unwrap();
    HELD.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(socket);
    bound.port()
}

/// An address of the loopback interface with such a port.
#[allow(dead_code, reason = "each test file uses a part")]
pub(crate) fn held_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, held_port()).into()
}
