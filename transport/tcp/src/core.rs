use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use grpcxx_memory::OwnFd;
use grpcxx_transport::{
    CloseReason, Frame, LinkHandler, LinkId, ListenerId, Next, Outcome, ReadTarget, Reading,
    Refusal, Refused, SlotTable, Time, TransportError,
};
use rustix::net::Shutdown;

use crate::cpu_sharing::CpuSharing;
use crate::link::{Link, Phase};
use crate::listener::{Accepting, Listener, STALL};
use crate::socket::{self, Accepted};
use crate::sys::unacknowledged_bytes;
use crate::wake::WakeUp;
use crate::{TcpCounters, TcpOptions};

/// What both drivers have in common: everything but input and output.
///
/// Commands change the state of a link and put it on the work list; the driver's next turn takes
/// the list off and does what each link's state asks for.
#[derive(Debug)]
pub(crate) struct Core<D> {
    pub(crate) options: TcpOptions,
    pub(crate) links: SlotTable<Link<D>, LinkId>,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) work: VecDeque<u32>,
    pub(crate) counters: TcpCounters,
    pub(crate) frames_in_flight: usize,
    pub(crate) wake_up: WakeUp,
    pub(crate) now: Time,
    pub(crate) cpu_sharing: CpuSharing,
    /// Links in [`Phase::Flushing`] or [`Phase::Lingering`].
    closing: Vec<u32>,
    closing_checked: Time,
    next_listener: u32,
}

impl<D> Core<D> {
    pub(crate) fn new(options: TcpOptions) -> rustix::io::Result<Self> {
        Ok(Self {
            options,
            links: SlotTable::unlimited(),
            listeners: Vec::new(),
            work: VecDeque::new(),
            counters: TcpCounters::default(),
            frames_in_flight: 0,
            wake_up: WakeUp::new()?,
            now: Time::ZERO,
            cpu_sharing: CpuSharing::default(),
            closing: Vec::new(),
            closing_checked: Time::ZERO,
            next_listener: 0,
        })
    }

    /// Opens a listener and returns its index with its address.
    pub(crate) fn listen(
        &mut self,
        address: SocketAddr,
    ) -> Result<(usize, SocketAddr), TransportError> {
        let (socket, address) = socket::listen(address, &self.options)?;
        let id = ListenerId(self.next_listener);
        self.next_listener += 1;
        self.listeners.push(Listener::new(id, socket, address));
        Ok((self.listeners.len() - 1, address))
    }

    /// An error if there are as many links as there may be.
    pub(crate) fn check_room(
        &self,
        operation: &str,
        peer: SocketAddr,
    ) -> Result<(), TransportError> {
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

    /// Sets up the socket of an accepted connection.
    pub(crate) fn set_up(&self, accepted: Accepted) -> Result<(OwnFd, SocketAddr), TransportError> {
        let Accepted { socket, peer } = accepted;
        self.check_room("adopt a connection from", peer)?;
        socket::set_up(&socket, &self.options).map_err(|errno| {
            socket::system_error(format!("set up a connection from {peer}"), errno)
        })?;
        socket::stay_near(&socket, peer, &self.options);
        Ok((socket, peer))
    }

    pub(crate) fn insert(&mut self, link: Link<D>) -> LinkId {
        let id = self.links.insert_with(|| link);
        // All links at once may have work in any later turn, in which nothing shall be allocated.
        let room = self.links.len().saturating_sub(self.work.len());
        self.work.reserve(room);
        self.queue(id.slot);
        id
    }

    /// Puts a link on the work list.
    pub(crate) fn queue(&mut self, slot: u32) {
        if let Some((_, link)) = self.links.at(slot)
            && !link.queued
        {
            link.queued = true;
            self.work.push_back(slot);
        }
    }

    pub(crate) fn send(
        &mut self,
        id: LinkId,
        frame: Box<Frame>,
    ) -> Result<(), Refused<Box<Frame>>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        let limit = self.options.limits.queued_frames;
        match self.links.find_mut(id) {
            Some(link) if !link.is_open() => refuse(frame, Refusal::NotOpen),
            Some(link) if link.outbound.len() >= limit => refuse(frame, Refusal::Full),
            Some(link) => {
                link.outbound.push(frame);
                self.frames_in_flight += 1;
                self.queue(id.slot);
                Ok(())
            }
            None => refuse(frame, Refusal::NotOpen),
        }
    }

