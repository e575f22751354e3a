use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use grpcxx_memory::OwnFd;
use grpcxx_transport::{Ends, TransportError};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketFlags, SocketType, sockopt};

use crate::TcpOptions;

/// An incoming connection that no shard has taken yet. Dropping it closes the connection.
#[derive(Debug)]
pub struct Accepted {
    pub(crate) socket: OwnFd,
    /// The address it came from.
    pub peer: SocketAddr,
}

/// How far a dial came at once.
#[derive(Debug)]
pub(crate) enum Dial {
    Connected,
    Pending,
    Failed(Errno),
}

/// Opens a listening socket; returns it with the address in use.
pub(crate) fn listen(
    address: SocketAddr,
    options: &TcpOptions,
) -> Result<(OwnFd, SocketAddr), TransportError> {
    let fail = |call: &str| {
        let operation = format!("{call} {address}");
        move |errno: Errno| system_error(operation, errno)
    };
    let socket = new_socket(address).map_err(fail("create a socket for"))?;
    sockopt::set_socket_reuseaddr(&socket, true).map_err(fail("set SO_REUSEADDR for"))?;
    if options.reuse_port {
        sockopt::set_socket_reuseport(&socket, true).map_err(fail("set SO_REUSEPORT for"))?;
    }
    set_buffers(&socket, options).map_err(fail("set socket buffers for"))?;
    rustix::net::bind(&socket, &address).map_err(fail("bind"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(fail("listen on"))?;
    let address = local_address(&socket).map_err(fail("ask for the address bound as"))?;
    Ok((socket, address))
}

/// Opens a socket and starts to dial.
pub(crate) fn dial(
    peer: SocketAddr,
    options: &TcpOptions,
) -> Result<(OwnFd, Dial), TransportError> {
    let fail = |errno| system_error(format!("create a socket for {peer}"), errno);
    let socket = new_socket(peer).map_err(fail)?;
    set_buffers(&socket, options).map_err(fail)?;
    set_up(&socket, options).map_err(fail)?;
    let dial = loop {
        match rustix::net::connect(&socket, &peer) {
            Ok(()) => break Dial::Connected,
            Err(Errno::INPROGRESS) => break Dial::Pending,
            Err(Errno::INTR) => {}
            Err(errno) => break Dial::Failed(errno),
        }
    };
    if !matches!(dial, Dial::Failed(_)) {
        stay_near(&socket, peer, options);
    }
    Ok((socket, dial))
}

/// What became of a dial, once the socket is writable.
pub(crate) fn dial_result(socket: &OwnFd, peer: SocketAddr) -> Result<(), Errno> {
    sockopt::socket_error(socket)??;
    if rustix::net::getpeername(socket)?.is_none() {
        return Err(Errno::NOTCONN);
    }
    // A dial of a free local port can meet itself there.
    if local_address(socket)? == peer {
        return Err(Errno::CONNREFUSED);
    }
    Ok(())
}

/// Sets what both ends of a connection have.
pub(crate) fn set_up(socket: &OwnFd, options: &TcpOptions) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    if let Some(idle) = options.keepalive {
        let idle = idle.max(KEEPALIVE_INTERVAL);
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, idle)?;
        sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    }
    Ok(())
}

/// Suits a connection within this host to memory in place of a network.
///
/// A sender that is far ahead of its receiver drives out of the caches what that one is about to
/// copy, so the kernel holds little; across a network that much may have to be on its way. Nor is
/// there a network to share: the system's default may update its model of one with each packet,
/// Reno, which every Linux has, does not.
pub(crate) fn stay_near(socket: &OwnFd, peer: SocketAddr, options: &TcpOptions) {
    if !is_near(socket, peer) {
        return;
    }
    // Without these the connection is only slower.
    let _ = sockopt::set_tcp_congestion(socket, NEAR_CONGESTION);
    if options.send_buffer_bytes.is_none() {
        let _ = sockopt::set_socket_send_buffer_size(socket, NEAR_BUFFER_BYTES);
    }
}

/// The addresses between which a connection runs; `None` if it has ended.
pub(crate) fn ends(socket: BorrowedFd<'_>) -> Option<Ends> {
    let peer = rustix::net::getpeername(socket).ok()??;
    Some(Ends::new(local_address(socket).ok()?, to_std(peer)?))
}

/// Whether the peer of a connection is on this host.
pub(crate) fn is_near(socket: &OwnFd, peer: SocketAddr) -> bool {
    local_address(socket).is_ok_and(|local| local.ip() == peer.ip())
}

/// An error of the system, with what was attempted.
pub(crate) fn system_error(operation: impl Into<String>, errno: Errno) -> TransportError {
    TransportError::from_io(operation, &errno.into())
}

fn new_socket(address: SocketAddr) -> rustix::io::Result<OwnFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None).map(OwnFd::from)
}

fn set_buffers(socket: &OwnFd, options: &TcpOptions) -> rustix::io::Result<()> {
    if let Some(bytes) = options.send_buffer_bytes {
        sockopt::set_socket_send_buffer_size(socket, bytes)?;
    }
    if let Some(bytes) = options.receive_buffer_bytes {
        sockopt::set_socket_recv_buffer_size(socket, bytes)?;
    }
    Ok(())
}

fn local_address(socket: impl AsFd) -> rustix::io::Result<SocketAddr> {
    to_std(rustix::net::getsockname(socket)?).ok_or(Errno::AFNOSUPPORT)
}

/// The address as the standard library has it, if it is one of the internet.
pub(crate) fn to_std(address: SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(address).ok()
}

/// Connections that wait to be accepted; what the original asks for.
const BACKLOG: i32 = 4096;

/// Send buffer of connections within this host; the kernel doubles it.
const NEAR_BUFFER_BYTES: usize = 384 << 10;

/// Congestion control of connections within this host.
const NEAR_CONGESTION: &str = "reno";

const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_within_this_host_models_no_network() {
        let options = TcpOptions::default();
        let (_listener, address) = listen(([127, 0, 0, 1], 0).into(), &options).unwrap();
        let (socket, dial) = dial(address, &options).unwrap();
        assert!(!matches!(dial, Dial::Failed(_)), "{dial:?}");
        let congestion = sockopt::tcp_congestion(&socket).unwrap();
        assert_eq!(congestion, NEAR_CONGESTION);
        let bytes = sockopt::socket_send_buffer_size(&socket).unwrap();
        assert!(bytes <= 2 * NEAR_BUFFER_BYTES, "{bytes}");
    }
}
