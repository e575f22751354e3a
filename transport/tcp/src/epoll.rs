//! Readiness from epoll, edge triggered; bytes by plain system calls.

mod ahead;
mod hot;
mod io;

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::Waker;
use std::time::Duration;

use grpcxx_transport::{
    Frame, Inbound, LinkHandler, LinkId, ListenerId, Next, Park, Reading, Refused, Time, Transport,
    TransportError, links_stay,
};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use self::ahead::Ahead;
use self::io::{Readiness, Staging};
use crate::core::{Core, EVENTS_ENOUGH};
use crate::link::{Link, Phase};
use crate::listener::Accepting;
use crate::socket::{self, Accepted, Dial, system_error};
use crate::wake::Sleep;
use crate::{TcpCounters, TcpOptions};

/// The driver for hosts without io_uring.
pub(crate) struct EpollDriver {
    core: Core<Readiness>,
    epoll: OwnedFd,
    /// Ends a sleep elsewhere for the sake of the clock.
    alarm: OwnedFd,
    staging: Staging,
    ahead: Ahead,
    /// Whether epoll has told of a descriptor that is no link's, which it does once.
    is_stirred: bool,
}

impl EpollDriver {
    pub(crate) fn open(options: TcpOptions) -> Result<Self, TransportError> {
        let staging = Staging::new(options.staging_bytes);
        Self::open_with(options, staging).map_err(|errno| system_error("set up epoll", errno))
    }

