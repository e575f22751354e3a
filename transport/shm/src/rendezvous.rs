//! The socket on which processes of this host and user meet to share memory.

use std::os::fd::AsFd;

use grpcxx_memory::OwnFd;
use grpcxx_transport::Time;
use rustix::io::Errno;

use crate::mapped;
use crate::memory::Memory;
use crate::message::{LinkClaim, Message};
use crate::options::{RING_BYTES_MAX, RING_BYTES_MIN, ShmOptions};
use crate::poller::{Poller, Subject};
use crate::segment::{Segment, len_bytes};
use crate::socket;

/// Where processes of this host and user dial to share memory.
#[derive(Debug)]
pub(crate) struct RendezvousSocket {
    name: Vec<u8>,
    listener: OwnFd,
    /// Connections that have not said what they want.
    silent: Vec<(Time, OwnFd)>,
    silent_max: usize,
    mapped_bytes_max: u64,
}

/// A process that has dialled, with the memory that it brought.
#[derive(Debug)]
pub(crate) struct PendingPeer {
    pub(crate) socket: OwnFd,
    pub(crate) segment: Segment,
    pub(crate) claim: LinkClaim,
}

impl RendezvousSocket {
    pub(crate) fn open(
        name: Vec<u8>,
        poller: &Poller,
        options: &ShmOptions,
    ) -> rustix::io::Result<Self> {
        let listener = socket::listen(&name)?;
        poller.watch(&listener, Subject::Other)?;
        Ok(Self {
            name,
            listener,
            silent: Vec::new(),
            silent_max: options.silent_max.max(1),
            mapped_bytes_max: options.mapped_bytes_max,
        })
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Accepts peers, and hands over those that have sent their memory. Counts those that are
    /// turned away. Returns whether others may wait, of which nobody tells again.
    pub(crate) fn admit(
        &mut self,
        now: Time,
        poller: &Poller,
        refused: &mut u64,
        mut each: impl FnMut(PendingPeer),
    ) -> bool {
        // Few at a time where few files are to be had, since each is one until it is heard.
        let at_once = ACCEPTS_MAX.min(self.silent_max);
        for _ in 0..ACCEPTS_MAX.div_ceil(at_once) {
            let are_all_accepted = self.accept(at_once, now, poller, refused);
            self.greet_all(now, refused, &mut each);
            // Only now it is known who has said nothing.
            let beyond = self.silent.len().saturating_sub(self.silent_max);
            self.silent.drain(..beyond);
            *refused += beyond as u64;
            if are_all_accepted {
                return false;
            }
        }
        true
    }

    /// Accepts up to so many peers. Returns whether no other one waits.
    fn accept(&mut self, count: usize, now: Time, poller: &Poller, refused: &mut u64) -> bool {
        for _ in 0..count {
            match socket::accept(&self.listener) {
                Ok(socket) => {
                    if poller.watch(&socket, Subject::Other).is_ok() {
                        self.silent.push((now, socket));
                    }
                }
                Err(Errno::PERM) => *refused += 1,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return true,
            }
        }
        false
    }

    /// Hears what those say that have said nothing before, and hands over those with their memory.
    fn greet_all(&mut self, now: Time, refused: &mut u64, each: &mut impl FnMut(PendingPeer)) {
        let mut index = 0;
        while let Some((since, socket)) = self.silent.get(index) {
            match greet(socket, self.mapped_bytes_max) {
                None if now.since(*since) <= crate::HANDSHAKE_TIME_MAX => index += 1,
                None | Some(Err(Unfit::Garbage)) => {
                    self.silent.remove(index);
                    *refused += 1;
                }
                Some(Err(Unfit::NoRoom)) => {
                    let reason = mapped::no_room(self.mapped_bytes_max);
                    // Who does not hear why learns by the end of the socket.
                    let _ = socket::send(socket, &Message::Refuse { reason }.encode(), None);
                    self.silent.remove(index);
                    *refused += 1;
                }
                Some(Ok((segment, claim))) => {
                    let (_, socket) = self.silent.remove(index);
                    each(PendingPeer {
                        socket,
                        segment,
                        claim,
                    });
                }
            }
        }
    }
}

/// Why a connection is turned away.
enum Unfit {
    Garbage,
    /// Its memory has no room beside that of other peers.
    NoRoom,
}

/// Reads what a connection says first; `None` if that is nothing yet.
fn greet(socket: &OwnFd, mapped_bytes_max: u64) -> Option<Result<(Segment, LinkClaim), Unfit>> {
    let packet = match socket::receive(socket) {
        Ok(Some(packet)) => packet,
        Err(Errno::AGAIN | Errno::INTR) => return None,
        Ok(None) | Err(_) => return Some(Err(Unfit::Garbage)),
    };
    let Ok(Message::Hello { claim, ring_bytes }) = Message::decode(packet.bytes()) else {
        return Some(Err(Unfit::Garbage));
    };
    let segment = usize::try_from(ring_bytes)
        .ok()
        .filter(|bytes| (RING_BYTES_MIN..=RING_BYTES_MAX).contains(bytes))
        .filter(|bytes| bytes.is_power_of_two())
        .zip(packet.descriptor)
        .ok_or(Unfit::Garbage)
        .and_then(|(bytes, descriptor)| {
            let memory = Memory::open(descriptor.as_fd(), len_bytes(bytes), mapped_bytes_max);
            let memory = memory.map_err(|errno| match errno {
                Errno::NOMEM => Unfit::NoRoom,
                _ => Unfit::Garbage,
            })?;
            Ok((Segment::new(memory, bytes), claim))
        });
    Some(segment)
}

/// Dials a rendezvous socket and brings memory along.
pub(crate) fn enter(
    name: &[u8],
    claim: LinkClaim,
    ring_bytes: usize,
) -> Result<(OwnFd, Segment), (&'static str, Errno)> {
    let socket =
        socket::dial(name).map_err(|errno| ("connect to the peer's UNIX socket", errno))?;
    let (memory, descriptor) =
        Memory::create(len_bytes(ring_bytes)).map_err(|errno| match errno {
            Errno::FBIG => (
                "create shared memory within the limit of `ulimit -f`",
                errno,
            ),
            _ => ("create shared memory with memfd_create", errno),
        })?;
    let hello = Message::Hello {
        claim,
        ring_bytes: ring_bytes as u64,
    };
    socket::send(&socket, &hello.encode(), Some(descriptor.as_fd()))
        .map_err(|errno| ("send to the peer's UNIX socket", errno))?;
    Ok((socket, Segment::new(memory, ring_bytes)))
}

/// Connections that are accepted at once.
const ACCEPTS_MAX: usize = 64;
