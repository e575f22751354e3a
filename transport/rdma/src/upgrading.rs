//! Links that start on another medium and move to RDMA.
//!
//! The side that accepted offers a secret. The side that dialled, if it has a device too, sends a record behind its
//! last frame: the secret and its set-up data. From there on its stream goes over RDMA, or, if the answer is a refusal, on
//! over the first medium. The answer is a record behind the other side's last frame, likewise. So each direction is cut
//! where its record lies, and whoever uses the link notices nothing. The link on the first medium stays open until
//! the end, without a byte, and tells when the peer is gone.

mod moves;
mod record;
mod tap;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

use grpcxx_memory::Arena;
use grpcxx_transport::{
    CloseReason, Frame, LinkHandler, LinkId, LinkTable, ListenerId, Next, Outcome, Park, Refusal,
    Refused, Time, Transport, TransportError,
};

use self::record::{Record, SECRET_BYTES, Secret, split_offer};
use self::tap::{BaseTap, Order, RdmaTap};
use crate::adapter::Adapter;
use crate::counters::RdmaCounters;
use crate::links::RdmaLinks;

/// A transport whose links move to RDMA where both ends have a device.
///
/// Frames must be at least as long as the secret, 16 bytes, and the heads that are asked for too.
pub struct Upgrading<A: Adapter, T> {
    base: T,
    links: Option<RdmaLinks<A>>,
    desk: Desk,
    held_frames: usize,
    /// Whether offers of the wrapped transport that come from this host are left to it.
    leaves_near: bool,
    /// When RDMA had an event.
    stirred: Option<Time>,
    turns_without_base: u32,
    /// In a row.
    empty_turns: u32,
    now: Time,
    /// After a failure of RDMA no link moves until then.
    rests_until: Time,
}

/// What is known of each link.
#[derive(Default)]
struct Desk {
    flows: LinkTable<Flow>,
    by_base: Vec<Option<LinkId>>,
    by_rdma: Vec<Option<LinkId>>,
    orders: VecDeque<Order>,
    /// Links in [`Stage::Asked`], and some that have gone on since.
    asked: Vec<LinkId>,
    /// Links that close once an answer, or frames of the first medium, are there; and until when that is waited for.
    closing: Vec<(LinkId, Time)>,
    /// Links that will ask their peers later.
    resting: Vec<Resting>,
    records_in_flight: usize,
}

/// A link that will ask its peer at a time.
struct Resting {
    id: LinkId,
    secret: Secret,
    until: Time,
}

/// One link: its stream on the first medium, and where that goes on.
#[derive(Debug)]
struct Flow {
    /// While the link on the first medium is there.
    base: Option<LinkId>,
    /// While the link over RDMA is there.
    rdma: Option<LinkId>,
    stage: Stage,
    /// Frames that the first medium has accepted and not given back, with the record.
    base_frames: usize,
    /// Of those, how many are before the record.
    record_after: Option<usize>,
    /// The record, if the first medium had no room for it; it follows the frames that are there.
    record_waiting: Option<Box<Frame>>,
    /// Frames that wait for an answer, or for the first medium to give back those before them.
    held: VecDeque<Box<Frame>>,
    /// What the handler wants to see at least, on the first medium.
    asked_head: usize,
    closing: Option<Closing>,
    over: Option<CloseReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// On the first medium, and nothing was said.
    Base,
    /// The peer may send its record.
    Offered { secret: Secret },
    /// The record is sent, the answer is to come; the turn after says since when.
    Asked { secret: Secret, since: Option<Time> },
    /// Both directions are on RDMA.
    Moved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    Flush,
    Now,
}

impl<A: Adapter, T: Park> Upgrading<A, T> {
    /// A transport that has no links yet. They stay on `base` until [`Upgrading::enable`].
    pub fn new(base: T) -> Self {
        Self {
            base,
            links: None,
            desk: Desk::default(),
            held_frames: 0,
            leaves_near: true,
            stirred: None,
            turns_without_base: 0,
            empty_turns: 0,
            now: Time::ZERO,
            rests_until: Time::ZERO,
        }
    }

    /// Lets links move from now on.
    ///
    /// # Errors
    /// The system refused to watch the device.
    pub fn enable(&mut self, mut links: RdmaLinks<A>) -> Result<(), TransportError> {
        links.warm_up();
        for descriptor in links.descriptors().into_iter().flatten() {
            self.base.watch(descriptor)?;
        }
        self.links = Some(links);
        Ok(())
    }

