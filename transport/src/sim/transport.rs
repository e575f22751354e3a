mod work;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

use super::network::error;
use super::{SimAccepted, SimNetwork};
use crate::{
    Frame, Inbound, LinkHandler, LinkId, LinkLimits, ListenerId, Next, Park, Reading, Refusal,
    Refused, SlotTable, Time, Transport, TransportError, links_stay,
};

/// The links of one shard of a simulated host. Dropping it closes them, as the end of a process
/// does.
#[derive(Debug)]
pub struct SimTransport {
    network: SimNetwork,
    id: u32,
    host: usize,
    epoch: u32,
    limits: LinkLimits,
    links: SlotTable<Link, LinkId>,
    listeners_made: u32,
    frames_in_flight: usize,
    /// Whether links stay when their peers end their streams.
    outlasts_streams: bool,
    /// The slot where the next turn begins.
    first_slot: u32,
    staging: Vec<u8>,
}

#[derive(Debug)]
struct Link {
    connection: u64,
    side: usize,
    phase: Phase,
    inbound: Option<Inbound>,
    queue: VecDeque<Box<Frame>>,
    /// How far the oldest frame has left: its segment, and bytes of that.
    cursor: (usize, usize),
    /// The inbound half wants to be called though no bytes came.
    offer_due: bool,
    /// The peer's stream is over, and the link stays.
    is_outlasting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Dialling,
    Open,
    /// Frames that wait leave, and behind them the end of the stream; bytes of the peer are still
    /// taken.
    Finishing {
        /// Whether the landing that was under way is back.
        is_landing_back: bool,
        /// Whether the link ends once nothing is left to be dropped.
        ends: bool,
    },
    Flushing {
        until: Time,
    },
    Closing,
}

impl Phase {
    /// Whether bytes of the peer are taken.
    fn reads(self) -> bool {
        matches!(self, Self::Open | Self::Finishing { .. })
    }
}

impl SimTransport {
    pub(super) fn new(
        network: SimNetwork,
        id: u32,
        host: usize,
        epoch: u32,
        limits: LinkLimits,
    ) -> Self {
        Self {
            network,
            id,
            host,
            epoch,
            limits,
            links: SlotTable::unlimited(),
            listeners_made: 0,
            frames_in_flight: 0,
            outlasts_streams: false,
            first_slot: 0,
            staging: vec![0; STAGING_BYTES],
        }
    }

    /// The network that this transport is part of.
    pub fn network(&self) -> &SimNetwork {
        &self.network
    }

    /// Sets other bounds than those of the network's options, for links that are made from now on.
    pub fn set_limits(&mut self, limits: LinkLimits) {
        self.limits = limits;
    }

    /// The earliest time at which a turn of this transport has something to do, as far as the
    /// network has come by now ([`SimNetwork::advance`]), and if nothing is submitted until then.
    pub fn next_event_at(&self) -> Option<Time> {
        let state = self.network.state();
        if !state.is_up(self.host, self.epoch) || state.has_accepted(self.id) {
            return Some(state.now);
        }
        let links = self.links.values();
        let at = links.filter_map(|link| state.ready_at(link.connection, link.side));
        at.min()
    }

    /// Lets links stay when their peers end their streams, as servers do that never close a
    /// connection.
    pub fn outlast_streams(&mut self) {
        self.outlasts_streams = true;
    }

    /// Breaks a link, as a network does that fails. Says whether there was such a link.
    pub fn sever(&mut self, link: LinkId) -> bool {
        self.with_connection(link, |network, key, side| network.state().sever(key, side))
    }

    /// Ends the stream of a link behind the bytes that have left, though the link stays open here.
    /// Says whether there was such a link.
    pub fn half_close(&mut self, link: LinkId) -> bool {
        self.with_connection(link, |network, key, side| {
            network.state().half_close(key, side);
        })
    }

    /// Lets a link read nothing for a while. Says whether there was such a link.
    pub fn stall(&mut self, link: LinkId, duration: Duration) -> bool {
        self.with_connection(link, |network, key, side| {
            let mut state = network.state();
            let until = state.now + duration;
            state.stall(key, side, until);
        })
    }

