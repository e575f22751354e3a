//! How a server takes streams in, and what it sends and takes on them.

use grpcxx_memory::Buffer;
use grpcxx_transport::{Frame, Next, SlotId};

use super::stream::{StreamData, StreamNews};
use super::table::{Ending, StreamCount};
use super::wire::{Credit, Form, NUMBER_BYTES, STREAM_TAG};
use crate::connection::cursor::Cursor;
use crate::connection::landings::message_in_any_case;
use crate::connection::reader::{Whole, read_into};
use crate::connection::server::answers::Expected;
use crate::connection::server::inbound::{Arriving, RequestPart};
use crate::connection::server::{RequestId, ServerConnection, State};
use crate::connection::{Landings, PeerViolation};
use crate::extensions::services::wire::HEAD_BYTES_MAX;
use crate::wire::{HEADER_BYTES, RequestHeader, ResponseHeader};
use crate::{Code, Envelope, Metadata, Reason, Request, Response, Right, Status};

impl ServerConnection {
    /// Sends messages on a stream, as far as the peer takes them now; the rest waits here, and the
    /// answer of the request behind it. Those of a request that has its answer are dropped.
    pub fn send_on_stream(&mut self, request: RequestId, data: StreamData) {
        if let Some(number) = self.open_stream(request) {
            self.streams.send(number, data);
        }
    }

    /// Says what comes before all messages; to be said once.
    pub fn send_head(&mut self, request: RequestId, metadata: &Metadata) {
        if let Some(number) = self.open_stream(request) {
            self.streams.send_head(number, metadata);
        }
    }

    /// Lets the peer send so much more on a stream than it was allowed before.
    pub fn give_on_stream(&mut self, request: RequestId, credit: Credit) {
        if let Some(number) = self.open_stream(request) {
            self.streams.give(number, credit);
        }
    }

    /// The streams that have not ended.
    pub fn stream_count(&self) -> StreamCount {
        self.streams.count()
    }

    /// Whether [`ServerConnection::poll_stream`] has something.
    #[inline]
    pub fn has_stream_news(&self) -> bool {
        self.streams.has_news() && self.ready.is_empty()
    }

    /// Whether all that was to be sent on a stream has left.
    pub fn is_stream_drained(&self, request: RequestId) -> bool {
        (self.open_stream(request)).is_none_or(|number| self.streams.is_drained(number))
    }

    /// Whether an answer waits for messages before it.
    pub fn has_endings(&self) -> bool {
        !self.endings.is_empty()
    }

    /// What happened next on a stream. What belongs to a request comes when that was polled.
    pub fn poll_stream(&mut self) -> Option<StreamNews> {
        if !self.ready.is_empty() {
            return None;
        }
        self.streams.poll_news()
    }

    /// The stream of a request that has no answer.
    fn open_stream(&self, request: RequestId) -> Option<u32> {
        let served = self.served.find(request.0)?;
        match (served.state, &served.expected) {
            (State::HandedOut, Expected::Stream { number }) => Some(*number),
            _ => None,
        }
    }

    /// Reads a request that opens a stream, also if it is to be refused: others may name it.
    pub(crate) fn begin_stream(
        &mut self,
        arriving: Arriving,
        header: &RequestHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let place = "the head of a stream";
        let head_bytes =
            PeerViolation::checked_length(place, header.metadata_bytes, HEAD_BYTES_MAX as u64)?;
        let len = head_bytes + NUMBER_BYTES;
        if header.payload_bytes != len as u64 {
            return Err(PeerViolation::Length {
                place: "the request that opens a stream",
                found: header.payload_bytes.into(),
                allowed_max: len as u64,
            });
        }
        let whole = Whole {
            what: RequestPart::Stream {
                arriving,
                head_bytes,
            },
            len_bytes: len,
            behind_bytes: 0,
        };
        let memory = message_in_any_case(landings, len);
        read_into(self, whole, Ok(memory), cursor, landings)
    }