    pub(crate) fn resume(&mut self, id: LinkId, next: Next) -> Result<(), Refused<Next>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        let Some(link) = self.links.find_mut(id).filter(|link| link.phase.reads()) else {
            return refuse(next, Refusal::NotOpen);
        };
        let Some(inbound) = &mut link.inbound else {
            return refuse(next, Refusal::NotOpen);
        };
        if let Err(next) = inbound.resume(next) {
            return refuse(next, Refusal::WrongState);
        }
        link.resumed = true;
        self.queue(id.slot);
        Ok(())
    }

    pub(crate) fn reading(&mut self, id: LinkId) -> Option<Reading> {
        let link = self.links.find(id).filter(|link| link.is_open())?;
        let inbound = link.inbound.as_ref()?;
        let mut reading = inbound.reading();
        if inbound.has_landing() {
            // Few bytes of a payload may have come and not be worth a receive yet.
            let waiting = rustix::io::ioctl_fionread(&link.socket);
            reading.taken_bytes += waiting.unwrap_or(0);
        }
        Some(reading)
    }

    pub(crate) fn end_stream(&mut self, id: LinkId) {
        let Some(link) = self.links.find_mut(id) else {
            return;
        };
        match link.phase {
            Phase::Open => {
                link.phase = Phase::Finishing {
                    is_landing_back: false,
                    is_told: false,
                    ends: false,
                };
            }
            Phase::Dialling => link.end(CloseReason::Local),
            Phase::Finishing { .. }
            | Phase::Flushing { .. }
            | Phase::Lingering { .. }
            | Phase::Ended(_) => return,
        }
        self.queue(id.slot);
    }

    /// Moves on a link whose stream ends. Returns the number of events.
    pub(crate) fn finish_stream(
        &mut self,
        slot: u32,
        is_landing_free: bool,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        let Some((id, link)) = self.links.at(slot) else {
            return 0;
        };
        let Phase::Finishing {
            is_landing_back,
            is_told,
            ends,
        } = &mut link.phase
        else {
            return 0;
        };
        let mut events = 0;
        let mut drops = false;
        if let Some(inbound) = &mut link.inbound {
            if is_landing_free && !std::mem::replace(is_landing_back, true) {
                events += inbound.forsake_landing(id, handler);
            }
            drops = inbound.is_dropping();
        }
        if link.outbound.is_empty() && !std::mem::replace(is_told, true) {
            // Fails only if the connection is gone, which the next read finds out.
            let _ = rustix::net::shutdown(&link.socket, Shutdown::Write);
        }
        if *is_told && *ends && *is_landing_back && !drops {
            link.end(CloseReason::Local);
            self.queue(slot);
        }
        events
    }

    pub(crate) fn close(&mut self, id: LinkId, flush: bool) {
        let Some(link) = self.links.find_mut(id) else {
            return;
        };
        match &mut link.phase {
            Phase::Open if flush => {
                link.phase = Phase::Flushing { until: None };
                self.closing.push(id.slot);
                self.closing_checked = Time::ZERO;
            }
            Phase::Finishing { ends, .. } if flush => *ends = true,
            Phase::Open | Phase::Dialling | Phase::Finishing { .. } => link.end(CloseReason::Local),
            Phase::Flushing { .. } | Phase::Lingering { .. } | Phase::Ended(_) => return,
        }
        self.queue(id.slot);
    }

    /// The socket of a link.
    pub(crate) fn socket(&self, id: LinkId) -> Option<BorrowedFd<'_>> {
        self.links.find(id).map(|link| link.socket.as_fd())
    }

    /// Begins a turn.
    pub(crate) fn begin(&mut self, now: Time) {
        self.now = now;
        if !self.closing.is_empty() {
            self.check_closing();
        }
    }

    /// Notes that `bytes` bytes of a link's frames have left. Returns the number of events.
    pub(crate) fn sent(
        &mut self,
        slot: u32,
        bytes: usize,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        let Some((id, link)) = self.links.at(slot) else {
            return 0;
        };
        self.counters.sends += 1;
        self.counters.sent_bytes += bytes as u64;
        let mut events = 0;
        link.outbound.advance(bytes, |frame| {
            handler.sent(id, frame, Outcome::Done);
            events += 1;
        });
        self.frames_in_flight -= events;
        if link.outbound.is_empty() {
            match link.phase {
                Phase::Flushing { .. } => self.closing_checked = Time::ZERO,
                Phase::Finishing { .. } => self.queue(slot),
                Phase::Dialling | Phase::Open | Phase::Lingering { .. } | Phase::Ended(_) => {}
            }
        }
        events
    }

    /// Takes bytes that were received into staging memory. Returns the number of events.
    pub(crate) fn staged(
        &mut self,
        slot: u32,
        bytes: &[u8],
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        let Some((id, link)) = self.links.at(slot) else {
            return 0;
        };
        let Some(inbound) = &mut link.inbound else {
            return 0;
        };
        self.counters.receives += 1;
        self.counters.staged_bytes += bytes.len() as u64;
        let events = inbound.offer(id, bytes, handler);
        link.note_staged(bytes.len());
        if matches!(link.phase, Phase::Finishing { .. }) {
            // It may have been all that was to be dropped.
            self.queue(slot);
        }
        events
    }

    /// Takes bytes that were received into the link's landing. Returns the number of events.
    pub(crate) fn landed(
        &mut self,
        slot: u32,
        bytes: usize,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        let Some((id, link)) = self.links.at(slot) else {
            return 0;
        };
        let Some(inbound) = &mut link.inbound else {
            return 0;
        };
        self.counters.receives += 1;
        self.counters.direct_bytes += bytes as u64;
        let wanted_bytes = match inbound.target() {
            ReadTarget::Direct(target) => target.len(),
            ReadTarget::Staging | ReadTarget::Paused => bytes,
        };
        let events = inbound.landed_direct(id, bytes, handler);
        link.note_direct(wanted_bytes - bytes);
        events
    }

    /// Reports that a dial succeeded. Returns the number of events.
    pub(crate) fn connected(
        &mut self,
        slot: u32,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        let Some((id, link)) = self.links.at(slot) else {
            return 0;
        };
        link.phase = Phase::Open;
        link.inbound = Some(grpcxx_transport::Inbound::new(handler.connected(id)));
        1
    }

    /// Removes a link that has ended, and reports all that follows from it. The kernel must have
    /// let go of the link's memory. Returns the number of events.
    pub(crate) fn finish(&mut self, slot: u32, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        let Some((id, _)) = self.links.at(slot) else {
            return 0;
        };
        let Some(mut link) = self.links.remove(id) else {
            return 0;
        };
        let Phase::Ended(reason) = &link.phase else {
            unreachable!("only links that have ended are removed");
        };
        let mut events = 1;
        if let Some(inbound) = &mut link.inbound {
            events += inbound.lose(id, handler);
        }
        while let Some(frame) = link.outbound.pop() {
            self.frames_in_flight -= 1;
            handler.sent(id, frame, Outcome::Lost);
            events += 1;
        }
        handler.closed(id, reason);
        self.closing.retain(|&closing| closing != slot);
        for listener in &mut self.listeners {
            // A descriptor is free again.
            if let Accepting::Stalled { until } = &mut listener.state {
                *until = self.now;
            }
        }
        events
    }

    /// Accepts on all listeners that may have connections. Returns the number of events.
    pub(crate) fn accept(&mut self, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        let mut events = 0;
        for listener in &mut self.listeners {
            if listener.state != Accepting::Waiting {
                events += listener.accept(self.now, &mut self.counters, handler);
            }
        }
        events
    }

    /// Whether a turn has something to do that the kernel will not tell.
    pub(crate) fn has_work(&self) -> bool {
        !self.work.is_empty()
            || self
                .listeners
                .iter()
                .any(|listener| listener.state == Accepting::Ready)
    }

    /// How long a sleep may last because of what only a clock will tell.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let is_stalled = |l: &Listener| matches!(l.state, Accepting::Stalled { .. });
        if !self.closing.is_empty() {
            Some(CLOSING_CHECK)
        } else if self.listeners.iter().any(is_stalled) {
            Some(STALL)
        } else {
            None
        }
    }

    fn check_closing(&mut self) {
        if self.closing_checked != Time::ZERO
            && self.now.since(self.closing_checked) < CLOSING_CHECK
        {
            return;
        }
        self.closing_checked = self.now;
        for index in 0..self.closing.len() {
            let slot = self.closing[index];
            let Some((_, link)) = self.links.at(slot) else {
                continue;
            };
            step_closing(link, self.now);
            if link.is_ended() {
                self.queue(slot);
            }
        }
    }
}