    fn with_connection(&mut self, link: LinkId, act: impl FnOnce(&SimNetwork, u64, usize)) -> bool {
        match self.links.find_mut(link) {
            Some(link) => {
                act(&self.network, link.connection, link.side);
                true
            }
            None => false,
        }
    }

    fn check_up(&self, operation: &str) -> Result<(), TransportError> {
        if self.network.state().is_up(self.host, self.epoch) {
            Ok(())
        } else {
            Err(error(operation, 0, "the host has crashed"))
        }
    }

    fn check_room(&self, operation: &str) -> Result<(), TransportError> {
        if self.links.len() < self.limits.links {
            return Ok(());
        }
        let message = format!("the limit of {} links is reached", self.limits.links);
        Err(error(operation, 24, &message))
    }

    fn accept_some(&mut self, handler: &mut dyn LinkHandler<SimAccepted>) -> usize {
        for events in 0..ACCEPTS_PER_TURN {
            let accepted = self.network.state().accept(self.id);
            let Some((listener, peer, accepted)) = accepted else {
                return events;
            };
            handler.accepted(listener, peer, accepted);
        }
        ACCEPTS_PER_TURN
    }
}

impl Transport for SimTransport {
    type Accepted = SimAccepted;

    links_stay!();

    fn name(&self) -> &'static str {
        "sim"
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), TransportError> {
        self.check_up("listen")?;
        let id = ListenerId(self.listeners_made);
        let address = self
            .network
            .state()
            .listen(self.id, self.host, id, address)?;
        self.listeners_made += 1;
        Ok((id, address))
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.network.state().unlisten(self.id, listener);
    }

    fn adopt(&mut self, accepted: SimAccepted, next: Next) -> Result<LinkId, TransportError> {
        self.check_up("adopt a connection")?;
        self.check_room("adopt a connection")?;
        let (key, side) = (accepted.connection, 1);
        self.network.state().claim(self.host, key)?;
        self.network.state().set_due(key, side);
        Ok(self.links.insert_with(|| Link {
            connection: key,
            side,
            phase: Phase::Open,
            inbound: Some(Inbound::new(next)),
            queue: VecDeque::new(),
            cursor: (0, 0),
            offer_due: true,
            is_outlasting: false,
        }))
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        let operation = format!("connect to {peer}");
        self.check_up(&operation)?;
        self.check_room(&operation)?;
        let connection = self.network.state().dial(self.host, peer);
        Ok(self.links.insert_with(|| Link {
            connection,
            side: 0,
            phase: Phase::Dialling,
            inbound: None,
            queue: VecDeque::new(),
            cursor: (0, 0),
            offer_due: false,
            is_outlasting: false,
        }))
    }

    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        let refusal = match self.links.find_mut(link) {
            Some(link) if link.phase == Phase::Open => {
                if link.queue.len() < self.limits.queued_frames {
                    link.queue.push_back(frame);
                    self.frames_in_flight += 1;
                    self.network.state().set_due(link.connection, link.side);
                    return Ok(());
                }
                Refusal::Full
            }
            Some(_) | None => Refusal::NotOpen,
        };
        Err(Refused {
            value: frame,
            refusal,
        })
    }

    fn resume(&mut self, link: LinkId, next: Next) -> Result<(), Refused<Next>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        let Some(link) = self.links.find_mut(link) else {
            return refuse(next, Refusal::NotOpen);
        };
        let inbound = match &mut link.inbound {
            Some(inbound) if link.phase.reads() => inbound,
            Some(_) | None => return refuse(next, Refusal::NotOpen),
        };
        if let Err(next) = inbound.resume(next) {
            return refuse(next, Refusal::WrongState);
        }
        link.offer_due = true;
        self.network.state().set_due(link.connection, link.side);
        Ok(())
    }

    fn end_stream(&mut self, link: LinkId) {
        let Some(link) = self.links.find_mut(link) else {
            return;
        };
        link.phase = match link.phase {
            Phase::Open => Phase::Finishing {
                is_landing_back: false,
                ends: false,
            },
            Phase::Dialling => Phase::Closing,
            phase @ (Phase::Finishing { .. } | Phase::Flushing { .. } | Phase::Closing) => phase,
        };
        (self.network.state()).set_due(link.connection, link.side);
    }

    fn close(&mut self, link: LinkId, flush: bool) {
        let Some(link) = self.links.find_mut(link) else {
            return;
        };
        let mut state = self.network.state();
        link.phase = match link.phase {
            Phase::Open if flush => {
                if let Some(pipe) = state.incoming(link.connection, link.side) {
                    pipe.drain();
                }
                Phase::Flushing {
                    until: state.now + state.options.flush_timeout,
                }
            }
            Phase::Finishing {
                is_landing_back, ..
            } if flush => Phase::Finishing {
                is_landing_back,
                ends: true,
            },
            Phase::Flushing { until } if flush => Phase::Flushing { until },
            Phase::Dialling
            | Phase::Open
            | Phase::Finishing { .. }
            | Phase::Flushing { .. }
            | Phase::Closing => Phase::Closing,
        };
        state.set_due(link.connection, link.side);
    }

    /// Does what is due on each link, beginning behind the link where the last turn stopped. A turn
    /// stops after 1024 events; those of one link, which are bounded by its queue and by one read,
    /// may go beyond.
    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<SimAccepted>) -> usize {
        self.network.state().advance(now);
        let is_up = self.network.state().is_up(self.host, self.epoch);
        let mut events = self.accept_some(handler);
        let slots = self.links.slots().end;
        for step in 0..slots {
            let slot = (self.first_slot + step) % slots;
            if events >= EVENTS_PER_TURN {
                self.first_slot = slot;
                break;
            }
            let is_due = self.links.at(slot).is_some_and(|(_, link)| {
                !is_up || (self.network.state()).is_ready(link.connection, link.side)
            });
            let Some((id, mut link)) = is_due.then(|| self.links.take(slot)).flatten() else {
                continue;
            };
            let (more, gone) = self.work(id, &mut link, is_up, handler);
            events += more;
            if gone {
                self.links.free(id);
                continue;
            }
            let interest = Self::interest(&link);
            self.network
                .state()
                .set_interest(link.connection, link.side, interest);
            self.links.put_back(id, link);
        }
        events
    }

    fn submit(&mut self) {
        // Frames leave when they are sent, or with the turn.
    }

    fn frames_in_flight(&self) -> usize {
        self.frames_in_flight
    }

    fn reading(&mut self, link: LinkId) -> Option<Reading> {
        let link = self.links.find(link)?;
        let inbound = (link.inbound.as_ref()).filter(|_| link.phase == Phase::Open)?;
        Some(inbound.reading())
    }
}

/// Time is virtual, so it never sleeps; for transports that want one below them that could.
impl Park for SimTransport {
    fn park(&mut self, _: Option<Duration>) -> Result<(), TransportError> {
        Ok(())
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn patience(&mut self) -> Option<Duration> {
        None
    }

    fn unpark(&mut self) {}

    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }

    fn watch(&mut self, _: BorrowedFd<'_>) -> Result<(), TransportError> {
        Ok(())
    }
}

impl Drop for SimTransport {
    fn drop(&mut self) {
        let mut state = self.network.state();
        for listener in 0..self.listeners_made {
            state.unlisten(self.id, ListenerId(listener));
        }
        if !state.is_up(self.host, self.epoch) {
            return;
        }
        for slot in self.links.slots() {
            if let Some((_, link)) = self.links.take(slot) {
                state.leave(link.connection, link.side, true);
            }
        }
    }
}

/// A turn begins no further link once it has had this many events.
const EVENTS_PER_TURN: usize = 1024;

/// Connections that one turn reports.
const ACCEPTS_PER_TURN: usize = 256;

/// Most bytes of one read into staging memory.
const STAGING_BYTES: usize = 64 << 10;
