//! Completions from io_uring.
//!
//! Heads and small payloads are received into staging buffers that the kernel picks when bytes arrive, large
//! payloads into their landing. One receive and one send per link are under way at a time; a turn submits
//! those of all links with one system call, and makes none if nothing is new.
//!
//! The kernel owns the memory of an operation until its completion is taken. So a link that has ended is
//! removed only when all its operations are complete, and a transport that is dropped cancels and waits.

#[expect(unsafe_code, reason = "memory that the kernel writes")]
mod buffers;
#[expect(unsafe_code, reason = "operations on memory that links own")]
mod operation;
#[expect(
    unsafe_code,
    reason = "system calls, and the queues shared with the kernel"
)]
mod ring;
mod teardown;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

use grpcxx_transport::{
    CloseReason, Frame, Inbound, LinkHandler, LinkId, ListenerId, Next, Park, ReadTarget, Refused,
    Time, Transport, TransportError,
};
use io_uring::cqueue;
use rustix::io::Errno;
use rustix::net::Shutdown;

use self::buffers::Buffers;
use self::operation::{Alarm, Flight, Gather, Kind};
use self::ring::Ring;
use crate::core::{Core, EVENTS_ENOUGH};
use crate::link::{Link, Phase};
use crate::listener::Accepting;
use crate::socket::{self, Accepted, Dial, system_error};
use crate::wake::{Sleep, silence};
use crate::{TcpCounters, TcpOptions};

/// The driver for hosts with io_uring.
pub(crate) struct UringDriver {
    core: Core<Flight>,
    ring: Ring,
    /// Taken by the drop only.
    buffers: Option<Buffers>,
    /// Completions taken from the ring, and how many of them have been dealt with.
    batch: Vec<cqueue::Entry>,
    batch_done: usize,
    spare_gathers: Vec<Gather>,
    bell_watched: bool,
    alarm: Alarm,
    /// The kernel has refused the ring's service, and that was told.
    is_broken: bool,
}

impl UringDriver {
    /// Opens a ring; returns the driver and what the kernel granted.
    pub(crate) fn open(options: TcpOptions) -> Result<(Self, &'static str), TransportError> {
        let fail = |call: &str| {
            let operation = call.to_owned();
            move |error: std::io::Error| TransportError::from_io(operation, &error)
        };
        let mut ring = Ring::open(options.ring_entries).map_err(fail("set up an io_uring"))?;
        let core = Core::new(options).map_err(|errno| system_error("open an eventfd", errno))?;
        ring.register_eventfd(core.bell.outside())
            .map_err(fail("register an eventfd with an io_uring"))?;
        let (count, bytes) = (core.options.staging_buffers, core.options.staging_bytes);
        let buffers = Buffers::new(&mut ring, count, bytes)
            .map_err(fail("register staging buffers with an io_uring"))?;
        let habits = ring.habits();
        let driver = Self {
            core,
            ring,
            buffers: Some(buffers),
            batch: Vec::with_capacity(COMPLETIONS_MAX),
            batch_done: 0,
            spare_gathers: Vec::with_capacity(SPARE_GATHERS_MAX),
            bell_watched: false,
            alarm: Alarm::new(),
            is_broken: false,
        };
        Ok((driver, habits))
    }

    pub(crate) fn counters(&self) -> TcpCounters {
        self.core.counters
    }

    /// Does what the state of one link asks for. Returns the number of events.
    fn advance(&mut self, slot: u32, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        let Some((id, link)) = self.core.links.at(slot) else {
            return 0;
        };
        link.queued = false;
        let mut events = 0;
        if link.is_ended() {
            if link.io.is_empty() {
                return self.core.finish(slot, handler);
            }
            if link.io.cancels == 0 && !operation::cancel(&mut self.ring, slot, &mut link.io) {
                self.core.queue(slot);
            }
            return 0;
        }
        let mut pushed = true;
        if matches!(link.phase, Phase::Dialling) && !link.io.dialling {
            pushed &= operation::await_dial(&mut self.ring, slot, link);
        }
        if link.phase.reads()
            && let Some(inbound) = &mut link.inbound
            && std::mem::take(&mut link.resumed)
        {
            events += inbound.offer(id, &[], handler);
        }
        if link.sends() && !link.io.sending {
            if link.outbound.pieces(1).next().is_none() {
                return events + self.core.sent(slot, 0, handler);
            }
            pushed &= operation::send(&mut self.ring, slot, link, &mut self.spare_gathers);
        }
        if link.phase.reads() && !link.io.receiving() {
            pushed &= operation::receive(&mut self.ring, slot, link);
        }
        if !pushed {
            self.core.queue(slot);
        }
        events
    }

    /// Takes the work list off once. Returns the number of events.
    fn work(&mut self, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        let mut events = 0;
        for _ in 0..self.core.work.len() {
            if events >= EVENTS_ENOUGH {
                break;
            }
            if let Some(slot) = self.core.work.pop_front() {
                events += self.advance(slot, handler);
            }
        }
        events
    }

