//! RDMA as a medium that links migrate to.
//!
//! The side that accepted offers a secret. The side that dialled, if it has a device too, sends a
//! record behind its last frame: the secret and its set-up data. The answer is a record behind the
//! other side's last frame. So each direction is cut where its record lies. If the answer is a
//! refusal, the stream goes on where it was. The link of the base transport stays open until the
//! end, and tells when the peer is gone.

mod handshake;
pub(crate) mod record;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use grpcxx_memory::Arena;
use grpcxx_transport::{
    CloseReason, Frame, LinkHandler, LinkId, LinkRegistry, Medium, MediumKind, Next, Reading,
    Refusal, Refused, Time, TransportError,
};

use self::handshake::{Handshake, Resting};
use self::record::{SECRET_BYTES, Secret};
use crate::adapter::Adapter;
use crate::counters::RdmaCounters;
use crate::links::RdmaLinks;

/// Links migrate to RDMA where both ends have a device.
///
/// Frames must be at least as long as the secret, 16 bytes, and the heads that are asked for too.
pub struct RdmaMedium<A: Adapter> {
    links: RdmaLinks<A>,
    near: NearPeers,
    /// Links that will ask their peers later.
    resting: Vec<Resting>,
    /// After a failure of RDMA no link migrates until then.
    rests_until: Time,
    /// Turns without an event, in a row.
    empty_turns: u32,
}

/// What becomes of links to peers of this host that could migrate below RDMA, as to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NearPeers {
    /// They are left to the base transport, whose medium is nearer.
    LeaveToBase,
    /// They migrate to RDMA, because the base transport cannot migrate links.
    Migrate,
}

impl<A: Adapter> RdmaMedium<A> {
    /// Lets links migrate to `links`. Memory for the first of them is registered now, since that
    /// takes long and nobody waits yet.
    pub fn new(mut links: RdmaLinks<A>, near: NearPeers) -> Self {
        links.warm_up();
        Self {
            links,
            near,
            resting: Vec::new(),
            rests_until: Time::ZERO,
            empty_turns: 0,
        }
    }

    /// What links have done over RDMA so far.
    pub fn counters(&self) -> RdmaCounters {
        self.links.counters()
    }

    /// The links over RDMA.
    pub fn links(&self) -> &RdmaLinks<A> {
        &self.links
    }

    /// The links over RDMA, to change them.
    pub fn links_mut(&mut self) -> &mut RdmaLinks<A> {
        &mut self.links
    }

    /// Registers an arena with the device; see [`RdmaLinks::register_arena`].
    ///
    /// # Errors
    /// The arena is full, so that nothing can hold its mapping.
    pub fn register_arena(&mut self, arena: &mut Arena) -> Result<usize, TransportError> {
        self.links.register_arena(arena)
    }

    /// Lets a device in software have the CPU now and then, while this thread spins.
    fn give_way(&mut self, events: usize) {
        if events > 0 {
            self.empty_turns = 0;
            return;
        }
        self.empty_turns += 1;
        let is_due = self.empty_turns >= EMPTY_TURNS_PER_YIELD;
        if is_due && self.links.is_software() && !self.links.is_empty() {
            self.empty_turns = 0;
            std::thread::yield_now();
        }
    }
}

impl<A: Adapter> Medium for RdmaMedium<A> {
    type Handshake = Handshake;
    type Link = LinkId;

    const KIND: MediumKind = MediumKind::Rdma;
    const HOLDS_FRAMES: bool = true;
    const ANSWER_TIME_MAX: Duration = ANSWER_TIME_MAX;
    const BUSY_TIME: Duration = Duration::from_micros(100);

    fn split_offer(offer: &[u8]) -> (&[u8], &[u8]) {
        record::split_offer(offer)
    }

