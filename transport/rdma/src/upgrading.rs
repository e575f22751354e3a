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
mod transport;

use std::collections::VecDeque;
use std::time::Duration;

use grpcxx_memory::Arena;
use grpcxx_transport::{CloseReason, Frame, LinkId, LinkTable, Park, Time, TransportError};

use self::record::{SECRET_BYTES, Secret};
use self::tap::Order;
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

/// How long a peer may take to answer a record. Without an answer there is no way back, so the link ends then; it is
/// long because the peer may be busy, or have much to send before its answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

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