/// Moves a closing link on as far as it is ready for.
fn step_closing<D>(link: &mut Link<D>, now: Time) {
    if let Phase::Flushing { until } = &mut link.phase {
        let until = *until.get_or_insert(now + FLUSH_TIME_MAX);
        if link.outbound.is_empty() {
            // Fails only if the connection is gone, which the next step finds out.
            let _ = rustix::net::shutdown(&link.socket, Shutdown::Write);
            link.phase = Phase::Lingering { until };
        } else if now >= until {
            link.end(CloseReason::Local);
        }
    }
    if let Phase::Lingering { until } = link.phase {
        let left_bytes = unacknowledged_bytes(&link.socket).unwrap_or(0);
        if left_bytes == 0 || now >= until {
            link.end(CloseReason::Local);
        }
    }
}

/// A turn that has had this many events begins nothing more. What one link can have in addition is
/// bounded by the pieces of one send and by the heads that fit into one staged read.
pub(crate) const EVENTS_ENOUGH: usize = 1024;

/// Receive calls for one link in one turn.
pub(crate) const RECEIVES_MAX: usize = 16;

/// A link that has had this many events lets others go on.
pub(crate) const EVENTS_PER_LINK: usize = 256;

/// How long a link that closes may take to get its frames to the peer's system.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(2);

/// How often links that close are looked at.
const CLOSING_CHECK: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn all_links_have_room_on_the_work_list_before_they_have_work() {
        let mut core = Core::new(TcpOptions::default()).unwrap();
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        let links: Vec<LinkId> = (0..100)
            .map(|_| {
                let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
                let socket = OwnFd::from(OwnedFd::from(socket));
                let id = core.insert(Link::new(socket, peer, None, ()));
                core.work.clear();
                id
            })
            .collect();
        let before = core.work.capacity();
        for id in links {
            core.links.find_mut(id).unwrap().queued = false;
            core.queue(id.slot);
        }
        assert_eq!(core.work.len(), 100);
        assert_eq!(core.work.capacity(), before);
    }
}