    fn open_with(options: TcpOptions, staging: Staging) -> rustix::io::Result<Self> {
        let core = Core::new(options)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let alarm = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        for fd in [core.wake_up.inside(), alarm.as_fd()] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(TOKEN_WAKE), flags)?;
        }
        Ok(Self {
            core,
            epoll,
            alarm,
            staging,
            ahead: Ahead::default(),
            is_stirred: false,
        })
    }

    pub(crate) fn counters(&self) -> TcpCounters {
        self.core.counters
    }

    pub(crate) fn socket(&self, link: LinkId) -> Option<BorrowedFd<'_>> {
        self.core.socket(link)
    }

    /// Adds a link to the table and to the set that is watched.
    fn insert(&mut self, link: Link<Readiness>) -> Result<LinkId, TransportError> {
        let peer = link.peer;
        let id = self.core.insert(link);
        let data = epoll::EventData::new_u64(u64::from(id.slot));
        let Some(link) = self.core.links.find_mut(id) else {
            unreachable!("the link was inserted above");
        };
        if let Err(errno) = epoll::add(&self.epoll, &link.socket, data, LINK_EVENTS) {
            self.core.links.remove(id);
            let operation = format!("watch a connection with {peer}");
            return Err(system_error(operation, errno));
        }
        Ok(id)
    }

    /// Asks the kernel what is ready and puts it on the work list; waits if there is a timeout.
    fn poll(&mut self, timeout: Option<Option<Duration>>) -> rustix::io::Result<()> {
        self.core.counters.polls += 1;
        let timeout = timeout.map_or(Some(Duration::ZERO), |timeout| timeout);
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs())
                .unwrap_or(i64::MAX)
                .min(SLEEP_SECONDS_MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut buffer = [MaybeUninit::uninit(); EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut buffer, timeout.as_ref()) {
            Ok((events, _)) => {
                for event in events {
                    self.note(event.data.u64(), event.flags);
                }
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn note(&mut self, token: u64, flags: epoll::EventFlags) {
        use epoll::EventFlags;
        if token == TOKEN_WAKE {
            self.is_stirred = true;
            return;
        }
        if token >= TOKEN_LISTENER {
            let id = ListenerId((token - TOKEN_LISTENER) as u32);
            if let Some(listener) = self.core.listeners.iter_mut().find(|l| l.id == id)
                && listener.state == Accepting::Waiting
            {
                listener.state = Accepting::Ready;
            }
            return;
        }
        let slot = token as u32;
        if let Some((_, link)) = self.core.links.at(slot) {
            let gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            link.io.ended |= gone || flags.contains(EventFlags::RDHUP);
            link.io.readable |= flags.contains(EventFlags::IN) || link.io.ended;
            link.io.writable |= flags.contains(EventFlags::OUT) || gone;
            self.core.queue(slot);
        }
    }

    /// Does what the state of one link asks for. Returns the number of events.
    fn advance(&mut self, slot: u32, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        let core = &mut self.core;
        let Some((_, link)) = core.links.at(slot) else {
            return 0;
        };
        link.queued = false;
        let mut events = 0;
        if matches!(link.phase, Phase::Dialling) && link.io.writable {
            match socket::dial_result(&link.socket, link.peer) {
                Ok(()) => events += core.connected(slot, handler),
                Err(errno) => link.fail("connect to", errno),
            }
        }
        events += self.staging.write(core, slot, handler);
        events += self.staging.read(core, slot, handler);
        if let Some((_, link)) = core.links.at(slot) {
            if link.is_ended() {
                if events == 0 {
                    self.staging.asking.dismiss(slot, link);
                    return core.finish(slot, handler);
                }
                core.queue(slot);
                return events;
            }
            let is_deaf = link.io.is_disarmed && !link.io.writable;
            if matches!(link.phase, Phase::Finishing { .. }) {
                events += core.finish_stream(slot, true, handler);
            }
            if is_deaf {
                self.rearm(slot);
            }
        }
        events
    }

    /// Takes the work list off once, until that brings `events` to [`EVENTS_ENOUGH`]. Returns the
    /// new number.
    fn work(&mut self, mut events: usize, handler: &mut dyn LinkHandler<Accepted>) -> usize {
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

    fn set_alarm(&self, delay: Option<Duration>) {
        let delay = delay.unwrap_or(Duration::ZERO);
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = Timespec {
            tv_sec: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: delay.subsec_nanos().into(),
        };
        let timer = Itimerspec {
            it_interval: none,
            it_value: value,
        };
        // The values are in range and the descriptor is ours, so this cannot fail.
        let _ = timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &timer);
    }
}

impl Transport for EpollDriver {
    type Accepted = Accepted;

    links_stay!();

    fn name(&self) -> &'static str {
        "tcp/epoll"
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), TransportError> {
        let (index, address) = self.core.listen(address)?;
        let listener = &self.core.listeners[index];
        let id = listener.id;
        let data = epoll::EventData::new_u64(TOKEN_LISTENER + u64::from(id.0));
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        if let Err(errno) = epoll::add(&self.epoll, &listener.socket, data, flags) {
            self.core.listeners.remove(index);
            return Err(system_error(
                format!("watch a listener on {address}"),
                errno,
            ));
        }
        Ok((id, address))
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.core.listeners.retain(|l| l.id != listener);
    }

    fn adopt(&mut self, accepted: Accepted, next: Next) -> Result<LinkId, TransportError> {
        let (socket, peer) = self.core.set_up(accepted)?;
        let inbound = Some(Inbound::new(next));
        self.insert(Link::new(socket, peer, inbound, Readiness::default()))
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        self.core.check_room("connect to", peer)?;
        let (socket, dial) = socket::dial(peer, &self.core.options)?;
        let mut link = Link::new(socket, peer, None, Readiness::default());
        match dial {
            Dial::Connected => link.io.writable = true,
            Dial::Pending => {}
            Dial::Failed(errno) => link.fail("connect to", errno),
        }
        self.insert(link)
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
        let told = self.ahead.tell(&mut self.core, handler);
        let mut events = self.work(0, handler);
        if self.staging.asking.is_poll_due()
            && let Err(errno) = self.poll(None)
        {
            unreachable!("epoll_wait on a descriptor of our own: {errno}");
        }
        events = self.ask_hot(events, handler);
        let events = self.work(events, handler) + self.core.accept(handler);
        self.ahead.end_turn(&self.core);
        told + events
    }

    fn submit(&mut self) {
        self.ahead.write(&mut self.core, &mut self.staging);
    }

    fn frames_in_flight(&self) -> usize {
        self.core.frames_in_flight
    }

    fn reading(&mut self, link: LinkId) -> Option<Reading> {
        self.core.reading(link)
    }
}

impl Park for EpollDriver {
    fn park(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        self.deactivate();
        let has_work = self.core.has_work() || !self.ahead.is_empty();
        if has_work || !self.core.wake_up.fall_asleep(Sleep::Inside) {
            return Ok(());
        }
        let timeout = [timeout, self.core.patience()].into_iter().flatten().min();
        let slept = self.poll(Some(timeout));
        self.core.wake_up.end_sleep();
        slept.map_err(|errno| system_error("epoll_wait", errno))
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        match self.ahead.is_empty() {
            true => self.park_fd_ahead(),
            false => None,
        }
    }

    fn park_fd_ahead(&mut self) -> Option<BorrowedFd<'_>> {
        self.deactivate();
        self.is_stirred = false;
        if self.core.has_work() || self.poll(None).is_err() || self.core.has_work() {
            return None;
        }
        // A companion may have begun to stir since its owner looked at it, and is told of no more.
        if self.is_stirred {
            return None;
        }
        // The descriptor that is lent out watches the wake-up's inner one.
        if !self.core.wake_up.fall_asleep(Sleep::Inside) {
            return None;
        }
        let patience = self.core.patience();
        if patience.is_some() {
            self.set_alarm(patience);
        }
        Some(self.epoll.as_fd())
    }

    fn patience(&mut self) -> Option<Duration> {
        // The alarm makes the descriptor readable.
        None
    }

    fn unpark(&mut self) {
        self.core.wake_up.end_sleep();
    }

    fn waker(&self) -> Waker {
        self.core.wake_up.waker()
    }

    fn watch(&mut self, companion: BorrowedFd<'_>) -> Result<(), TransportError> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(TOKEN_WAKE);
        epoll::add(&self.epoll, companion, data, flags)
            .map_err(|errno| system_error("watch a companion", errno))
    }
}

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 256;

/// Longest sleep; the system call takes no more.
const SLEEP_SECONDS_MAX: i64 = 24 * 60 * 60;

/// What epoll tells of a link.
const LINK_EVENTS: epoll::EventFlags = epoll::EventFlags::IN
    .union(epoll::EventFlags::OUT)
    .union(epoll::EventFlags::RDHUP)
    .union(epoll::EventFlags::ET);

/// Links have their slot as token, below this.
const TOKEN_LISTENER: u64 = 1 << 32;
const TOKEN_WAKE: u64 = u64::MAX;
