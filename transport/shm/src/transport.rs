//! A transport whose links are in shared memory from the start.

mod park;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use grpcxx_transport::{
    CloseReason, Frame, Inbound, LinkHandler, LinkId, ListenerId, Next, Reading, Refusal, Refused,
    SlotTable, Time, Transport, TransportError, links_stay,
};
use rustix::io::Errno;

use crate::channel::{Channel, Side, failure};
use crate::driver::{EVENTS_ENOUGH, LinkDriver};
use crate::link::{Link, Phase};
use crate::message::LinkClaim;
use crate::poller::{Subject, watch_link};
use crate::rendezvous::{self, PendingPeer, RendezvousSocket};
use crate::wakeup::WakeUp;
use crate::{ShmCounters, ShmOptions};

/// Links over shared memory, and nothing else. An address stands for a name of this host's
/// processes: nothing of it is seen by the network.
pub struct ShmTransport {
    driver: LinkDriver,
    wakeup: WakeUp,
    listeners: Vec<(ListenerId, SocketAddr, RendezvousSocket)>,
    next_listener: u32,
    links: SlotTable<Link, LinkId>,
    /// The link that the next turn begins with, so that none starves.
    first: u32,
}

/// An incoming connection that no shard has taken yet. Dropping it closes the connection.
#[derive(Debug)]
pub struct Accepted {
    pending: PendingPeer,
    peer: SocketAddr,
}

impl ShmTransport {
    /// Opens a transport.
    ///
    /// # Errors
    /// The system has no epoll or no event descriptors left.
    pub fn open(options: ShmOptions) -> Result<Self, TransportError> {
        let set_up = || {
            let (driver, wakeup) = (LinkDriver::open(options)?, WakeUp::new()?);
            driver.poller.watch(&wakeup, Subject::Other)?;
            Ok((driver, wakeup))
        };
        let (driver, wakeup) = set_up()
            .map_err(|errno| failure("set up epoll for links over shared memory", errno))?;
        Ok(Self {
            driver,
            wakeup,
            listeners: Vec::new(),
            next_listener: 0,
            links: SlotTable::unlimited(),
            first: 0,
        })
    }

    /// What the transport has done so far.
    pub fn counters(&self) -> ShmCounters {
        self.driver.counters
    }

    /// The UNIX socket of a link, to shut it down as the end of a process does.
    pub fn socket(&mut self, link: LinkId) -> Option<BorrowedFd<'_>> {
        self.links
            .find_mut(link)?
            .channel
            .as_ref()
            .map(Channel::socket)
    }

    fn check_room(&self, operation: &str, peer: SocketAddr) -> Result<(), TransportError> {
        let limit = self.driver.options.limits.links;
        if self.links.len() < limit {
            return Ok(());
        }
        Err(TransportError {
            operation: format!("{operation} {peer}"),
            errno: 0,
            message: format!("all {limit} links are in use; close some or raise LinkLimits::links"),
        })
    }

    fn insert(&mut self, phase: Phase, channel: Option<Channel>) -> Result<LinkId, TransportError> {
        self.driver.counters.links += u64::from(channel.is_some());
        let id = self.links.insert_with(|| Link { phase, channel });
        let watched = match self
            .links
            .find_mut(id)
            .and_then(|link| link.channel.as_ref())
        {
            Some(channel) => watch_link(&self.driver.poller, channel.socket(), id),
            None => Ok(()),
        };
        if let Err(errno) = watched {
            self.links.remove(id);
            return Err(failure("watch a link over shared memory", errno));
        }
        Ok(id)
    }

    /// Looks at the sockets, if it is time.
    fn listen_around(&mut self, now: Time, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        self.driver.look_if_due(now);
        let mut left = self.driver.readable.len();
        while let Some(id) = self.driver.take_readable(&mut left) {
            if let Some(link) = self.links.find_mut(id)
                && link.hear()
            {
                self.driver.readable.push_back(id);
            }
        }
        if !self.driver.take_others() {
            return 0;
        }
        self.wakeup.take();
        let mut events = 0;
        let LinkDriver {
            poller,
            counters,
            is_other_readable,
            ..
        } = &mut self.driver;
        for (id, address, rendezvous) in &mut self.listeners {
            let (id, peer) = (*id, *address);
            let has_more = rendezvous.admit(now, poller, &mut counters.refused, |pending| {
                handler.accepted(id, peer, Accepted { pending, peer });
                events += 1;
            });
            *is_other_readable |= has_more;
        }
        events
    }

    /// Does what the state of one link asks for. Returns the number of events.
    fn advance<A>(&mut self, slot: u32, now: Time, handler: &mut dyn LinkHandler<A>) -> usize {
        let Some((id, link)) = self.links.at(slot) else {
            return 0;
        };
        let (events, has_ended) = self.driver.advance(id, link, now, handler);
        if !has_ended {
            return events;
        }
        let Some(link) = self.links.remove(id) else {
            return events;
        };
        let (events, reason) = self.driver.finish(id, link, handler);
        if self.links.is_empty() {
            self.driver.release_memory();
        }
        handler.closed(id, &reason);
        events + 1
    }
}

