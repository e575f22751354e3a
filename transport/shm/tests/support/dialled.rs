//! A hostile peer that a victim dials.

use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use grpcxx_shm::RING_BYTES_MIN;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use super::hostile::{Peer, RING};

/// Offsets in a segment of the lane and the ring of an end that was dialled.
pub const DIALLED_TAIL: u64 = 512;
pub const DIALLED_RING: u64 = RING + RING_BYTES_MIN as u64;

impl Peer {
    /// Answers the dial of a victim, whose memory it takes.
    pub fn answer(listener: &OwnedFd) -> Self {
        let socket = rustix::net::accept_with(listener, SocketFlags::CLOEXEC).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let (mut bytes, flags) = ([0; 64], RecvFlags::CMSG_CLOEXEC);
        let mut slices = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(&socket, &mut slices, &mut control, flags).unwrap();
        let segment = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let segment = File::from(segment.unwrap());
        Self { socket, segment }
    }

    /// Where a victim may dial, and the address for that.
    pub fn listen() -> (OwnedFd, SocketAddr) {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        for port in 1.. {
            let address = SocketAddr::from(([127, 66, 66, 66], port));
            let name = format!("grpcxx-shm-{address}");
            let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            if rustix::net::bind(&socket, &name).is_ok() {
                rustix::net::listen(&socket, 1).unwrap();
                return (socket, address);
            }
        }
        unreachable!("one of all ports is free");
    }
}
