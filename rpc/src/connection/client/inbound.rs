//! How a client reads responses.

use std::mem;

use grpcxx_memory::Buffer;
use grpcxx_transport::{Landing, Next, Progress, SlotId, Time};

use super::messages::{Failure, reason_lost};
use crate::connection::body::Body;
use crate::connection::calls::Expected;
use crate::connection::client::ClientConnection;
use crate::connection::cursor::Cursor;
use crate::connection::reader::{self, FrameReader, Part, Side, Whole};
use crate::connection::records::Records;
use crate::connection::{Landings, PeerViolation};
use crate::extensions::bundles::client::small_tensor;
use crate::extensions::streams::table::End;
use crate::extensions::streams::wire::Form;
use crate::wire::{
    BUNDLE_TAG, Features, HEADER_BYTES, RECORD_BYTES, ResponseHeader, STREAM_TAG, ShapeForms,
    decode_record,
};
use crate::{Code, Reason, Response, Status, Text};

/// What bytes of a response are that are wanted as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResponsePart {
    /// The body of a successful response.
    Message { id: SlotId },
    /// The text of a failed one, and its details.
    Failure { id: SlotId, failure: Failure },
    /// The names of fetched tensors.
    Names { id: SlotId },
    /// What the tensors of a response are, all of them before their data.
    Heads { id: SlotId },
    /// Head and message of a unary answer.
    Unary { id: SlotId, head_bytes: usize },
    /// What goes on in streams.
    Stream { form: Form },
    /// Answers that share a frame.
    Answers,
}

/// A response behind which the link has shown more before its payload was there.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most are tensors, and a box would be allocated for each"
)]
pub(crate) enum Aside {
    Tensors {
        id: SlotId,
        body: Body,
    },
    /// Complete, and told once those before it are.
    Complete {
        id: SlotId,
        result: Result<Response, Status>,
    },
}

impl ClientConnection {
    /// Takes bytes that the link shows, and says how many are done with and what the link shall do
    /// next.
    ///
    /// # Errors
    /// The peer broke the protocol; close the link.
    pub fn handle_received(
        &mut self,
        now: Time,
        bytes: &[u8],
        landings: &mut dyn Landings,
    ) -> Result<Progress, PeerViolation> {
        let progress = reader::received(self, now, bytes, landings)?;
        self.proving.check()?;
        Ok(progress)
    }

    /// Takes memory that the link has filled, and says what the link shall do next.
    ///
    /// # Errors
    /// The peer broke the protocol; close the link.
    pub fn handle_landed(
        &mut self,
        now: Time,
        landing: Landing,
        landings: &mut dyn Landings,
    ) -> Result<Next, PeerViolation> {
        let next = reader::landed(self, now, landing, landings)?;
        self.proving.check()?;
        Ok(next)
    }

    /// What the link shall do first.
    pub fn first_order(&self) -> Next {
        reader::HEADER_ORDER
    }

    /// Frames of the peer that have begun.
    pub fn frames(&self) -> u64 {
        self.reader.frames()
    }

    /// Whether a frame has begun that is not complete.
    pub fn is_within_frame(&self) -> bool {
        self.reader.is_within_frame()
    }
}

impl Side for ClientConnection {
    type Header = ResponseHeader;
    type Whole = ResponsePart;
    type Tensors = SlotId;