impl Transport for ShmTransport {
    type Accepted = Accepted;

    links_stay!();

    fn name(&self) -> &'static str {
        "shm"
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), TransportError> {
        let (address, rendezvous) = open_rendezvous(address, &self.driver)
            .map_err(|errno| failure(&format!("listen in shared memory for {address}"), errno))?;
        let id = ListenerId(self.next_listener);
        self.next_listener += 1;
        self.listeners.push((id, address, rendezvous));
        Ok((id, address))
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.listeners.retain(|(id, ..)| *id != listener);
    }

    fn adopt(&mut self, accepted: Accepted, next: Next) -> Result<LinkId, TransportError> {
        let Accepted { pending, peer } = accepted;
        self.check_room("adopt a connection from", peer)?;
        let PendingPeer {
            socket, segment, ..
        } = pending;
        let inbound = Some(Inbound::new(next));
        let channel = (self.driver).channel(socket, segment, Side::Acceptor, inbound);
        let id = self.insert(Phase::Open, Some(channel))?;
        self.driver.readable.push_back(id);
        Ok(id)
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        self.check_room("connect to", peer)?;
        let ring_bytes = self.driver.options.ring_bytes();
        match rendezvous::enter(&name_of(peer), LinkClaim::default(), ring_bytes) {
            Ok((socket, segment)) => {
                let channel = self.driver.channel(socket, segment, Side::Dialler, None);
                self.insert(Phase::Dialled, Some(channel))
            }
            Err((operation, errno)) => {
                let error = failure(&format!("{operation} for {peer}"), errno);
                self.insert(Phase::Ended(CloseReason::Failed(error)), None)
            }
        }
    }

    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        let Some(link) = self.links.find_mut(link) else {
            return refuse(frame, Refusal::NotOpen);
        };
        match self.driver.check_room(link) {
            Ok(()) => {
                self.driver.push(link, frame);
                Ok(())
            }
            Err(refusal) => refuse(frame, refusal),
        }
    }

    fn resume(&mut self, link: LinkId, next: Next) -> Result<(), Refused<Next>> {
        match self.links.find_mut(link) {
            Some(link) => link.resume(next),
            None => Err(Refused {
                value: next,
                refusal: Refusal::NotOpen,
            }),
        }
    }

    fn end_stream(&mut self, link: LinkId) {
        self.close(link, true);
    }

    fn close(&mut self, link: LinkId, flush: bool) {
        if let Some(link) = self.links.find_mut(link) {
            link.close(flush);
        }
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        let mut events = self.listen_around(now, handler);
        let count = self.links.slots().end;
        for step in 0..count {
            let slot = (self.first + step) % count;
            events += self.advance(slot, now, handler);
            if events >= EVENTS_ENOUGH {
                self.first = slot + 1;
                break;
            }
        }
        events
    }

    fn submit(&mut self) {
        // Frames leave when they are sent, or with the turn.
    }

    fn frames_in_flight(&self) -> usize {
        self.driver.frames_in_flight
    }

    fn reading(&mut self, link: LinkId) -> Option<Reading> {
        self.links.find(link)?.reading()
    }
}

impl fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmTransport")
            .field("links", &self.links.len())
            .field("counters", &self.driver.counters)
            .finish_non_exhaustive()
    }
}

/// Opens the rendezvous socket of an address; of a free one if its port is 0.
fn open_rendezvous(
    address: SocketAddr,
    driver: &LinkDriver,
) -> rustix::io::Result<(SocketAddr, RendezvousSocket)> {
    let open = |address| {
        RendezvousSocket::open(name_of(address), &driver.poller, &driver.options)
            .map(|rendezvous| (address, rendezvous))
    };
    if address.port() != 0 {
        return open(address);
    }
    let first = std::process::id() as u16;
    for step in 0..u16::MAX {
        let port = first.wrapping_add(step).max(1);
        match open(SocketAddr::new(address.ip(), port)) {
            Err(Errno::ADDRINUSE) => {}
            opened => return opened,
        }
    }
    Err(Errno::ADDRINUSE)
}

fn name_of(address: SocketAddr) -> Vec<u8> {
    format!("grpcxx-shm-{address}").into_bytes()
}
