//! The asking end of a connection: calls, their deadlines, and the frames that leave.

use std::collections::VecDeque;

use grpcxx_memory::Buffer;
use grpcxx_transport::{Frame, Outcome, Refusal, Refused, SlotId, SlotTable, Time};

use self::inbound::Aside;
use super::asked::AskedKeys;
use super::calls::{Call, CallId, CallOptions, CallState, Expected, Finished};
use super::deadlines::Deadlines;
use super::limits::FRAME_BYTES_MAX;
use super::outgoing::Outgoing;
use super::reader::FrameReader;
use super::{ConnectionLimits, encode};
use crate::extensions::bundles::answers::{Answers, ReadyAnswer};
use crate::extensions::bundles::numbers::KeyNumbers;
use crate::extensions::chunks::cutter;
use crate::extensions::element_types;
use crate::extensions::key_lists::client::{ListUse, SentLists};
use crate::extensions::key_lists::wire as key_lists;
use crate::extensions::services::client::Waiting;
use crate::extensions::streams::table::Streams;
use crate::extensions::token::proving::{Credentials, Proving};
use crate::wire::Features;
use crate::{Code, Reason, Request, Response, Status, Text};

mod fetched;
mod graph;
pub(crate) mod inbound;
mod leaving;
pub(crate) mod messages;

/// The asking end of a connection.
///
/// A call holds a slot until its response is complete or the link is gone; its tag is slot and
/// generation. A call that was given up keeps its slot too, because its response still comes and
/// has to be recognised.
#[derive(Debug)]
pub struct ClientConnection {
    pub(crate) calls: SlotTable<Call>,
    pub(crate) reader: FrameReader<Self>,
    /// Responses whose payload lands while later ones are shown, and complete ones between them,
    /// oldest first.
    pub(crate) aside: VecDeque<Aside>,
    pub(crate) announced: Features,
    pub(crate) proving: Proving,
    /// Which task this side says that it is.
    pub(crate) task: Option<Text>,
    pub(crate) peer: Option<Features>,
    /// Whether requests for one tensor each go into shared frames: both ends know them, and the
    /// link is there.
    pub(crate) bundles: bool,
    pub(crate) peer_status: Option<Buffer>,
    pub(crate) offer: Option<Vec<u8>>,
    deadlines: Deadlines,
    /// Frames that are too long for a peer of which nothing is known yet.
    #[expect(clippy::vec_box, reason = "frames travel boxed")]
    held: Vec<Box<Frame>>,
    /// Calls of which it is not known yet in which form the peer takes them.
    pub(crate) waiting: Vec<Waiting>,
    /// Why it is not known what the peer knows.
    pub(crate) announcement_failed: Option<Box<Status>>,
    pub(crate) outgoing: Outgoing,
    pub(crate) streams: Streams,
    pub(crate) key_numbers: KeyNumbers,
    sent_lists: SentLists,
    pub(crate) asked: AskedKeys,
    pub(crate) answers: Answers,
    finished: VecDeque<Finished>,
    outstanding: usize,
    closed: bool,
}

impl ClientConnection {
    /// A fresh connection. Unless `announce` is empty, its first frame announces these features.
    pub fn new(limits: ConnectionLimits, announce: Features) -> Self {
        Self::with_token(limits, announce, None)
    }

    /// A fresh connection which sends nothing but announcements before the server has proved that
    /// it has the token.
    pub fn with_token(
        limits: ConnectionLimits,
        announce: Features,
        credentials: Option<Credentials>,
    ) -> Self {
        Self::of_task(limits, announce, credentials, None)
    }

