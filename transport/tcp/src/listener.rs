use std::net::SocketAddr;
use std::time::Duration;

use grpcxx_memory::OwnFd;
use grpcxx_transport::{LinkHandler, ListenerId, Time};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::TcpCounters;
use crate::socket::{Accepted, system_error, to_std};

/// A socket that accepts connections.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) id: ListenerId,
    pub(crate) socket: OwnFd,
    pub(crate) state: Accepting,
    /// The ring watches the socket.
    pub(crate) watched: bool,
    address: SocketAddr,
    stall_told: bool,
}

/// What a listener waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepting {
    /// A connection, as far as is known.
    Waiting,
    /// Nothing: a connection may be there.
    Ready,
    /// The system to have descriptors and memory again.
    Stalled {
        /// When to try again.
        until: Time,
    },
}

impl Listener {
    pub(crate) fn new(id: ListenerId, socket: OwnFd, address: SocketAddr) -> Self {
        Self {
            id,
            socket,
            state: Accepting::Waiting,
            watched: false,
            address,
            stall_told: false,
        }
    }

    /// Accepts what is there, at most [`ACCEPTS_MAX`] connections. Returns the number of events.
    pub(crate) fn accept(
        &mut self,
        now: Time,
        counters: &mut TcpCounters,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        if let Accepting::Stalled { until } = self.state {
            if now < until {
                return 0;
            }
            self.state = Accepting::Ready;
        }
        let mut events = 0;
        for _ in 0..ACCEPTS_MAX {
            if self.state != Accepting::Ready {
                break;
            }
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match rustix::net::acceptfrom_with(&self.socket, flags) {
                Ok((socket, peer)) => {
                    self.stall_told = false;
                    let Some(peer) = peer.and_then(to_std) else {
                        continue;
                    };
                    counters.accepted += 1;
                    handler.accepted(
                        self.id,
                        peer,
                        Accepted {
                            socket: socket.into(),
                            peer,
                        },
                    );
                    events += 1;
                }
                Err(Errno::AGAIN) => self.state = Accepting::Waiting,
                Err(errno) if concerns_one_connection(errno) => {}
                Err(errno) => self.stall(now, errno, counters),
            }
        }
        events
    }

    fn stall(&mut self, now: Time, errno: Errno, counters: &mut TcpCounters) {
        counters.accept_stalls += 1;
        self.state = Accepting::Stalled { until: now + STALL };
        if !self.stall_told {
            self.stall_told = true;
            let error = system_error(format!("accept on {}", self.address), errno);
            tracing::warn!(
                "{error}; new connections wait, trying again every {} ms (raise the limit of open files?)",
                STALL.as_millis()
            );
        }
    }
}

/// Errors that accept(2) reports for a connection that was gone before it was accepted.
fn concerns_one_connection(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::INTR
            | Errno::CONNABORTED
            | Errno::PROTO
            | Errno::NETDOWN
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::OPNOTSUPP
            | Errno::NETUNREACH
            | Errno::PERM
            | Errno::TIMEDOUT
    )
}

/// Connections that one listener accepts in one turn.
const ACCEPTS_MAX: usize = 64;

/// How long a listener waits for descriptors or memory.
pub(crate) const STALL: Duration = Duration::from_millis(100);
