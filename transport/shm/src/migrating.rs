//! Shared memory as a medium that links migrate to.
//!
//! The handshake has a UNIX socket of its own. Each end says there how many bytes of its stream the
//! base transport has, and puts what follows into its ring. Nothing is sent on the base transport
//! but the stream.

mod handshake;
mod offer;

pub(crate) use offer::secret;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use grpcxx_transport::{
    CloseReason, Frame, LinkHandler, LinkId, LinkRegistry, Medium, MediumKind, Next, Reading,
    Refusal, Refused, Time, TransportError,
};

use self::handshake::Handshake;
use self::offer::{HostId, Offer};
use crate::channel::failure;
use crate::driver::{CLOSING_CHECK, EVENTS_ENOUGH, LinkDriver};
use crate::link::{Link, Phase};
use crate::rendezvous::RendezvousSocket;
use crate::{HANDSHAKE_TIME_MAX, ShmCounters, ShmOptions, socket};

/// Links migrate to shared memory where both ends are on one host and run as one user.
///
/// [`ShmOptions::limits`] bounds the links that have migrated, and the frames that wait in each of
/// them.
pub struct ShmMedium {
    driver: LinkDriver,
    host: HostId,
    rendezvous: RendezvousSocket,
    migrated: Vec<LinkId>,
    last_failure: Option<String>,
}

impl ShmMedium {
    /// Opens the socket on which peers ask for their links.
    ///
    /// # Errors
    /// What links need to share memory cannot be had here.
    pub fn open(options: ShmOptions) -> Result<Self, TransportError> {
        let host = offer::host_id().ok_or_else(|| TransportError {
            operation: "read /proc/sys/kernel/random/boot_id".to_owned(),
            errno: 0,
            message: "it does not tell which host this is".to_owned(),
        })?;
        socket::check_own_user().map_err(|message| TransportError {
            operation: "show peers which user this is".to_owned(),
            errno: 0,
            message,
        })?;
        let driver = LinkDriver::open(options)
            .map_err(|errno| failure("set up epoll for links over shared memory", errno))?;
        let name = format!(
            "grpcxx-link-{}-{:016x}",
            std::process::id(),
            offer::secret()
        );
        let rendezvous = RendezvousSocket::open(name.into_bytes(), &driver.poller, &driver.options)
            .map_err(|errno| failure("listen on an abstract UNIX socket", errno))?;
        Ok(Self {
            driver,
            host,
            rendezvous,
            migrated: Vec::new(),
            last_failure: None,
        })
    }

    /// What links have done in shared memory so far.
    pub fn counters(&self) -> ShmCounters {
        self.driver.counters
    }

    /// Links that are in shared memory now.
    pub fn migrated_links(&self) -> usize {
        self.migrated.len()
    }

    /// Why the last link that could not migrate stayed where it was.
    pub fn last_failure(&self) -> Option<&str> {
        self.last_failure.as_deref()
    }
}

impl Medium for ShmMedium {
    type Handshake = Handshake;
    type Link = Link;

    const KIND: MediumKind = MediumKind::SharedMemory;
    const HOLDS_FRAMES: bool = false;
    const ANSWER_TIME_MAX: Duration = HANDSHAKE_TIME_MAX;
    const BUSY_TIME: Duration = Duration::from_micros(50);

    fn split_offer(offer: &[u8]) -> (&[u8], &[u8]) {
        (&[], offer)
    }