    pub(crate) fn stream_begun(
        &mut self,
        arriving: Arriving,
        head_bytes: usize,
        bytes: Buffer,
    ) -> Result<(), PeerViolation> {
        let bytes = bytes.into_private();
        let mut number = [0; NUMBER_BYTES];
        number.copy_from_slice(&bytes[head_bytes..]);
        let number = u32::from_le_bytes(number);
        self.streams.use_number(number)?;
        let limit = self.reader.limits.streams;
        if let Some(right) = self.gate.missing(Right::Call) {
            self.refuse(arriving.id, right.missing());
        } else if self.streams.len() >= limit {
            let text = format!("{limit} streams are open on this connection; end some");
            let status = Status::new(Code::ResourceExhausted, text);
            self.refuse(arriving.id, status.because(Reason::Limit));
        } else {
            match Envelope::decode_request(head_bytes, bytes.slice(..head_bytes)) {
                Ok(envelope) => {
                    let wanted = (self.served.find(arriving.id))
                        .is_some_and(|served| served.state == State::Arriving);
                    if wanted {
                        let token = RequestId(arriving.id).token();
                        self.streams.insert(number, token, arriving.id);
                        let request = Request::Stream(Box::new(envelope));
                        self.deliver(arriving, request, Expected::Stream { number });
                    }
                }
                Err(malformed) => self.refuse(arriving.id, Status::from(malformed)),
            }
        }
        Ok(())
    }

    /// A frame of streams.
    pub(crate) fn stream_frame(&mut self) -> Option<Box<Frame>> {
        let mut frame = self.outgoing.empty_frame();
        let header = |form: Form, payload_bytes| {
            let (status, names_bytes) = form.encode();
            ResponseHeader {
                tag: STREAM_TAG,
                status,
                names_bytes,
                payload_bytes,
            }
            .encode()
        };
        let is_filled = self.streams.fill(&mut frame, |_| true, header);
        self.answer_drained();
        if is_filled {
            return Some(frame);
        }
        self.outgoing.recycle(frame);
        None
    }

    /// Begins a frame of the client's about streams.
    pub(crate) fn begin_stream_frame(
        &mut self,
        header: &RequestHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let fields = (header.timeout_ms, header.metadata_bytes);
        let payload_bytes = header.payload_bytes;
        let Some((form, len)) = self.streams.begin_frame(fields, payload_bytes)? else {
            return Ok(cursor.skip(payload_bytes, HEADER_BYTES));
        };
        let whole = Whole {
            what: RequestPart::OnStream { form },
            len_bytes: len,
            behind_bytes: 0,
        };
        let memory = message_in_any_case(landings, len);
        read_into(self, whole, Ok(memory), cursor, landings)
    }

    /// Keeps the answer of a stream of which messages have not left. `None` says that it waits.
    pub(crate) fn behind_messages(
        &mut self,
        request: RequestId,
        result: Result<Response, Status>,
    ) -> Option<Result<Response, Status>> {
        let number = self
            .open_stream(request)
            .filter(|&number| !self.streams.is_drained(number));
        let (Some(number), Some(served)) = (number, self.served.find_mut(request.0)) else {
            return Some(result);
        };
        served.state = State::Ending;
        let id = request.0;
        self.endings.push(Ending { id, number, result });
        None
    }

    /// Answers the streams whose last message is on its way.
    fn answer_drained(&mut self) {
        while let Some(place) = self
            .endings
            .iter()
            .position(|ending| self.streams.is_drained(ending.number))
        {
            let Ending { id, result, .. } = self.endings.swap_remove(place);
            self.respond(id, result, &mut |_| None);
        }
    }

    /// Forgets a stream that ends before its messages have left.
    pub(crate) fn forget_stream(&mut self, id: SlotId, number: u32) {
        self.streams.remove(number);
        self.endings.retain(|ending| ending.id != id);
    }
}