    /// What links have done over RDMA so far.
    pub fn counters(&self) -> RdmaCounters {
        (self.links.as_ref()).map_or(RdmaCounters::default(), RdmaLinks::counters)
    }

    /// Whether peers of this host are left to the wrapped transport if that offers something too, as shared memory does:
    /// it is nearer. They are, if nothing else is said; say no where the wrapped transport cannot move links itself.
    pub fn leave_near(&mut self, leaves: bool) {
        self.leaves_near = leaves;
    }

    /// As [`RdmaLinks::register_arena`]; 0 without a device.
    ///
    /// # Errors
    /// As there.
    pub fn register_arena(&mut self, arena: &mut Arena) -> Result<usize, TransportError> {
        (self.links.as_mut()).map_or(Ok(0), |links| links.register_arena(arena))
    }

    /// The transport that links start on.
    pub fn base(&self) -> &T {
        &self.base
    }

    /// As [`Upgrading::base`], to change it.
    pub fn base_mut(&mut self) -> &mut T {
        &mut self.base
    }

    /// The link over RDMA that carries a link, if it has moved.
    pub fn rdma_link(&mut self, link: LinkId) -> Option<LinkId> {
        let flow = self.desk.flows.find(link)?;
        flow.rdma.filter(|_| flow.stage == Stage::Moved)
    }

    /// The link of the transport that a link began on, as long as that is there.
    pub fn base_link(&mut self, link: LinkId) -> Option<LinkId> {
        self.desk.flows.find(link)?.base
    }

    /// Whether a link waits for what only a clock will tell.
    pub fn is_waiting(&self) -> bool {
        let Desk {
            asked,
            closing,
            resting,
            ..
        } = &self.desk;
        !(asked.is_empty() && closing.is_empty() && resting.is_empty())
    }

    /// The links over RDMA, if there are any.
    pub fn links(&self) -> Option<&RdmaLinks<A>> {
        self.links.as_ref()
    }

    /// As [`Upgrading::links`], to change them.
    pub fn links_mut(&mut self) -> Option<&mut RdmaLinks<A>> {
        self.links.as_mut()
    }

    /// Whether the first medium has its turn: always, but while RDMA is busy only now and then, since each look costs a
    /// system call.
    fn is_turn_of_base(&mut self, now: Time) -> bool {
        self.turns_without_base += 1;
        let is_busy = (self.stirred).is_some_and(|stirred| now.since(stirred) < BUSY_TIME);
        if is_busy && self.turns_without_base < TURNS_PER_BASE {
            return false;
        }
        self.turns_without_base = 0;
        true
    }

    /// Lets a device in software have the CPU now and then, while this thread spins.
    fn give_way(&mut self, events: usize) {
        if events > 0 {
            self.empty_turns = 0;
            return;
        }
        self.empty_turns += 1;
        if self.empty_turns >= EMPTY_TURNS_PER_YIELD
            && (self.links.as_ref()).is_some_and(|links| links.is_software() && !links.is_empty())
        {
            self.empty_turns = 0;
            std::thread::yield_now();
        }
    }

    fn insert(&mut self, base: LinkId) -> LinkId {
        let id = self.desk.flows.insert(Flow {
            base: Some(base),
            rdma: None,
            stage: Stage::Base,
            base_frames: 0,
            record_after: None,
            record_waiting: None,
            held: VecDeque::new(),
            asked_head: 1,
            closing: None,
            over: None,
        });
        enter(&mut self.desk.by_base, base, id);
        id
    }
}

impl<A: Adapter, T: Park> Transport for Upgrading<A, T> {
    type Accepted = T::Accepted;

