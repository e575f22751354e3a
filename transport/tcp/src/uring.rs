//! Completions from io_uring.
//!
//! Heads and small payloads are received into staging buffers that the kernel picks when bytes
//! arrive, large payloads into their landing. One receive and one send per link are under way at a
//! time; a turn submits those of all links with one system call, and makes none if nothing is new.
//!
//! A loop that spins sends and receives with plain system calls as long as those find something.
//!
//! The kernel owns the memory of an operation until its completion is taken. So a link that has
//! ended is removed only when all its operations are complete, and a transport that is dropped
//! cancels and waits.

#[expect(unsafe_code, reason = "memory that the kernel writes")]
mod buffers;
#[expect(unsafe_code, reason = "operations on memory that links own")]
mod operation;
mod ready_set;
#[expect(
    unsafe_code,
    reason = "system calls, and the queues shared with the kernel"
)]
mod ring;
mod spin;
mod teardown;
mod turn;

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::Waker;
use std::time::Duration;

use grpcxx_transport::{
    Frame, Inbound, LinkHandler, LinkId, ListenerId, Next, Park, Reading, Refused, Time, Transport,
    TransportError, links_stay,
};
use io_uring::cqueue;
use rustix::net::Shutdown;

use self::buffers::Buffers;
use self::operation::{Alarm, Flight, Gather};
use self::ring::Ring;
use self::spin::Spinning;
use crate::core::Core;
use crate::link::Link;
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
    spinning: Spinning,
    bell_watched: bool,
    companions: Vec<Companion>,
    alarm: Alarm,
    /// The kernel has refused the ring's service, and that was told.
    is_broken: bool,
}

/// A descriptor of somebody else that ends sleeps.
struct Companion {
    fd: OwnedFd,
    watched: bool,
    /// Nothing will come any more, so that to watch it would end every sleep at once.
    is_dead: bool,
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
        ring.register_eventfd(core.wake_up.outside())
            .map_err(fail("register an eventfd with an io_uring"))?;
        let busy = core.options.busy;
        let (count, bytes) = (core.options.staging_buffers, core.options.staging_bytes);
        let buffers = Buffers::new(&mut ring, count, bytes)
            .map_err(fail("register staging buffers with an io_uring"))?;
        let spinning =
            Spinning::new(busy, bytes).map_err(|errno| system_error("set up epoll", errno))?;
        let habits = ring.habits();
        let driver = Self {
            core,
            ring,
            buffers: Some(buffers),
            batch: Vec::with_capacity(COMPLETIONS_MAX),
            batch_done: 0,
            spare_gathers: Vec::with_capacity(SPARE_GATHERS_MAX),
            spinning,
            bell_watched: false,
            companions: Vec::new(),
            alarm: Alarm::new(),
            is_broken: false,
        };
        Ok((driver, habits))
    }

    pub(crate) fn counters(&self) -> TcpCounters {
        self.core.counters
    }

    pub(crate) fn socket(&self, link: LinkId) -> Option<BorrowedFd<'_>> {
        self.core.socket(link)
    }
}

impl Transport for UringDriver {
    type Accepted = Accepted;

    links_stay!();

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

    fn end_stream(&mut self, link: LinkId) {
        self.core.end_stream(link);
    }

    fn close(&mut self, link: LinkId, flush: bool) {
        self.core.close(link, flush);
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        self.core.begin(now);
        self.look_around();
        let mut events = self.work(handler);
        events = self.ask_hot(events, handler);
        self.watch();
        self.enter();
        events = self.complete(events, handler);
        events + self.core.accept(handler)
    }

    fn submit(&mut self) {
        // Frames leave when they are sent, or with the turn.
    }

    fn frames_in_flight(&self) -> usize {
        self.core.frames_in_flight
    }

    fn reading(&mut self, link: LinkId) -> Option<Reading> {
        self.core.reading(link)
    }
}

impl Park for UringDriver {
    fn park(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        self.deactivate();
        self.watch();
        self.watch_companions();
        if self.has_work() || !self.core.wake_up.fall_asleep(Sleep::Inside) {
            return Ok(());
        }
        let timeout = [timeout, self.core.patience()].into_iter().flatten().min();
        self.core.counters.polls += 1;
        let slept = self.ring.wait(timeout);
        self.core.wake_up.end_sleep();
        match slept {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            slept => slept.map_err(|error| TransportError::from_io("io_uring_enter", &error)),
        }
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.deactivate();
        self.watch();
        self.watch_companions();
        if let Some(delay) = self.core.patience()
            && !self.alarm.set(&mut self.ring, delay)
        {
            return None;
        }
        self.enter();
        self.ring.signal(true);
        if self.has_work()
            || self.ring.wants_enter()
            || !self.core.wake_up.fall_asleep(Sleep::Outside)
        {
            self.ring.signal(false);
            return None;
        }
        Some(self.core.wake_up.outside())
    }

    fn patience(&mut self) -> Option<Duration> {
        // The alarm makes the descriptor readable.
        None
    }

    fn unpark(&mut self) {
        self.ring.signal(false);
        self.core.wake_up.end_sleep();
        silence(self.core.wake_up.outside());
    }

    fn waker(&self) -> Waker {
        self.core.wake_up.waker()
    }

    fn watch(&mut self, companion: BorrowedFd<'_>) -> Result<(), TransportError> {
        let fd = companion
            .try_clone_to_owned()
            .map_err(|error| TransportError::from_io("duplicate a companion", &error))?;
        self.companions.push(Companion {
            fd,
            watched: false,
            is_dead: false,
        });
        Ok(())
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