    /// Watches what is not a link.
    fn watch(&mut self) {
        if !self.bell_watched {
            self.bell_watched = operation::await_bell(&mut self.ring, self.core.bell.inside());
        }
        for listener in &mut self.core.listeners {
            if !listener.watched && listener.state == Accepting::Waiting {
                listener.watched =
                    operation::await_connection(&mut self.ring, listener.id.0, &listener.socket);
            }
        }
    }

    fn enter(&mut self) {
        if self.ring.wants_enter() {
            self.core.counters.polls += 1;
            let entered = self.ring.enter();
            self.check(entered);
        }
    }

    /// Errors that pass by themselves are met by trying again in the next turn.
    fn check(&mut self, entered: std::io::Result<()>) {
        let Err(error) = entered else {
            return;
        };
        let passes = matches!(
            Errno::from_io_error(&error),
            Some(Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::NOMEM)
        );
        if !passes && !self.is_broken {
            self.is_broken = true;
            tracing::error!(
                "io_uring_enter: {error}; a transport must stay on the thread that opened it"
            );
        }
    }

    /// Deals with completions, until that brings `events` to [`EVENTS_ENOUGH`]. Returns the new number.
    fn complete(&mut self, mut events: usize, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        if self.batch_done == self.batch.len() {
            self.batch_done = 0;
            self.batch.clear();
            self.ring.take(&mut self.batch);
        }
        while let Some(completion) = self.batch.get(self.batch_done) {
            if events >= EVENTS_ENOUGH {
                break;
            }
            self.batch_done += 1;
            events += self.complete_one(&completion.clone(), handler);
        }
        events
    }

    fn complete_one(
        &mut self,
        completion: &cqueue::Entry,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        let (kind, subject) = operation::unmark(completion);
        match kind {
            Kind::Receive => return self.received(subject, completion, handler),
            Kind::Send => return self.sent(subject, completion.result(), handler),
            Kind::Dial => return self.dialled(subject, handler),
            Kind::Cancel => {
                if let Some((_, link)) = self.core.links.at(subject)
                    && link.io.cancels > 0
                {
                    link.io.cancels -= 1;
                    self.core.queue(subject);
                }
            }
            Kind::Listener => {
                let id = ListenerId(subject);
                let listener = self.core.listeners.iter_mut().find(|l| l.id == id);
                if let Some(listener) = listener {
                    listener.watched = false;
                    listener.state = Accepting::Ready;
                }
            }
            Kind::Bell => {
                silence(self.core.bell.inside());
                self.bell_watched = false;
            }
            Kind::Alarm => self.alarm.armed = false,
        }
        0
    }

    /// Whether a turn has something to do without entering the kernel.
    fn has_work(&mut self) -> bool {
        self.core.has_work() || self.batch_done < self.batch.len() || self.ring.has_completions()
    }

    fn received(
        &mut self,
        slot: u32,
        completion: &cqueue::Entry,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        let buffers = self.buffers.as_mut().expect("taken by the drop only");
        let Some((id, link)) = self.core.links.at(slot) else {
            unreachable!("a link stays until its operations are complete");
        };
        let (result, flags) = (completion.result(), completion.flags());
        let is_direct = std::mem::take(&mut link.io.landing);
        link.io.staging = false;
        link.io.more = cqueue::sock_nonempty(flags);
        let bytes = usize::try_from(result).unwrap_or(0);
        let staged =
            cqueue::buffer_select(flags).map(|buffer| (buffer, buffers.take(buffer, bytes)));
        let mut events = 0;
        if let Some(inbound) = link.inbound.as_mut().filter(|_| link.phase.reads()) {
            match (result, &staged) {
                (1.., Some((_, staged))) => {
                    self.core.counters.receives += 1;
                    self.core.counters.staged_bytes += bytes as u64;
                    events += inbound.offer(id, staged, handler);
                    link.note_staged(bytes);
                }
                (1.., None) => {
                    assert!(is_direct, "bytes came from nowhere");
                    self.core.counters.receives += 1;
                    self.core.counters.direct_bytes += bytes as u64;
                    let wanted = match inbound.target() {
                        ReadTarget::Direct(target) => target.len(),
                        ReadTarget::Staging | ReadTarget::Paused => bytes,
                    };
                    events += inbound.landed_direct(id, bytes, handler);
                    link.note_direct(wanted - bytes);
                }
                (0, _) => link.end(CloseReason::EndOfStream),
                (..0, _) => match Errno::from_raw_os_error(-result) {
                    Errno::NOBUFS => {
                        self.core.counters.staging_exhausted += 1;
                        link.io.more = true;
                    }
                    Errno::AGAIN | Errno::INTR | Errno::CANCELED => {}
                    errno => link.fail("receive from", errno),
                },
            }
        }
        if let Some((buffer, _)) = staged {
            buffers.give_back(buffer);
        }
        self.core.queue(slot);
        events
    }

