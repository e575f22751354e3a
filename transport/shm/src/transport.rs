mod park;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use grpcxx_transport::{
    CloseReason, Frame, Inbound, LinkHandler, LinkId, LinkTable, ListenerId, Next, Refusal,
    Refused, Time, Transport, TransportError,
};
use rustix::io::Errno;

use crate::bell::Bell;
use crate::bounce::Bounce;
use crate::channel::{Channel, Side, failure};
use crate::door::{self, Door, Guest};
use crate::link::{Link, Phase};
use crate::loans::Orphan;
use crate::poller::{HEARD_AT_ONCE, Poller, Subject};
use crate::sight::BlindSpots;
use crate::{ShmCounters, ShmOptions};

/// Links over shared memory, and nothing else. An address stands for a name of this host's processes: nothing of it
/// is seen by the network.
pub struct ShmTransport {
    options: ShmOptions,
    blind_spots: BlindSpots,
    poller: Poller,
    bell: Bell,
    doors: Vec<(ListenerId, SocketAddr, Door)>,
    next_listener: u32,
    links: LinkTable<Link>,
    orphans: Vec<Orphan>,
    staging: Box<[u8]>,
    bounce: Bounce,
    frames_in_flight: usize,
    counters: ShmCounters,
    /// Links whose sockets have something to say.
    heard: Vec<LinkId>,
    others_heard: bool,
    polled: Option<Time>,
    turns_since_poll: u32,
    /// The link that the next turn begins with, so that none starves.
    first: usize,
}

/// An incoming connection that no shard has taken yet. Dropping it closes the connection.
#[derive(Debug)]
pub struct Accepted {
    guest: Guest,
    peer: SocketAddr,
}

impl ShmTransport {
    /// Opens a transport.
    ///
    /// # Errors
    /// The system has no epoll or no event descriptors left.
    pub fn open(options: ShmOptions) -> Result<Self, TransportError> {
        let (poller, bell) = Self::set_up()
            .map_err(|errno| failure("set up epoll for links over shared memory", errno))?;
        let bounce = Bounce::new(&options);
        Ok(Self {
            options,
            blind_spots: BlindSpots::default(),
            poller,
            bell,
            doors: Vec::new(),
            next_listener: 0,
            links: LinkTable::new(),
            orphans: Vec::new(),
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            bounce,
            frames_in_flight: 0,
            counters: ShmCounters::default(),
            heard: Vec::with_capacity(HEARD_AT_ONCE),
            others_heard: false,
            polled: None,
            turns_since_poll: 0,
            first: 0,
        })
    }

    /// What the transport has done so far.
    pub fn counters(&self) -> ShmCounters {
        self.counters
    }

    /// The UNIX socket of a link, to shut it down as the end of a process does.
    pub fn socket(&mut self, link: LinkId) -> Option<BorrowedFd<'_>> {
        self.links.find(link)?.channel.as_ref().map(Channel::socket)
    }

    fn set_up() -> rustix::io::Result<(Poller, Bell)> {
        let (poller, bell) = (Poller::new()?, Bell::new()?);
        poller.watch(&bell, Subject::Other)?;
        Ok((poller, bell))
    }

    fn check_room(&self, operation: &str, peer: SocketAddr) -> Result<(), TransportError> {
        let limit = self.options.limits.links;
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
        self.counters.links += u64::from(channel.is_some());
        let id = self.links.insert(Link { phase, channel });
        let watched = match self.links.find(id).and_then(|link| link.channel.as_ref()) {
            Some(channel) => watch_link(&self.poller, channel.socket(), id),
            None => Ok(()),
        };
        if let Err(errno) = watched {
            self.links.take(id.slot as usize);
            self.links.free(id);
            return Err(failure("watch a link over shared memory", errno));
        }
        Ok(id)
    }

    /// Asks the kernel which sockets have something to say, and waits if there is a timeout.
    fn poll(&mut self, timeout: Option<Option<Duration>>) -> rustix::io::Result<()> {
        let (heard, others_heard) = (&mut self.heard, &mut self.others_heard);
        self.turns_since_poll = 0;
        let timeout = timeout.unwrap_or(Some(Duration::ZERO));
        self.poller.poll(timeout, |subject| match subject {
            Subject::Link(id) => heard.push(id),
            Subject::Other => *others_heard = true,
        })
    }

    /// Looks at the sockets, if it is time.
    fn listen_around(&mut self, now: Time, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        self.turns_since_poll += 1;
        let is_due = self
            .polled
            .is_none_or(|polled| now.since(polled) >= POLL_INTERVAL);
        if is_due || self.turns_since_poll >= TURNS_PER_POLL {
            self.polled = Some(now);
            if let Err(errno) = self.poll(None) {
                unreachable!("epoll_wait on a descriptor of our own: {errno}");
            }
        }
        while let Some(id) = self.heard.pop() {
            if let Some(Link {
                phase,
                channel: Some(channel),
            }) = self.links.find(id)
                && let Err(error) = channel.hear()
            {
                phase.end(CloseReason::Failed(error));
            }
        }
        if !std::mem::take(&mut self.others_heard) {
            return 0;
        }
        self.bell.take();
        self.orphans.retain_mut(|orphan| !orphan.is_settled());
        let mut events = 0;
        for (id, address, door) in &mut self.doors {
            let (id, peer) = (*id, *address);
            door.admit(now, &self.poller, &mut self.counters.refused, |guest| {
                handler.accepted(id, peer, Accepted { guest, peer });
                events += 1;
            });
        }
        events
    }

    /// Does what the state of one link asks for. Returns the number of events.
    fn advance<A>(&mut self, slot: usize, now: Time, handler: &mut dyn LinkHandler<A>) -> usize {
        let Some((id, link)) = self.links.at(slot) else {
            return 0;
        };
        let frames = link.queued_frames();
        let events = link.advance(
            id,
            now,
            &mut self.staging,
            handler,
            &mut self.bounce,
            &mut self.counters,
        );
        self.frames_in_flight -= frames - link.queued_frames();
        if events > 0 || !matches!(link.phase, Phase::Ended(_)) {
            return events;
        }
        match self.links.take(slot) {
            Some((id, link)) => self.finish(id, link, handler),
            None => 0,
        }
    }

    /// Removes a link that has ended, and reports all that follows from it.
    fn finish<A>(&mut self, id: LinkId, link: Link, handler: &mut dyn LinkHandler<A>) -> usize {
        self.frames_in_flight -= link.queued_frames();
        let Phase::Ended(reason) = link.phase else {
            unreachable!("only links that have ended are removed");
        };
        let mut events = 1;
        if let Some(channel) = link.channel {
            self.poller.forget(channel.socket());
            let (lost, orphan) = channel.finish(id, &reason, handler);
            events += lost;
            if let Some(orphan) = orphan {
                // Its end is told by the socket.
                let _ = self.poller.watch(orphan.socket(), Subject::Other);
                self.orphans.push(orphan);
                self.others_heard = true;
            }
        }
        self.links.free(id);
        if self.links.is_empty() {
            self.bounce.release();
        }
        handler.closed(id, &reason);
        events
    }
}