    /// A fresh connection, which says besides that this side is a task of the cluster: `ps/0`.
    pub fn of_task(
        limits: ConnectionLimits,
        announce: Features,
        credentials: Option<Credentials>,
        task: Option<Text>,
    ) -> Self {
        let limits = limits.within_protocol();
        let mut connection = Self {
            calls: SlotTable::unlimited(),
            reader: FrameReader::new(limits),
            aside: VecDeque::new(),
            announced: announce,
            proving: Proving::new(credentials),
            task,
            peer: None,
            bundles: false,
            peer_status: None,
            offer: None,
            deadlines: Deadlines::default(),
            outgoing: Outgoing::new(&limits),
            held: Vec::new(),
            waiting: Vec::new(),
            announcement_failed: None,
            streams: Streams::default(),
            key_numbers: KeyNumbers::default(),
            sent_lists: SentLists::default(),
            asked: AskedKeys::default(),
            answers: Answers::default(),
            finished: VecDeque::new(),
            outstanding: 0,
            closed: false,
        };
        if !announce.is_empty() {
            connection.announce();
        }
        connection
    }

    /// Calls without a result.
    pub fn outstanding_calls(&self) -> usize {
        self.outstanding
    }

    /// Whether a call would not be refused: the link is there, and fewer calls are outstanding than
    /// the limit allows.
    #[inline]
    fn takes_calls(&self) -> bool {
        let limit = self.reader.limits.outstanding_calls;
        let has_slot =
            self.calls.len() < limit || self.calls.len() - self.announcement_calls() < limit;
        has_slot && !self.closed && self.finished.len() + self.answers.len() < limit
    }

    /// Starts a call. What cannot be sent at all ends with its reason, like a call that fails
    /// later.
    ///
    /// # Errors
    /// The request comes back: as many calls are outstanding as the limit allows, or the link is
    /// gone.
    pub fn call(
        &mut self,
        now: Time,
        request: Request,
        options: CallOptions,
    ) -> Result<CallId, Refused<Request>> {
        if !self.takes_calls() {
            return Err(Refused {
                value: request,
                refusal: match self.closed {
                    true => Refusal::NotOpen,
                    false => Refusal::Full,
                },
            });
        }

        let deadline = options.deadline;
        let timeout_ms = deadline.map_or(0, |deadline| self.timeout_ms(deadline, now));
        let is_overdue = options.deadline.is_some_and(|deadline| deadline <= now);
        if let Request::RecvTensor { step_id, key } = &request
            && self.has(Features::BUNDLES)
            && key.len() <= SHARED_KEY_BYTES_MAX
            && !is_overdue
        {
            return Ok(self.begin_receive(timeout_ms, *step_id, key, options));
        }
        Ok(self.call_alone(now, request, options, timeout_ms, is_overdue))
    }

    /// Whether [`ClientConnection::receive`] may be used for a key: requests for one tensor each go
    /// into shared frames, this one has room there, and fewer calls than the limit allows are
    /// outstanding or ended.
    #[inline]
    pub fn takes_receives(&self, key: &Text) -> bool {
        let calls = self.calls.len() + self.finished.len() + self.answers.len();
        self.bundles
            && calls < self.reader.limits.outstanding_calls
            && key.len() <= SHARED_KEY_BYTES_MAX
    }

    /// Starts a call for one tensor, as [`ClientConnection::call`] does, in the few steps of which
    /// most calls consist.
    ///
    /// [`ClientConnection::takes_receives`] has to be true, and the deadline still to come.
    /// Inlined, so that options of which the caller knows that there are none take no steps either.
    #[inline(always)]
    pub fn receive(&mut self, now: Time, step_id: i64, key: &Text, options: CallOptions) -> CallId {
        debug_assert!(self.takes_receives(key));
        let deadline = options.deadline;
        let timeout_ms = deadline.map_or(0, |deadline| self.timeout_ms(deadline, now));
        self.begin_receive(timeout_ms, step_id, key, options)
    }

    /// Starts a call whose request goes into a frame with others.
    #[inline(always)]
    fn begin_receive(
        &mut self,
        timeout_ms: i32,
        step_id: i64,
        key: &Text,
        options: CallOptions,
    ) -> CallId {
        let id = self.begin_call(options, timeout_ms, true);
        self.queue_bundled(id, timeout_ms, step_id, key);
        CallId(id)
    }