    fn sent(&mut self, slot: u32, result: i32, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        let Some((_, link)) = self.core.links.at(slot) else {
            unreachable!("a link stays until its operations are complete");
        };
        link.io.sending = false;
        if let Some(gather) = link.io.gather.take()
            && self.spare_gathers.len() < SPARE_GATHERS_MAX
        {
            self.spare_gathers.push(gather);
        }
        let mut events = 0;
        match usize::try_from(result) {
            Ok(bytes) => events += self.core.sent(slot, bytes, handler),
            Err(_) => match Errno::from_raw_os_error(-result) {
                Errno::AGAIN | Errno::INTR | Errno::CANCELED => {}
                errno => link.fail("send to", errno),
            },
        }
        self.core.queue(slot);
        events
    }

    fn dialled(&mut self, slot: u32, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        let Some((_, link)) = self.core.links.at(slot) else {
            unreachable!("a link stays until its operations are complete");
        };
        link.io.dialling = false;
        let mut events = 0;
        if matches!(link.phase, Phase::Dialling) {
            let result = socket::dial_result(&link.socket, link.peer)
                .and_then(|()| rustix::io::ioctl_fionbio(&link.socket, false));
            match result {
                Ok(()) => events += self.core.connected(slot, handler),
                Err(errno) => link.fail("connect to", errno),
            }
        }
        self.core.queue(slot);
        events
    }
}

impl Transport for UringDriver {
    type Accepted = Accepted;

    fn name(&self) -> &'static str {
        "tcp/io_uring"
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), TransportError> {
        let (index, address) = self.core.listen(address)?;
        Ok((self.core.listeners[index].id, address))
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.core.listeners.retain(|l| {
            let stays = l.id != listener;
            if !stays {
                // The ring holds the socket open while it watches it; this ends both.
                let _ = rustix::net::shutdown(&l.socket, Shutdown::Both);
            }
            stays
        });
    }

    fn adopt(&mut self, accepted: Accepted, next: Next) -> Result<LinkId, TransportError> {
        let (socket, peer) = self.core.set_up(accepted)?;
        rustix::io::ioctl_fionbio(&socket, false)
            .map_err(|errno| system_error(format!("set up a connection from {peer}"), errno))?;
        let inbound = Some(Inbound::new(next));
        Ok((self.core).insert(Link::new(socket, peer, inbound, Flight::default())))
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        self.core.check_room("connect to", peer)?;
        let (socket, dial) = socket::dial(peer, &self.core.options)?;
        let mut link = Link::new(socket, peer, None, Flight::default());
        match dial {
            Dial::Connected | Dial::Pending => {}
            Dial::Failed(errno) => link.fail("connect to", errno),
        }
        Ok(self.core.insert(link))
    }

    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        self.core.send(link, frame)
    }

    fn resume(&mut self, link: LinkId, next: Next) -> Result<(), Refused<Next>> {
        self.core.resume(link, next)
    }

    fn close(&mut self, link: LinkId, flush: bool) {
        self.core.close(link, flush);
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        self.core.begin(now);
        let mut events = self.work(handler);
        self.watch();
        self.enter();
        events = self.complete(events, handler);
        events + self.core.accept(handler)
    }

    fn frames_in_flight(&self) -> usize {
        self.core.frames_in_flight
    }
}

impl Park for UringDriver {
    fn park(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        self.watch();
        if self.has_work() || !self.core.bell.fall_asleep(Sleep::Inside) {
            return Ok(());
        }
        let timeout = [timeout, self.core.patience()].into_iter().flatten().min();
        self.core.counters.polls += 1;
        let slept = self.ring.wait(timeout);
        self.core.bell.wake_up();
        match slept {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            slept => slept.map_err(|error| TransportError::from_io("io_uring_enter", &error)),
        }
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.watch();
        if let Some(delay) = self.core.patience()
            && !self.alarm.set(&mut self.ring, delay)
        {
            return None;
        }
        self.enter();
        self.ring.signal(true);
        if self.has_work() || self.ring.wants_enter() || !self.core.bell.fall_asleep(Sleep::Outside)
        {
            self.ring.signal(false);
            return None;
        }
        Some(self.core.bell.outside())
    }

    fn unpark(&mut self) {
        self.ring.signal(false);
        self.core.bell.wake_up();
        silence(self.core.bell.outside());
    }

    fn waker(&self) -> Waker {
        self.core.bell.waker()
    }
}

impl Drop for UringDriver {
    fn drop(&mut self) {
        teardown::run(self);
    }
}

/// Completions dealt with in one turn.
const COMPLETIONS_MAX: usize = 256;

/// Descriptions of sends that are kept for the next.
const SPARE_GATHERS_MAX: usize = 256;