    fn name(&self) -> &'static str {
        self.base.name()
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), TransportError> {
        self.base.listen(address)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.base.unlisten(listener);
    }

    fn adopt(&mut self, accepted: T::Accepted, next: Next) -> Result<LinkId, TransportError> {
        let head_bytes = match &next {
            Next::Head { at_least_bytes } => *at_least_bytes,
            _ => 1,
        };
        let base = self.base.adopt(accepted, next)?;
        let id = self.insert(base);
        if let Some(flow) = self.desk.flows.find(id) {
            flow.asked_head = head_bytes;
        }
        Ok(id)
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        let base = self.base.connect(peer)?;
        Ok(self.insert(base))
    }

    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        let Some(flow) = self.desk.flows.find(link) else {
            return refuse(frame, Refusal::NotOpen);
        };
        if flow.closing.is_some() || flow.over.is_some() {
            return refuse(frame, Refusal::NotOpen);
        }
        let waits = match flow.stage {
            Stage::Asked { .. } => true,
            Stage::Moved => flow.base_frames > 0 || !flow.held.is_empty(),
            Stage::Base | Stage::Offered { .. } => !flow.held.is_empty(),
        };
        if waits {
            if flow.held.len() >= HELD_FRAMES_MAX {
                return refuse(frame, Refusal::Full);
            }
            flow.held.push_back(frame);
            self.held_frames += 1;
            return Ok(());
        }
        match (flow.stage, flow.rdma, flow.base, &mut self.links) {
            (Stage::Moved, Some(rdma), _, Some(links)) => links.send(rdma, frame),
            (Stage::Base | Stage::Offered { .. }, _, Some(base), _) => {
                match self.base.send(base, frame) {
                    Ok(()) => flow.base_frames += 1,
                    // Its place is taken by a record, of whose end nobody is told.
                    Err(refused)
                        if refused.refusal == Refusal::Full && flow.record_after.is_some() =>
                    {
                        flow.held.push_back(refused.value);
                        self.held_frames += 1;
                    }
                    Err(refused) => return Err(refused),
                }
                Ok(())
            }
            _ => refuse(frame, Refusal::NotOpen),
        }
    }

    fn resume(&mut self, link: LinkId, next: Next) -> Result<(), Refused<Next>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        let Some(flow) = self.desk.flows.find(link) else {
            return refuse(next, Refusal::NotOpen);
        };
        if flow.closing.is_some() || flow.over.is_some() {
            return refuse(next, Refusal::NotOpen);
        }
        match (flow.stage, flow.rdma, flow.base, &mut self.links) {
            (Stage::Moved, Some(rdma), _, Some(links)) => links.resume(rdma, next),
            (Stage::Base | Stage::Offered { .. } | Stage::Asked { .. }, _, Some(base), _) => {
                flow.note(&next);
                self.base.resume(base, next)
            }
            _ => refuse(next, Refusal::NotOpen),
        }
    }

    fn close(&mut self, link: LinkId, flush: bool) {
        let Some(flow) = self.desk.flows.find(link) else {
            return;
        };
        if flow.closing == Some(Closing::Now) || flow.over.is_some() {
            return;
        }
        let is_first = flow.closing.is_none();
        if !is_first {
            return;
        }
        flow.closing = Some(if flush { Closing::Flush } else { Closing::Now });
        match flow.stage {
            Stage::Base | Stage::Offered { .. } if flow.held.is_empty() || !flush => {
                if let Some(base) = flow.base {
                    self.base.close(base, flush);
                }
            }
            Stage::Moved if !flush || (flow.held.is_empty() && flow.base_frames == 0) => {
                if let (Some(rdma), Some(links)) = (flow.rdma, &mut self.links) {
                    links.close(rdma, flush);
                }
            }
            Stage::Asked { .. } if !flush => {
                if let Some(base) = flow.base {
                    self.base.close(base, false);
                }
            }
            // The frames that are held go first.
            Stage::Base | Stage::Offered { .. } | Stage::Asked { .. } | Stage::Moved => {
                let until = self.now + CLOSE_TIME_MAX;
                self.desk.closing.push((link, until));
            }
        }
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        self.now = now;
        let mut events = 0;
        if let Some(links) = &mut self.links {
            let mut tap = RdmaTap {
                desk: &mut self.desk,
                handler,
                events: 0,
            };
            links.turn(now, &mut tap);
            events += tap.events;
        }
        if events > 0 {
            self.stirred = Some(now);
        }
        if self.is_turn_of_base(now) {
            let mut tap = BaseTap {
                desk: &mut self.desk,
                handler,
                events: 0,
            };
            self.base.turn(now, &mut tap);
            events += tap.events;
        }
        events += self.carry_out(handler);
        if !self.desk.resting.is_empty() {
            self.check_resting();
        }
        if !self.desk.closing.is_empty() {
            self.check_closing();
        }
        if !self.desk.asked.is_empty() {
            self.check_asked();
            events += self.carry_out(handler);
        }
        events += self.part(handler);
        self.give_way(events);
        events
    }

    fn submit(&mut self) {
        if let Some(links) = &mut self.links {
            links.submit();
        }
        self.base.submit();
    }

    fn frames_in_flight(&self) -> usize {
        let over_rdma = (self.links.as_ref()).map_or(0, RdmaLinks::frames_in_flight);
        self.base.frames_in_flight() - self.desk.records_in_flight + over_rdma + self.held_frames
    }

    fn offer(&mut self, link: LinkId) -> Option<Vec<u8>> {
        let flow = self.desk.flows.find(link)?;
        let mut offer = flow
            .base
            .and_then(|base| self.base.offer(base))
            .unwrap_or_default();
        if self.links.is_some() && flow.stage == Stage::Base {
            let secret: Secret = std::array::from_fn(|_| fastrand::u8(..));
            flow.stage = Stage::Offered { secret };
            record::append_offer(&mut offer, &secret);
        }
        (!offer.is_empty()).then_some(offer)
    }

    fn upgrade(&mut self, link: LinkId, offer: &[u8]) {
        let (nearer, secret) = split_offer(offer);
        let Some(flow) = self.desk.flows.find(link) else {
            return;
        };
        let Some(base) = flow.base else {
            return;
        };
        let is_near = self.leaves_near && record::is_of_this_host(nearer);
        if !nearer.is_empty() {
            self.base.upgrade(base, nearer);
        }
        let (Some(secret), true) = (secret, self.links.is_some()) else {
            return;
        };
        if is_near || flow.stage != Stage::Base {
            return;
        }
        if self.now < self.rests_until {
            let (id, until) = (link, self.rests_until);
            self.desk.resting.push(Resting { id, secret, until });
        } else {
            self.ask(link, secret);
        }
    }
}