    /// What a request says of its deadline: the time left, rounded up, and never 0, which is for
    /// none.
    #[inline(never)]
    fn timeout_ms(&self, deadline: Time, now: Time) -> i32 {
        if !self.has(Features::DEADLINE) {
            return 0;
        }
        left_ms(deadline, now)
    }

    /// Starts a call whose request has a frame of its own.
    fn call_alone(
        &mut self,
        now: Time,
        request: Request,
        options: CallOptions,
        timeout_ms: i32,
        is_overdue: bool,
    ) -> CallId {
        if is_overdue {
            let options = CallOptions {
                deadline: None,
                ..options
            };
            let id = self.begin_call(options, timeout_ms, false);
            self.finish(id, Err(deadline_exceeded()));
            return CallId(id);
        }
        let id = self.begin_call(options, timeout_ms, false);
        // What waits for the announcement says it once the peer is known to understand.
        let said_later_ms = match self.peer {
            Some(_) => timeout_ms,
            None => (options.deadline).map_or(0, |deadline| left_ms(deadline, now)),
        };
        if let Request::Stream(envelope) = request {
            self.begin_stream(id, said_later_ms, envelope);
            return CallId(id);
        }
        if let Some(request) = self.shape(id, said_later_ms, request) {
            self.queue_alone(id, request, timeout_ms);
        }
        CallId(id)
    }

    /// Queues the frame of a request that shares none.
    fn queue_alone(&mut self, id: SlotId, request: Request, timeout_ms: i32) {
        let mut frame = self.outgoing.empty_frame();
        // As long as the peer has not said what it knows, it may know all that we do.
        let common = self.announced & self.peer.unwrap_or(self.announced);
        let limits = self.reader.limits.between(common);
        let list = match &request {
            Request::FuseRecvTensor { keys, .. } if self.has(Features::KEY_LISTS) => {
                self.sent_lists.name(keys, id)
            }
            _ => ListUse::Keys,
        };
        let encoded = match (&request, list) {
            (Request::FuseRecvTensor { step_id, .. }, ListUse::Number(number)) => {
                key_lists::request(&mut frame, id.raw(), timeout_ms, *step_id, number);
                Ok(())
            }
            _ => element_types::check_request(common, &request).and_then(|()| {
                let records = &mut self.outgoing.records;
                encode::request(&mut frame, id.raw(), timeout_ms, &request, &limits, records)
            }),
        };
        match encoded {
            Ok(()) => {
                if let ListUse::Keep(number) = list {
                    key_lists::mark(&mut frame, number);
                }
                frame.token = id.raw();
                if self.peer.is_none() && frame.len_bytes() > FRAME_BYTES_MAX {
                    self.held.push(frame);
                } else {
                    self.outgoing.push(frame);
                }
                self.asked.note(id, &request);
                self.expect(id, Expected::of(request));
            }
            Err(status) => {
                self.outgoing.recycle(frame);
                self.finish(id, Err(status));
            }
        }
    }

    pub(crate) fn expect(&mut self, id: SlotId, expected: Expected) {
        let call = self.calls.find_mut(id).expect("the call has just begun");
        call.expected = expected;
    }

    /// Gives a call up: it ends with `CANCELLED`, unless it has ended already, which `false` says.
    pub fn cancel(&mut self, call: CallId) -> bool {
        match self.calls.find(call.0) {
            Some(Call {
                state,
                expected:
                    Expected::Message
                    | Expected::Tensors { .. }
                    | Expected::Fetched { .. }
                    | Expected::Unary
                    | Expected::Stream { .. },
                ..
            }) if !state.has_ended() => {
                let status = Status::new(Code::Cancelled, "the caller gave the call up")
                    .because(Reason::Cancelled);
                self.give_up(call.0, status, true);
                true
            }
            _ => false,
        }
    }

    /// Takes back a frame that the link is done with.
    pub fn handle_sent(&mut self, frame: Box<Frame>, _outcome: Outcome) {
        self.streams.sent(&frame);
        self.outgoing.recycle(frame);
    }

