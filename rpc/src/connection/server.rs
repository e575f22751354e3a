//! The answering end of a connection: requests, their answers, and the frames that leave.

use std::collections::VecDeque;
use std::sync::Arc;

use grpcxx_memory::BufferMut;
use grpcxx_transport::{Frame, Next, Outcome, SlotId, SlotTable, Time};
use hashbrown::HashMap;
use smallvec::SmallVec;

use self::answers::Expected;
use self::signatures::Signatures;
use super::deadlines::Deadlines;
use super::outgoing::Outgoing;
use super::peer_holding::HoldingPart;
use super::reader::FrameReader;
use super::{ConnectionLimits, Gate, PeerHolding, SendLimits};
use crate::extensions::bundles::numbers::NumberedKeys;
use crate::extensions::bundles::server::Bundled;
use crate::extensions::key_lists::server::KeptLists;
use crate::extensions::services::wire::LastHead;
use crate::extensions::streams::table::{Ending, Streams};
use crate::wire::{ChunkHeader, Features};
use crate::{Code, Envelope, GraphCall, Reason, Request, Response, Status, Tensor};

pub(crate) mod answers;
pub(crate) mod graph;
pub(crate) mod inbound;
pub(crate) mod messages;
mod signatures;

/// The answering end of a connection.
///
/// A request holds a slot from its header until its answer has left, so a peer that asks without
/// reading is bounded by the same limit as one that asks for what takes long.
#[derive(Debug)]
pub struct ServerConnection {
    /// What the peer takes.
    pub(crate) answer_limits: SendLimits,
    pub(crate) served: SlotTable<Served>,
    /// Requests without an answer by tag.
    pub(crate) tags: HashMap<u64, SlotId>,
    pub(crate) reader: FrameReader<Self>,
    pub(crate) announced: Features,
    pub(crate) gate: Gate,
    pub(crate) peer: Option<Features>,
    /// What the link offers to a peer that can move it; empty if nothing.
    pub(crate) offer: Vec<u8>,
    pub(crate) deadlines: Deadlines,
    pub(crate) ready: VecDeque<Incoming>,
    pub(crate) is_paused: bool,
    /// Bytes of answers that have not left, and those from which on no other is made.
    pub(crate) unsent_bytes: u64,
    pub(crate) unsent_bytes_max: u64,
    /// Its part in what all connections of the peer hold.
    pub(crate) holding: HoldingPart,
    /// Whether the link lends payload of shared arenas.
    pub(crate) lends: bool,
    pub(crate) outgoing: Outgoing,
    pub(crate) streams: Streams,
    /// Answers that wait until the messages before them have left.
    pub(crate) endings: Vec<Ending>,
    pub(crate) bundled: Bundled,
    pub(crate) numbered_keys: NumberedKeys,
    pub(crate) kept_lists: KeptLists,
    signatures: Signatures,
    /// Calls that were taken out of their boxes.
    #[expect(
        clippy::vec_box,
        reason = "calls travel boxed, and their boxes are reused"
    )]
    spare_calls: Vec<Box<GraphCall>>,
    #[expect(
        clippy::vec_box,
        reason = "envelopes travel boxed, and their boxes are reused"
    )]
    pub(crate) spare_envelopes: Vec<Box<Envelope>>,
    /// Of requests by path.
    pub(crate) last_head: LastHead,
    pub(crate) cancelled: VecDeque<Cancelled>,
    pub(crate) undelivered: VecDeque<Undelivered>,
    closed: bool,
}

/// A request of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(crate) SlotId);

/// A request that wants an answer.
#[derive(Debug, PartialEq)]
pub struct Incoming {
    /// What to answer it with.
    pub id: RequestId,
    /// What the peer asks.
    pub request: Request,
    /// When the answer is no longer wanted.
    pub deadline: Option<Time>,
}

/// Tensors that were taken for a peer and did not reach the link.
#[derive(Debug, PartialEq)]
pub struct Undelivered {
    /// The id under which the request was handed out.
    pub id: RequestId,
    /// The request, which is `RecvTensor` or `FuseRecvTensor`.
    pub request: Request,
    /// One tensor for each key.
    pub tensors: SmallVec<[Tensor; 1]>,
}