impl Transport for ShmTransport {
    type Accepted = Accepted;

    fn name(&self) -> &'static str {
        "shm"
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), TransportError> {
        let (address, door) = open_door(address, &self.poller)
            .map_err(|errno| failure(&format!("listen in shared memory for {address}"), errno))?;
        let id = ListenerId(self.next_listener);
        self.next_listener += 1;
        self.doors.push((id, address, door));
        Ok((id, address))
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.doors.retain(|(id, ..)| *id != listener);
    }

    fn adopt(&mut self, accepted: Accepted, next: Next) -> Result<LinkId, TransportError> {
        let Accepted { guest, peer } = accepted;
        self.check_room("adopt a connection from", peer)?;
        let inbound = Some(Inbound::new(next));
        let Guest {
            socket, segment, ..
        } = guest;
        let channel = Channel::new(
            socket,
            segment,
            Side::Acceptor,
            inbound,
            (&self.options, &self.blind_spots),
        );
        let id = self.insert(Phase::Open, Some(channel))?;
        self.heard.push(id);
        Ok(id)
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        self.check_room("connect to", peer)?;
        match door::enter(&name_of(peer), [0; 16], self.options.ring_bytes()) {
            Ok((socket, segment)) => {
                let channel = Channel::new(
                    socket,
                    segment,
                    Side::Dialler,
                    None,
                    (&self.options, &self.blind_spots),
                );
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
        match self.links.find(link) {
            Some(Link {
                phase: Phase::Open,
                channel: Some(channel),
            }) => {
                if channel.queued_frames() >= self.options.limits.queued_frames {
                    return refuse(frame, Refusal::Full);
                }
                channel.push(frame, &mut self.bounce, &mut self.counters);
                self.frames_in_flight += 1;
                Ok(())
            }
            _ => refuse(frame, Refusal::NotOpen),
        }
    }

    fn resume(&mut self, link: LinkId, next: Next) -> Result<(), Refused<Next>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        match self.links.find(link) {
            Some(Link {
                phase: Phase::Open,
                channel: Some(channel),
            }) => match channel.resume(next) {
                Ok(()) => Ok(()),
                Err(next) => refuse(next, Refusal::WrongState),
            },
            _ => refuse(next, Refusal::NotOpen),
        }
    }

    fn close(&mut self, link: LinkId, flush: bool) {
        if let Some(link) = self.links.find(link) {
            link.close(flush);
        }
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        let mut events = self.listen_around(now, handler);
        let count = self.links.slot_count();
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

    fn frames_in_flight(&self) -> usize {
        self.frames_in_flight
    }
}

impl fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmTransport")
            .field("links", &self.links.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Watches the socket of a link, which may have come through a door that watched it.
pub(crate) fn watch_link(
    poller: &Poller,
    socket: BorrowedFd<'_>,
    id: LinkId,
) -> rustix::io::Result<()> {
    match poller.watch(socket, Subject::Link(id)) {
        Err(Errno::EXIST) => poller.watch_as(socket, Subject::Link(id)),
        watched => watched,
    }
}

/// Opens the door of an address; a free one if its port is 0.
fn open_door(address: SocketAddr, poller: &Poller) -> rustix::io::Result<(SocketAddr, Door)> {
    if address.port() != 0 {
        return Door::open(name_of(address), poller).map(|door| (address, door));
    }
    let first = std::process::id() as u16;
    for step in 0..u16::MAX {
        let port = first.wrapping_add(step).max(1);
        let address = SocketAddr::new(address.ip(), port);
        match Door::open(name_of(address), poller) {
            Ok(door) => return Ok((address, door)),
            Err(Errno::ADDRINUSE) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::ADDRINUSE)
}

fn name_of(address: SocketAddr) -> Vec<u8> {
    format!("grpcxx-shm-{address}").into_bytes()
}

/// Bytes shown to a handler at a time.
pub(crate) const STAGING_BYTES: usize = 16 << 10;

/// A turn that has had this many events begins nothing more.
pub(crate) const EVENTS_ENOUGH: usize = 1024;

/// How often links that close are looked at during sleep.
pub(crate) const CLOSING_CHECK: Duration = Duration::from_millis(1);

/// How often sockets are looked at while the loop turns: rings need them only for sleep and for the end.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// As [`POLL_INTERVAL`], for clocks that stand still.
pub(crate) const TURNS_PER_POLL: u32 = 1024;
