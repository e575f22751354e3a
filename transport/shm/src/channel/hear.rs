//! The messages of both ends on the socket of a link.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use grpcxx_memory::Leases;
use grpcxx_transport::TransportError;
use rustix::io::Errno;

use super::{ARENAS_MAX, ARENAS_UNMAPPED_MAX, ArenaAccess, Channel, KnownArena, broken, failure};
use crate::loans::{BorrowedParts, PeerMemory};
use crate::memory::PeerArena;
use crate::message::{Mark, Message};
use crate::ring::LOANS_MAX;
use crate::sight::PeerProcess;
use crate::socket;

impl Channel {
    /// Sends a message to the peer.
    pub(crate) fn tell(&self, message: &Message) -> rustix::io::Result<()> {
        socket::send(&*self.socket, &message.encode(), None)
    }

    /// Takes the messages of the peer, as many as one look may.
    pub(crate) fn hear(&mut self) -> Result<(), TransportError> {
        self.has_unheard = false;
        for _ in 0..socket::MESSAGES_MAX {
            let packet = match socket::receive(&*self.socket) {
                Ok(Some(packet)) => packet,
                Ok(None) | Err(Errno::CONNRESET | Errno::PIPE) => {
                    self.peer_gone = true;
                    return Ok(());
                }
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(failure("receive from the peer's socket", errno)),
            };
            match Message::decode(packet.bytes()) {
                Ok(Message::Wake) => {}
                Ok(Message::Arena) => self.meet_arena(packet.descriptor)?,
                Ok(Message::Look { address, mark }) if !self.has_looked => {
                    self.look(address, &mark);
                }
                Ok(Message::Seen) if self.sight.note_seen() => {}
                Ok(Message::Switch { cut }) if self.cut.is_none() => self.cut = Some(cut),
                Ok(
                    Message::Hello { .. }
                    | Message::Welcome
                    | Message::Refuse { .. }
                    | Message::Switch { .. }
                    | Message::Look { .. }
                    | Message::Seen,
                ) => {
                    return Err(broken("a message at the wrong time"));
                }
                Err(garbage) => return Err(broken(&garbage.to_string())),
            }
        }
        self.has_unheard = true;
        Ok(())
    }

    /// Whether the last look at the socket has left messages there, of which nobody tells again.
    pub(crate) fn has_unheard(&self) -> bool {
        self.has_unheard
    }

    /// How many bytes of the medium before the peer's stream has, if it has said so.
    pub(crate) fn cut(&self) -> Option<u64> {
        self.cut
    }

    /// Whether the peer's end of the socket is closed.
    pub(crate) fn is_peer_gone(&self) -> bool {
        self.peer_gone
    }

    /// Tries to read the peer's memory, and says so if it can.
    fn look(&mut self, address: u64, mark: &Mark) {
        self.has_looked = true;
        if self.show_bytes_min == usize::MAX {
            return;
        }
        self.peer_process = PeerProcess::find(&*self.socket, address, mark, &self.blind_spots);
        if self.peer_process.is_some() {
            // A peer that does not hear it shows nothing.
            let _ = self.tell(&Message::Seen);
        }
    }

    fn meet_arena(&mut self, descriptor: Option<OwnedFd>) -> Result<(), TransportError> {
        let Some(descriptor) = descriptor else {
            return Err(broken("an arena without its descriptor"));
        };
        if self.peer_arenas.len() >= ARENAS_MAX {
            return Err(broken("more arenas than are allowed"));
        }
        let len_bytes = PeerArena::check(descriptor.as_fd(), ARENA_BYTES_MAX)
            .map_err(|errno| failure("take an arena of the peer", errno))?;
        let opened = PeerArena::open(descriptor.as_fd(), len_bytes, self.mapped_bytes_max);
        let access = match opened {
            Ok(arena) => {
                let borrowed = Arc::new(BorrowedParts::new(arena, len_bytes));
                let memory = PeerMemory::new(&borrowed, self.returns())
                    .map_err(|error| TransportError::from_io("look after forks", &error))?;
                ArenaAccess::Mapped {
                    leases: Leases::new(memory, LOANS_MAX as u32),
                    borrowed,
                }
            }
            Err(Errno::NOMEM) if self.unmapped_arenas() < ARENAS_UNMAPPED_MAX => {
                ArenaAccess::Unmapped(Arc::new(descriptor))
            }
            Err(errno) => return Err(failure("map an arena of the peer", errno)),
        };
        self.peer_arenas.push(KnownArena { len_bytes, access });
        Ok(())
    }

    fn unmapped_arenas(&self) -> usize {
        let is_unmapped = |arena: &&KnownArena| matches!(arena.access, ArenaAccess::Unmapped(_));
        self.peer_arenas.iter().filter(is_unmapped).count()
    }
}

/// Longest arena of a peer.
const ARENA_BYTES_MAX: u64 = 1 << 40;