    fn find_record(_: &Handshake, _: &[u8]) -> Option<usize> {
        None
    }

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.driver.poller.as_fd()), None]
    }

    fn offer(&mut self, id: LinkId, handshake: &mut Handshake, bytes: &mut Vec<u8>) {
        let secret = match handshake {
            Handshake::None => offer::secret(),
            Handshake::Offered { secret } => *secret,
            Handshake::Asked { .. } | Handshake::Welcomed(_) => return,
        };
        *handshake = Handshake::Offered { secret };
        let offer = Offer {
            host: self.host,
            token: offer::token(id, secret),
            socket_name: self.rendezvous.name().to_vec(),
        };
        bytes.extend_from_slice(&offer.encode());
    }

    fn ask(&mut self, links: &mut LinkRegistry<Self>, id: LinkId, _: &[u8], offer: &[u8]) {
        self.enter(links, id, offer);
    }

    fn take_record(
        &mut self,
        links: &mut LinkRegistry<Self>,
        id: LinkId,
        _: &[u8],
        _: Next,
    ) -> bool {
        links.fail(id, "a record came, and shared memory has none", self);
        false
    }

    fn give_up(&mut self, links: &mut LinkRegistry<Self>, id: LinkId) {
        if let Some(handshake) = links.link(id).and_then(|link| link.handshake()) {
            *handshake = Handshake::None;
        }
        let reason =
            format!("the peer did not answer at its UNIX socket within {HANDSHAKE_TIME_MAX:?}");
        self.decline(links, id, &reason);
    }

    fn abandon(&mut self, handshake: Handshake) {
        // Its sockets close, which tells the peer and ends their watch.
        drop(handshake);
    }

    fn check_room(&mut self, link: &Link) -> Result<(), Refusal> {
        self.driver.check_room(link)
    }

    fn push(&mut self, link: &mut Link, frame: Box<Frame>) {
        self.driver.push(link, frame);
    }

    fn hold(&mut self, link: &mut Link, is_held: bool) {
        if let Some(channel) = &mut link.channel {
            channel.hold(is_held);
        }
    }

    fn open(&mut self, link: &mut Link, next: Next) {
        if let Some(channel) = &mut link.channel {
            channel.open(next);
        }
    }

    fn resume(&mut self, link: &mut Link, next: Next) -> Result<(), Refused<Next>> {
        link.resume(next)
    }

    fn reading(&mut self, link: &mut Link) -> Option<Reading> {
        link.reading()
    }

    fn close(&mut self, link: &mut Link, flush: bool) {
        link.close(flush);
    }

    fn end(&mut self, link: &mut Link, reason: CloseReason) {
        link.phase.end(reason);
    }

    fn base_lost(&mut self, link: &mut Link, _: &CloseReason) -> Option<u64> {
        let channel = link.channel.as_mut().filter(|channel| !channel.is_open())?;
        // The peer may have said where it goes on just before. What else is wrong ends the link
        // anyway.
        let _ = channel.hear();
        channel.cut()
    }

    fn listen(&mut self, links: &mut LinkRegistry<Self>, now: Time) {
        self.driver.look_if_due(now);
        let mut left = self.driver.readable.len();
        while let Some(id) = self.driver.take_readable(&mut left) {
            self.hear(links, id);
        }
        if self.driver.take_others() {
            self.admit(links, now);
        }
    }

    fn turn<A>(
        &mut self,
        links: &mut LinkRegistry<Self>,
        now: Time,
        handler: &mut dyn LinkHandler<A>,
    ) -> usize {
        let mut events = 0;
        let mut index = 0;
        while let Some(&id) = self.migrated.get(index) {
            if events >= EVENTS_ENOUGH {
                // The next turn begins with the others.
                self.migrated.rotate_left(index);
                break;
            }
            let Some(link) = links.link(id).and_then(|link| link.migrated()) else {
                self.migrated.swap_remove(index);
                continue;
            };
            let (count, has_ended) = self.driver.advance(id, link, now, handler);
            events += count;
            if has_ended {
                self.migrated.swap_remove(index);
                events += self.finish(links, id, handler);
            } else {
                index += 1;
            }
        }
        events
    }

    fn submit(&mut self) {
        // A frame is written when it is queued, as far as there is room.
    }

    fn frames_in_flight(&self) -> usize {
        self.driver.frames_in_flight
    }

    fn arm(&mut self, links: &mut LinkRegistry<Self>) -> bool {
        if self.driver.has_readable() {
            return false;
        }
        for &id in &self.migrated {
            if let Some(link) = links.link(id).and_then(|link| link.migrated())
                && !link.fall_asleep()
            {
                self.disarm(links);
                return false;
            }
        }
        if self.driver.look() {
            self.disarm(links);
            return false;
        }
        true
    }

    fn disarm(&mut self, links: &mut LinkRegistry<Self>) {
        for &id in &self.migrated {
            if let Some(link) = links.link(id).and_then(|link| link.migrated()) {
                link.wake_up();
            }
        }
        self.driver.look_soon();
    }

    fn patience(&mut self, links: &mut LinkRegistry<Self>) -> Option<Duration> {
        let mut is_flushing = |id: &LinkId| {
            let link = links.link(*id).and_then(|link| link.migrated());
            link.is_some_and(|link| matches!(link.phase, Phase::Flushing { .. }))
        };
        (self.migrated.iter().any(&mut is_flushing)).then_some(CLOSING_CHECK)
    }

    fn is_waiting(&self) -> bool {
        false
    }
}

impl ShmMedium {
    /// Reports all that follows from the end of a link in shared memory.
    fn finish<A>(
        &mut self,
        links: &mut LinkRegistry<Self>,
        id: LinkId,
        handler: &mut dyn LinkHandler<A>,
    ) -> usize {
        let link = links.link(id).and_then(|link| link.migrated());
        let Some(Phase::Ended(reason)) = link.map(|link| &link.phase) else {
            return 0;
        };
        let reason = reason.clone();
        let Some(link) = links.leave(id, reason) else {
            return 0;
        };
        let (events, _) = self.driver.finish(id, link, handler);
        if self.migrated.is_empty() {
            self.driver.release_memory();
        }
        events
    }
}

impl fmt::Debug for ShmMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmMedium")
            .field("migrated", &self.migrated.len())
            .field("counters", &self.driver.counters)
            .finish_non_exhaustive()
    }
}