#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) tag: u64,
    pub(crate) expected: Expected,
    pub(crate) state: State,
    /// What its answer counts, while that has not left.
    pub(crate) unsent_bytes: u64,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its payload is on its way in.
    Arriving,
    /// It waits to be polled.
    Ready,
    /// The service has it.
    HandedOut,
    /// The service has answered it, and messages before the answer wait for the link.
    Ending,
    /// Its answer waits for the link, or is at the link.
    Answered,
}

/// A request whose answer is no longer wanted, as long as the service has not been told.
#[derive(Debug)]
pub(crate) struct Cancelled {
    pub(crate) id: RequestId,
    pub(crate) expected: Expected,
}

impl RequestId {
    /// The id that this is the token of.
    pub fn from_token(token: u64) -> Self {
        Self(SlotId::from_raw(token))
    }

    /// Index of the request among those of its connection that have not ended.
    pub fn slot(self) -> usize {
        self.0.slot as usize
    }

    /// The id as a number, which is the token given to [`Landings`](super::Landings).
    pub fn token(self) -> u64 {
        self.0.raw()
    }
}

impl ServerConnection {
    /// A fresh connection. To a peer that announces itself it announces these features.
    pub fn new(limits: ConnectionLimits, announce: Features) -> Self {
        let limits = limits.within_protocol();
        Self {
            answer_limits: limits.between(Features::NONE),
            served: SlotTable::unlimited(),
            tags: HashMap::new(),
            reader: FrameReader::new(limits),
            announced: announce,
            gate: Gate::default(),
            peer: None,
            offer: Vec::new(),
            deadlines: Deadlines::default(),
            ready: VecDeque::new(),
            is_paused: false,
            unsent_bytes: 0,
            unsent_bytes_max: limits.unsent_bytes,
            holding: HoldingPart::default(),
            lends: false,
            outgoing: Outgoing::new(&limits),
            streams: Streams::default(),
            endings: Vec::new(),
            bundled: Bundled::default(),
            numbered_keys: NumberedKeys::default(),
            kept_lists: KeptLists::default(),
            signatures: Signatures::default(),
            spare_calls: Vec::new(),
            spare_envelopes: Vec::new(),
            last_head: LastHead::default(),
            cancelled: VecDeque::new(),
            undelivered: VecDeque::new(),
            closed: false,
        }
    }

    /// Lets the announcement carry what the peer needs to move the link to another medium. A peer
    /// that does not know of that does not get it.
    pub fn set_offer(&mut self, offer: Vec<u8>) {
        self.offer = offer;
    }

    /// Counts what the connection holds as part of what its peer does.
    pub fn belong_to(&mut self, peer: Arc<PeerHolding>) {
        self.holding.belong_to(peer);
    }

    /// Says which of several arenas the payload of the connection lands in, before any does.
    pub fn land_in(&mut self, arena: usize) {
        self.holding.land_in(arena);
    }

    /// Features that the peer has announced.
    pub fn peer_features(&self) -> Option<Features> {
        self.peer
    }

    /// Requests that were handed out and have no answer.
    pub fn outstanding_requests(&self) -> impl Iterator<Item = RequestId> {
        self.served
            .iter()
            .filter(|(_, served)| served.state == State::HandedOut)
            .map(|(id, _)| RequestId(id))
    }

    /// Requests from their header until their answer has left.
    pub fn requests_under_way(&self) -> usize {
        self.served.len() + self.bundled.immediate_hits()
    }