    fn find_record(handshake: &Handshake, bytes: &[u8]) -> Option<usize> {
        record::position(bytes, &handshake.awaited()?)
    }

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.links.descriptors()
    }

    fn offer(&mut self, _: LinkId, handshake: &mut Handshake, offer: &mut Vec<u8>) {
        if let Handshake::None = handshake {
            let secret: Secret = std::array::from_fn(|_| fastrand::u8(..));
            *handshake = Handshake::Offered { secret };
            record::append_offer(offer, &secret);
        }
    }

    fn ask(&mut self, links: &mut LinkRegistry<Self>, id: LinkId, lower: &[u8], offer: &[u8]) {
        let Some(secret) = record::secret_of(offer) else {
            return;
        };
        let is_near = self.near == NearPeers::LeaveToBase && record::is_of_this_host(lower);
        if !is_near {
            self.ask_when_rested(links, id, secret);
        }
    }

    fn take_record(
        &mut self,
        links: &mut LinkRegistry<Self>,
        id: LinkId,
        record: &[u8],
        next: Next,
    ) -> bool {
        self.meet(links, id, record, next)
    }

    fn give_up(&mut self, links: &mut LinkRegistry<Self>, id: LinkId) {
        links.fail(id, "the peer did not answer", self);
    }

    fn abandon(&mut self, handshake: Handshake) {
        if let Handshake::Asked { rdma, .. } = handshake {
            self.links.close(rdma, false);
        }
    }

    fn check_room(&mut self, &link: &LinkId) -> Result<(), Refusal> {
        self.links.check_frame(link)
    }

    fn push(&mut self, &mut link: &mut LinkId, frame: Box<Frame>) {
        self.links.push(link, frame);
    }

    fn hold(&mut self, &mut link: &mut LinkId, is_held: bool) {
        self.links.hold(link, is_held);
    }

    fn open(&mut self, &mut link: &mut LinkId, next: Next) {
        self.links.open(link, next);
    }

    fn resume(&mut self, &mut link: &mut LinkId, next: Next) -> Result<(), Refused<Next>> {
        self.links.resume(link, next)
    }

    fn reading(&mut self, &mut link: &mut LinkId) -> Option<Reading> {
        self.links.reading(link)
    }

    fn close(&mut self, &mut link: &mut LinkId, flush: bool) {
        self.links.close(link, flush);
    }

    fn end(&mut self, &mut link: &mut LinkId, reason: CloseReason) {
        self.links.end_link(link, reason);
    }

    fn base_lost(&mut self, &mut link: &mut LinkId, reason: &CloseReason) -> Option<u64> {
        self.links.peer_gone(link, reason.clone());
        None
    }

    fn listen(&mut self, links: &mut LinkRegistry<Self>, now: Time) {
        if !self.resting.is_empty() {
            self.check_resting(links, now);
        }
    }

    fn turn<A2>(
        &mut self,
        links: &mut LinkRegistry<Self>,
        now: Time,
        handler: &mut dyn LinkHandler<A2>,
    ) -> usize {
        let events = self.links.turn(now, handler);
        self.part(links);
        self.give_way(events);
        events
    }

    fn submit(&mut self) {
        self.links.submit();
    }

    fn frames_in_flight(&self) -> usize {
        self.links.frames_in_flight()
    }

    fn arm(&mut self, _: &mut LinkRegistry<Self>) -> bool {
        self.links.arm()
    }

    fn disarm(&mut self, _: &mut LinkRegistry<Self>) {
        // A descriptor that is ready by itself wakes the next sleep, and nothing else.
    }

    fn patience(&mut self, _: &mut LinkRegistry<Self>) -> Option<Duration> {
        self.links.patience()
    }

    fn is_waiting(&self) -> bool {
        !self.resting.is_empty()
    }
}

/// How long a peer may take to answer a record. Without an answer there is no way back, so the link
/// ends then; it is long because the peer may be busy, or have much to send before its answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// Turns without events between two chances for a device in software.
const EMPTY_TURNS_PER_YIELD: u32 = 64;

const _: () = assert!(SECRET_BYTES == 16);