    #[inline]
    fn reader(&mut self) -> &mut FrameReader<Self> {
        &mut self.reader
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<(ResponseHeader, u64), PeerViolation> {
        let place = "response header";
        let header = ResponseHeader::decode(bytes);
        let header = header.map_err(|cause| PeerViolation::WrongId { place, cause })?;
        Ok((header, header.tag))
    }

    fn takes_chunks(&self) -> bool {
        self.announced.contains(Features::CHUNKS)
    }

    /// A response has its place in the call that waits for it.
    fn may_begin(&self) -> bool {
        true
    }

    fn must_begin(&mut self, _: &[u8; HEADER_BYTES]) -> bool {
        true
    }

    fn begin(
        &mut self,
        _now: Time,
        header: ResponseHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let id = SlotId::from_raw(header.tag);
        let heads_first = self.has_heads_first(&header);
        let call = self.calls.find_mut(id);
        let Some(call) = call.filter(|call| call.state.awaits_response()) else {
            if header.tag == BUNDLE_TAG && self.takes(Features::BUNDLES) {
                return self.begin_bundle(header, cursor, landings);
            }
            if header.tag == STREAM_TAG && self.has(Features::STREAMS) {
                return self.begin_stream_frame(header, cursor, landings);
            }
            return Err(PeerViolation::UnknownTag { found: header.tag });
        };
        call.state.answer();
        if header.status != 0 {
            return self.begin_error(id, header, cursor, landings);
        }
        match call.expected {
            Expected::Announcement | Expected::Message => {
                self.begin_message(id, header, cursor, landings)
            }
            Expected::Tensors { .. } if heads_first => {
                self.begin_heads(id, header, cursor, landings)
            }
            Expected::Tensors { count } => {
                let (token, has_ended) = (call.token, call.state.has_ended());
                if count == 1
                    && !has_ended
                    && let Some(result) = self.whole_tensor(token, cursor, landings)
                {
                    self.complete(id, result);
                    return Ok(None);
                }
                let records = Records::new(token, count, 0).beside(self.reader.beside_bytes());
                self.reader.part = Part::Tensors {
                    of: id,
                    body: Body::Records(records.going_on().with_shapes(self.shapes_taken())),
                };
                Ok(None)
            }
            Expected::Fetched { .. } => self.begin_fetched(id, header, cursor, landings),
            Expected::Unary | Expected::Stream { .. } => {
                self.begin_unary(id, header, cursor, landings)
            }
        }
    }

    fn take_whole(
        &mut self,
        whole: Whole<ResponsePart>,
        bytes: Buffer,
        _cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        match whole.what {
            ResponsePart::Message { id } => self.finish_message(id, bytes),
            ResponsePart::Failure { id, failure } => {
                self.complete(id, Err(failure.status(&bytes)));
            }
            ResponsePart::Names { id } => self.names_landed(id, bytes)?,
            ResponsePart::Heads { id } => self.heads_landed(id, whole.behind_bytes, &bytes)?,
            ResponsePart::Unary { id, head_bytes } => self.unary_landed(id, head_bytes, bytes),
            ResponsePart::Stream { form } => self.streams.take_frame(End::Client, form, bytes)?,
            ResponsePart::Answers => self.unbundle(&bytes, landings)?,
        }
        Ok(None)
    }

    fn drop_whole(&mut self, what: ResponsePart, status: Status) {
        let (id, status) = match what {
            ResponsePart::Message { id }
            | ResponsePart::Names { id }
            | ResponsePart::Heads { id }
            | ResponsePart::Unary { id, .. } => (id, status),
            ResponsePart::Failure { id, failure } => (id, reason_lost(failure.number, &status)),
            ResponsePart::Stream { .. } | ResponsePart::Answers => {
                unreachable!("frames of many calls have all of their memory")
            }
        };
        self.complete(id, Err(status));
    }

    fn drop_unwanted(&mut self) {
        if let Part::Tensors { of, body } = &mut self.reader.part
            && self
                .calls
                .find(*of)
                .is_none_or(|call| call.state.has_ended())
        {
            body.fail(gone());
        }
    }

    fn take_tensors(&mut self, id: SlotId, body: Body) {
        let result = self.response(id, body);
        self.complete(id, result);
    }

    fn set_aside(&mut self, id: SlotId, body: Body) {
        self.aside.push_back(Aside::Tensors { id, body });
    }

    fn take_aside(&mut self, landing: Landing) -> Option<Landing> {
        let Some(Aside::Tensors { body, .. }) = self.aside.front_mut() else {
            return Some(landing);
        };
        body.landed(landing.into_shared());
        self.finish_aside();
        None
    }
}

impl ClientConnection {
    /// Ends the oldest responses that were set aside and whose payload has landed.
    fn finish_aside(&mut self) {
        while let Some(front) = self.aside.pop_front() {
            match front {
                Aside::Tensors { id, body } if body.is_complete() => {
                    let result = self.response(id, body);
                    self.finish(id, result);
                }
                Aside::Complete { id, result } => self.finish(id, result),
                Aside::Tensors { .. } => return self.aside.push_front(front),
            }
        }
    }

    /// Ends the call of a response that is complete, after those before it.
    pub(crate) fn complete(&mut self, id: SlotId, result: Result<Response, Status>) {
        if self.aside.is_empty() {
            self.finish(id, result);
        } else {
            self.aside.push_back(Aside::Complete { id, result });
        }
    }

    /// Takes a response of one tensor, if all of it is there and is as it should be.
    #[inline]
    fn whole_tensor(
        &self,
        token: u64,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Option<Result<Response, Status>> {
        let limits = &self.reader.limits;
        let bytes = cursor.peek_rest();
        let (head, data) = bytes.split_first_chunk::<RECORD_BYTES>()?;
        let meta = decode_record(head, ShapeForms::Star).ok()?;
        let len = usize::try_from(meta.data_bytes).ok()?;
        let data = data.get(..len)?;
        let frame_bytes = (HEADER_BYTES + RECORD_BYTES + len) as u64;
        if len == 0 || frame_bytes > limits.frame_bytes {
            return None;
        }
        cursor.slice(RECORD_BYTES + len);
        Some(small_tensor(token, &meta, data, limits, landings))
    }

    fn response(&mut self, id: SlotId, body: Body) -> Result<Response, Status> {
        let (tensors, indexes) = body.into_result(|index| self.name_of(id, index))?;
        let call = self
            .calls
            .find_mut(id)
            .expect("a call keeps its slot while its response comes");
        let Expected::Fetched { names } = &mut call.expected else {
            return Ok(Response::Tensors(tensors));
        };
        let mut sorted: Vec<_> = indexes.into_iter().zip(tensors).collect();
        sorted.sort_unstable_by_key(|&(index, _)| index);
        let tensors = sorted.into_iter().map(|(_, tensor)| tensor);
        Ok(Response::Fetched(
            mem::take(names).into_iter().zip(tensors).collect(),
        ))
    }

    /// How a call asked for the tensor with this index.
    fn name_of(&self, id: SlotId, index: usize) -> Option<Text> {
        match &self.calls.find(id)?.expected {
            Expected::Fetched { names } => names.get(index).cloned(),
            Expected::Tensors { .. } => self.asked.key(id, index),
            Expected::Announcement
            | Expected::Message
            | Expected::Unary
            | Expected::Stream { .. } => None,
        }
    }

    pub(crate) fn has_ended(&self, id: SlotId) -> bool {
        self.calls
            .find(id)
            .is_none_or(|call| call.state.has_ended())
    }

    pub(crate) fn checked_payload(
        &self,
        header: &ResponseHeader,
        place: &'static str,
    ) -> Result<u64, PeerViolation> {
        let allowed_max = self.reader.limits.payload_bytes();
        PeerViolation::check_length(place, header.payload_bytes, allowed_max)?;
        Ok(header.payload_bytes)
    }
}

/// Why payload is dropped; nobody sees it, since the call has ended before.
pub(crate) fn gone() -> Status {
    Status::new(Code::Cancelled, "the call has ended").because(Reason::Cancelled)
}