    /// Bytes of answers that have not left.
    pub fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes
    }

    /// Whether an answer to this request is still wanted.
    pub fn is_outstanding(&self, id: RequestId) -> bool {
        self.served
            .find(id.0)
            .is_some_and(|served| served.state == State::HandedOut)
    }

    /// Whether no frame has begun and no answer is owed.
    pub fn is_unused(&self) -> bool {
        self.served.is_empty() && self.bundled.immediate_hits() == 0 && !self.is_within_frame()
    }

    /// The next request.
    pub fn poll_request(&mut self) -> Option<Incoming> {
        if self.owes_much() {
            return None;
        }
        loop {
            let incoming = self.ready.pop_front()?;
            if let Some(
                served @ Served {
                    state: State::Ready,
                    ..
                },
            ) = self.served.find_mut(incoming.id.0)
            {
                served.state = State::HandedOut;
                return Some(incoming);
            }
        }
    }

    /// Whether [`ServerConnection::poll_request`] may have requests.
    pub fn has_requests(&self) -> bool {
        !self.ready.is_empty() && !self.owes_much()
    }

    /// Whether so much is unsent that no other request is served before some of it has left.
    #[inline]
    pub(crate) fn owes_much(&self) -> bool {
        self.unsent_bytes >= self.unsent_bytes_max || self.holding.owes_much()
    }

    /// Counts the keys that are kept.
    #[inline]
    pub(crate) fn count_keys(&mut self) {
        let bytes = self.numbered_keys.bytes() + self.kept_lists.bytes();
        self.holding.note_keys(bytes);
    }

    /// Answers a request. What cannot be sent is answered with its reason.
    ///
    /// `false` says that nobody waits for the answer any more. Until
    /// [`ServerConnection::poll_cancelled`] has said so too, tensors in such an answer come back
    /// through [`ServerConnection::poll_undelivered`].
    pub fn answer(&mut self, id: RequestId, result: Result<Response, Status>) -> bool {
        match self.try_answer(id, result) {
            Ok(()) => true,
            Err(result) => {
                self.rescue(id, result);
                false
            }
        }
    }

    /// Answers a request, as [`ServerConnection::answer`] does.
    ///
    /// # Errors
    /// The answer comes back: nobody waits for it any more.
    #[expect(
        clippy::result_large_err,
        reason = "the result comes back whole, without an allocation"
    )]
    pub fn try_answer(
        &mut self,
        id: RequestId,
        result: Result<Response, Status>,
    ) -> Result<(), Result<Response, Status>> {
        self.try_answer_in(id, result, &mut |_| None)
    }

    /// Answers a request, as [`ServerConnection::try_answer`] does. Where the link lends payload,
    /// small tensors are put together in `memory` of the length that it is asked for, if it has
    /// any; that should be of a shared arena.
    ///
    /// # Errors
    /// The answer comes back: nobody waits for it any more.
    #[expect(
        clippy::result_large_err,
        reason = "the result comes back whole, without an allocation"
    )]
    pub fn try_answer_in(
        &mut self,
        id: RequestId,
        result: Result<Response, Status>,
        memory: &mut dyn FnMut(usize) -> Option<BufferMut>,
    ) -> Result<(), Result<Response, Status>> {
        if !self.is_outstanding(id) {
            return Err(result);
        }
        let Some(result) = self.behind_messages(id, result) else {
            return Ok(());
        };
        self.respond(id.0, result, memory);
        Ok(())
    }

    /// A request that was handed out and whose answer is no longer wanted: the peer gave it up, its
    /// deadline is over, or the link is gone. The connection has answered it, if that makes sense.
    pub fn poll_cancelled(&mut self) -> Option<RequestId> {
        self.cancelled.pop_front().map(|cancelled| cancelled.id)
    }

    /// Whether [`ServerConnection::poll_cancelled`] has something.
    #[inline]
    pub fn has_cancelled(&self) -> bool {
        !self.cancelled.is_empty()
    }

    /// Tensors that were answered and did not reach the link, for the rendezvous that they came
    /// from. Those that [were immediate hits](crate::Landings::immediate_hit) come through
    /// [`ServerConnection::poll_lost`].
    pub fn poll_undelivered(&mut self) -> Option<Undelivered> {
        self.undelivered.pop_front()
    }

    /// What a paused link shall do next, once there is room for another request.
    pub fn poll_resume(&mut self) -> Option<Next> {
        if !self.is_paused || self.closed || self.is_full() {
            return None;
        }
        self.is_paused = false;
        Some(self.first_order())
    }

    /// Takes back a frame that the link is done with, and frees its requests.
    pub fn handle_sent(&mut self, frame: Box<Frame>, outcome: Outcome) {
        self.handle_sent_with(frame, outcome, |_| {});
    }

    /// The same, which tells each request whose answer has left.
    pub fn handle_sent_with(
        &mut self,
        frame: Box<Frame>,
        outcome: Outcome,
        mut delivered: impl FnMut(RequestId),
    ) {
        self.streams.sent(&frame);
        if !self.answers_sent(&frame, outcome, &mut delivered) {
            self.answer_sent(SlotId::from_raw(frame.token), outcome, &mut delivered);
        }
        self.outgoing.recycle(frame);
    }

    #[inline]
    pub(crate) fn answer_sent(
        &mut self,
        id: SlotId,
        outcome: Outcome,
        delivered: &mut impl FnMut(RequestId),
    ) {
        match outcome {
            Outcome::Done => {
                if let Some(served) = self.served.remove(id) {
                    self.unsent_bytes -= served.unsent_bytes;
                    self.holding.note_unsent(self.unsent_bytes);
                }
                delivered(RequestId(id));
            }
            Outcome::Lost => {
                if let Some(served) = self.served.remove(id) {
                    self.unsent_bytes -= served.unsent_bytes;
                    self.holding.note_unsent(self.unsent_bytes);
                    self.give_back(RequestId(id), served.expected);
                }
            }
        }
    }

    /// Ends all requests, because the link is gone.
    pub fn handle_closed(&mut self, _status: &Status) {
        self.closed = true;
        self.reader.close();
        self.deadlines.clear();
        self.tags.clear();
        self.ready.clear();
        self.endings.clear();
        self.streams = Streams::default();
        while let Some(frame) = self.outgoing.abandon() {
            self.handle_sent(frame, Outcome::Lost);
        }
        let ids: Vec<_> = self
            .served
            .iter()
            .filter(|(_, served)| served.state != State::Answered)
            .map(|(id, _)| id)
            .collect();
        for id in ids {
            let served = self.served.remove(id).expect("it was just there");
            if served.state == State::HandedOut {
                self.cancelled.push_back(Cancelled {
                    id: RequestId(id),
                    expected: served.expected,
                });
            }
        }
    }

    /// Answers the requests whose deadline is over.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(slot) = self.deadlines.pop_due(now) {
            let id = self.served.key_at(slot);
            let status = Status::new(
                Code::DeadlineExceeded,
                "the server had no answer when the deadline of the request was over",
            )
            .because(Reason::Deadline);
            self.refuse(id.expect("a deadline is removed with its request"), status);
        }
    }

    /// When [`ServerConnection::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.deadlines.next()
    }

    /// The next frame for the link.
    pub fn poll_frame(&mut self) -> Option<Box<Frame>> {
        if let Some(frame) = self.streams.take_refused() {
            return Some(frame);
        }
        if self.streams.is_due(self.outgoing.has_frames())
            && let Some(frame) = self.stream_frame()
        {
            return Some(frame);
        }
        let frame = self.outgoing.pop()?;
        let token = frame.token;
        Some(self.outgoing.cut(frame, token))
    }

    /// Takes back a frame that the link refused; it is the next one again.
    pub fn unpoll_frame(&mut self, frame: Box<Frame>) {
        if let Some(frame) = self.streams.refused(frame) {
            self.outgoing.unpop(frame);
        }
    }

    /// Notes what the peer has announced.
    pub(crate) fn meet(&mut self, features: Features) {
        self.peer = Some(features);
        self.answer_limits = self.reader.limits.between(self.common());
        if self.has(Features::CHUNKS) {
            let whole_frame_bytes = self.reader.limits.whole_frame_bytes;
            (self.outgoing.cutter).start(whole_frame_bytes, ChunkHeader::encode_of_response);
        }
    }

    /// Whether there is a frame of which the link has had some chunks, or waits for its turn.
    pub fn is_chunking(&self) -> bool {
        self.outgoing.cutter.has_work()
    }

    /// Says whether the link lends payload of shared arenas to the peer, so that nothing waits for
    /// it.
    pub fn set_lends(&mut self, lends: bool) {
        self.lends = lends;
        self.outgoing.cutter.keep_shared(lends);
    }

    pub(crate) fn has(&self, feature: Features) -> bool {
        self.common().contains(feature)
    }

    /// What both ends have announced.
    pub(crate) fn common(&self) -> Features {
        self.announced & self.peer.unwrap_or_default()
    }

    /// Whether another request has to wait. One that arrives in chunks does not count, for those
    /// behind it may wait for the rest of it.
    pub(crate) fn is_full(&self) -> bool {
        let limit =
            self.reader.limits.outstanding_calls + usize::from(self.reader.chunks.is_begun());
        self.owes_much()
            || self.served.len() + self.bundled.immediate_hits() + self.cancelled.len() >= limit
    }
}