    /// Ends all calls, because the link is gone.
    pub fn handle_closed(&mut self, status: &Status) {
        self.close();
        let ids: Vec<SlotId> = self.calls.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.finish(id, Err(status.clone()));
        }
        self.deadlines.clear();
        self.asked = AskedKeys::default();
        self.reader.close();
        self.aside.clear();
    }

    /// Takes no more calls, and drops the frames that have not left.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.bundles = false;
        self.waiting.clear();
        self.streams.close();
        while let Some(frame) = self.outgoing.abandon().or_else(|| self.held.pop()) {
            self.outgoing.recycle(frame);
        }
    }

    /// Ends the calls whose deadline is over.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(slot) = self.deadlines.pop_due(now) {
            let id = self.calls.key_at(slot);
            let id = id.expect("a deadline is removed with its call");
            let tell_peer = self
                .calls
                .find(id)
                .is_some_and(|call| !call.is_deadline_sent);
            self.give_up(id, deadline_exceeded(), tell_peer);
        }
    }

    /// When [`ClientConnection::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.deadlines.next()
    }

    /// The next frame for the link.
    pub fn poll_frame(&mut self) -> Option<Box<Frame>> {
        if !self.proving.lets_leave() {
            return None;
        }
        if let Some(frame) = self.streams.take_refused() {
            return Some(frame);
        }
        if self.streams.is_due(self.outgoing.has_frames())
            && let Some(frame) = self.stream_frame()
        {
            return Some(frame);
        }
        loop {
            let frame = self.outgoing.pop()?;
            let id = SlotId::from_raw(frame.token);
            match self.calls.find_mut(id) {
                Some(call) if call.state.has_ended() => {
                    if let Expected::Stream { number } = call.expected {
                        self.streams.remove(number);
                    }
                    self.calls.remove(id);
                    self.sent_lists.ended(id, false);
                    self.outgoing.recycle(frame);
                }
                Some(call) => {
                    call.state.send();
                    if let Expected::Stream { number } = call.expected {
                        self.streams.opened(number);
                    }
                    return Some(self.outgoing.cut(frame, cutter::NOBODY));
                }
                // A cancel, a chunk or requests that share a frame, which no slot belongs to.
                None => return Some(frame),
            }
        }
    }

    /// Takes back a frame that the link refused; it is the next one again.
    pub fn unpoll_frame(&mut self, frame: Box<Frame>) {
        if let Some(call) = self.calls.find_mut(SlotId::from_raw(frame.token)) {
            call.state.unsend();
        }
        self.proving.left_not();
        if let Some(frame) = self.streams.refused(frame) {
            self.outgoing.unpop(frame);
        }
    }

    /// The next result.
    pub fn poll_finished(&mut self) -> Option<Finished> {
        if self.finished.is_empty() {
            let answer = self.answers.poll()?;
            return Some(Finished {
                call: answer.call(),
                token: answer.token(),
                result: Ok(Response::from(answer.take())),
            });
        }
        self.finished.pop_front()
    }

    /// The next result that is a small tensor of a shared frame: what
    /// [`ClientConnection::poll_finished`] says too, for those who do not care which result comes
    /// first.
    #[inline(always)]
    pub fn poll_answer(&mut self) -> Option<ReadyAnswer<'_>> {
        self.answers.poll()
    }

    /// Begins a call whose request shares a frame, or has one of its own.
    #[inline(always)]
    fn begin_call(&mut self, options: CallOptions, timeout_ms: i32, is_bundled: bool) -> SlotId {
        let id = self.calls.insert_with(|| Call {
            token: options.token,
            expected: match is_bundled {
                true => Expected::Tensors { count: 1 },
                false => Expected::Message,
            },
            state: match is_bundled {
                true => CallState::Sent,
                false => CallState::Queued,
            },
            is_deadline_sent: timeout_ms != 0,
            shares_memory: options.shares_memory,
        });
        self.outstanding += 1;
        if let Some(deadline) = options.deadline {
            self.deadlines.insert(id.slot, deadline);
        }
        id
    }

    /// Ends a call whose response is still to come, or whose request has not left.
    pub(crate) fn give_up(&mut self, id: SlotId, status: Status, tell_peer: bool) {
        let Some(call) = self.calls.find_mut(id) else {
            return;
        };
        let is_sent = call.state.is_sent();
        call.state.end();
        let token = call.token;
        if let Expected::Stream { number } = call.expected {
            self.streams.mute(number);
        }
        self.note(id, token, Err(status));
        if is_sent && tell_peer && self.has(Features::CANCEL) {
            self.send_cancel(id);
        }
    }

    fn send_cancel(&mut self, id: SlotId) {
        let mut frame = self.outgoing.empty_frame();
        encode::cancel(&mut frame, id.raw());
        frame.token = NO_CALL;
        self.outgoing.push(frame);
    }

    /// Tells the peer of calls that were given up before it was known to understand that.
    pub(crate) fn send_late_cancels(&mut self) {
        let calls = self.calls.iter();
        let abandoned = calls.filter(|(_, call)| call.state == CallState::Abandoned);
        let abandoned: Vec<SlotId> = abandoned.map(|(id, _)| id).collect();
        abandoned.into_iter().for_each(|id| self.send_cancel(id));
    }

    /// Frees the slot of a call, and ends it unless it has ended before.
    #[inline]
    pub(crate) fn finish(&mut self, id: SlotId, result: Result<Response, Status>) {
        let Some(call) = self.calls.remove(id) else {
            return;
        };
        self.sent_lists.ended(id, result.is_ok());
        self.asked.forget(id);
        if let Expected::Stream { number } = call.expected {
            self.streams.remove(number);
        }
        if let Expected::Announcement = call.expected {
            // A peer that cannot answer knows no extensions.
            self.peer.get_or_insert(Features::NONE);
            self.announcement_failed = result.err().map(Box::new);
            self.proving.answered();
            self.note_refusal();
            self.release_held();
            self.release_waiting();
        } else if !call.state.has_ended() {
            self.note(id, call.token, result);
        }
    }

    /// Sends the frames that waited until the peer said what it knows, or ends their calls.
    fn release_held(&mut self) {
        let limits = self.reader.limits.between(self.common());
        for frame in std::mem::take(&mut self.held) {
            match encode::check_frame(&frame, &limits) {
                Ok(()) => self.outgoing.push(frame),
                Err(status) => {
                    let id = SlotId::from_raw(frame.token);
                    self.outgoing.recycle(frame);
                    self.finish(id, Err(status));
                }
            }
        }
    }

    /// Notes that a call is answered, whose caller gets the answer from [`Answers`].
    #[inline]
    pub(crate) fn note_answer(&mut self, id: SlotId) {
        self.deadlines.remove(id.slot);
        self.outstanding -= 1;
    }

    #[inline]
    fn note(&mut self, id: SlotId, token: u64, result: Result<Response, Status>) {
        self.deadlines.remove(id.slot);
        self.outstanding -= 1;
        self.finished.push_back(Finished {
            call: CallId(id),
            token,
            result,
        });
    }
}

/// The time left until a deadline as a request says it.
fn left_ms(deadline: Time, now: Time) -> i32 {
    let ms = deadline.since(now).as_nanos().div_ceil(1_000_000).max(1);
    i32::try_from(ms).unwrap_or(i32::MAX)
}

fn deadline_exceeded() -> Status {
    Status::new(
        Code::DeadlineExceeded,
        "the call had no result when its deadline was over",
    )
    .because(Reason::Deadline)
}

/// Mark of frames that belong to no call, or to many.
pub(crate) const NO_CALL: u64 = u64::MAX;

/// Longest key of a request that shares a frame. What a frame holds before it leaves it room for
/// such a one.
const SHARED_KEY_BYTES_MAX: usize = 32 << 10;