impl<A: Adapter, T: Park> Park for Upgrading<A, T> {
    fn park(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        let Some(links) = &mut self.links else {
            return self.base.park(timeout);
        };
        if !self.desk.orders.is_empty() || !links.arm() {
            return Ok(());
        }
        let patience = links.patience();
        let check = self.is_waiting().then_some(WAIT_CHECK);
        let timeout = [timeout, patience, check].into_iter().flatten().min();
        self.stirred = None;
        self.base.park(timeout)
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        if let Some(links) = &mut self.links
            && (links.patience().is_some() || !self.desk.orders.is_empty() || !links.arm())
        {
            return None;
        }
        self.base.park_fd()
    }

    fn unpark(&mut self) {
        self.stirred = None;
        self.base.unpark();
    }

    fn waker(&self) -> Waker {
        self.base.waker()
    }

    fn watch(&mut self, companion: BorrowedFd<'_>) -> Result<(), TransportError> {
        self.base.watch(companion)
    }
}

fn enter(map: &mut Vec<Option<LinkId>>, key: LinkId, id: LinkId) {
    let slot = key.slot as usize;
    if map.len() <= slot {
        map.resize(slot + 1, None);
    }
    map[slot] = Some(id);
}

fn leave(map: &mut [Option<LinkId>], key: LinkId) -> Option<LinkId> {
    map.get_mut(key.slot as usize)?.take()
}

/// Name of the medium, for logs and metrics.
const MEDIUM: &str = "rdma";

/// Frames of one link that wait for the answer.
const HELD_FRAMES_MAX: usize = 1024;

/// How long a peer may take to answer a record. Without an answer there is no way back, so the link ends then; it is
/// long because the peer may be busy, or have much to send before its answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a link that closes waits for an answer before it closes without.
const CLOSE_TIME_MAX: Duration = Duration::from_millis(250);

/// How often a thread that sleeps looks whether an answer is late, or a rest over.
const WAIT_CHECK: Duration = Duration::from_millis(100);

/// How long no link moves after RDMA failed under one. Until then new links carry calls where they began.
const REST_TIME: Duration = Duration::from_secs(10);

/// When a peer that has refused is asked again.
const REFUSED_TIME: Duration = Duration::from_secs(60);

/// How long RDMA counts as busy after an event.
const BUSY_TIME: Duration = Duration::from_micros(100);

/// Turns of which the first medium has one while RDMA is busy.
const TURNS_PER_BASE: u32 = 16;

/// Turns without events between two chances for a device in software.
const EMPTY_TURNS_PER_YIELD: u32 = 64;

const _: () = assert!(SECRET_BYTES == 16);
