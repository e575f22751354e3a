//! How a client opens streams, and what it sends and takes on them.

use grpcxx_transport::{Frame, Next, SlotId};

use super::stream::{StreamData, StreamNews};
use super::table::StreamCount;
use super::wire::{Credit, Form, STREAM_METHOD};
use crate::connection::calls::{Call, Expected};
use crate::connection::client::ClientConnection;
use crate::connection::client::inbound::ResponsePart;
use crate::connection::cursor::Cursor;
use crate::connection::landings::message_in_any_case;
use crate::connection::reader::{Whole, read_into};
use crate::connection::{CallId, Landings, PeerViolation, encode};
use crate::extensions::services::client::Waiting;
use crate::wire::{Features, HEADER_BYTES, RequestHeader, ResponseHeader};
use crate::{Code, Envelope, Reason, Request, Status};

impl ClientConnection {
    /// Sends messages on a stream, as far as the peer takes them now; the rest waits here. Those of
    /// a call that has ended, or has sent its last message, are dropped.
    pub fn send_on_stream(&mut self, call: CallId, data: StreamData) {
        if let Some(number) = self.stream_of(call.0) {
            self.streams.send(number, data);
        }
    }

    /// Says that no message follows.
    pub fn end_stream(&mut self, call: CallId) {
        if let Some(number) = self.stream_of(call.0) {
            self.streams.end(number);
        }
    }

    /// Lets the peer send so much more on a stream than it was allowed before.
    pub fn give_on_stream(&mut self, call: CallId, credit: Credit) {
        if let Some(number) = self.stream_of(call.0) {
            self.streams.give(number, credit);
        }
    }

    /// The streams that have not ended.
    pub fn stream_count(&self) -> StreamCount {
        self.streams.count()
    }

    /// Whether [`ClientConnection::poll_stream`] has something.
    #[inline]
    pub fn has_stream_news(&self) -> bool {
        self.streams.has_news()
    }

    /// Whether all that was to be sent on a stream has left.
    pub fn is_stream_drained(&self, call: CallId) -> bool {
        (self.stream_of(call.0)).is_none_or(|number| self.streams.is_drained(number))
    }

    /// What happened next on a stream. What belongs to a call comes before its result.
    pub fn poll_stream(&mut self) -> Option<StreamNews> {
        self.streams.poll_news()
    }

    /// Opens a stream, or keeps its request until it is known what the peer takes.
    pub(crate) fn begin_stream(&mut self, id: SlotId, timeout_ms: i32, envelope: Box<Envelope>) {
        let may_know = self.peer.is_none() && self.announced.contains(Features::STREAMS);
        if !may_know && !self.has(Features::STREAMS) {
            return self.finish(id, Err(self.no_streams(envelope.path())));
        }
        let limit = self.reader.limits.streams;
        if self.streams.len() >= limit {
            let text = format!("{limit} streams are open on this connection; end some");
            let status = Status::new(Code::ResourceExhausted, text);
            return self.finish(id, Err(status.because(Reason::TooManyCalls)));
        }
        let token = self.calls.find(id).map_or(0, |call| call.token);
        let number = self.streams.open_next(token, id);
        self.expect(id, Expected::Stream { number });
        if may_know {
            let request = Request::Stream(envelope);
            return self.waiting.push(Waiting::new(id, timeout_ms, request));
        }
        self.queue_stream(id, timeout_ms, &envelope, number);
    }

    /// Opens a stream whose request has waited, or ends its call.
    pub(crate) fn release_stream(&mut self, id: SlotId, timeout_ms: i32, envelope: &Envelope) {
        match self.stream_of(id) {
            Some(number) if self.has(Features::STREAMS) => {
                self.queue_stream(id, timeout_ms, envelope, number);
            }
            _ => self.finish(id, Err(self.no_streams(envelope.path()))),
        }
    }

    /// Why a stream cannot be opened towards this peer.
    fn no_streams(&self, path: &str) -> Status {
        self.lacking(&format!("{path} streams"), "streams", unknown_to_peer(path))
    }

    /// Queues the request that opens a stream.
    fn queue_stream(&mut self, id: SlotId, timeout_ms: i32, envelope: &Envelope, number: u32) {
        let limits = self.reader.limits.between(self.common());
        let mut frame = self.outgoing.empty_frame();
        let (tag, frame_mut) = (id.raw(), &mut frame);
        match encode::open_stream(frame_mut, tag, timeout_ms, envelope, number, &limits) {
            Ok(()) => {
                frame.token = tag;
                self.outgoing.push(frame);
            }
            Err(status) => {
                self.outgoing.recycle(frame);
                self.finish(id, Err(status));
            }
        }
    }

    fn stream_of(&self, id: SlotId) -> Option<u32> {
        match self.calls.find(id)?.expected {
            Expected::Stream { number } => Some(number),
            _ => None,
        }
    }

    /// A frame of streams.
    pub(crate) fn stream_frame(&mut self) -> Option<Box<Frame>> {
        let mut frame = self.outgoing.empty_frame();
        let calls = &self.calls;
        let is_open = |id| {
            calls
                .find(id)
                .is_some_and(|call: &Call| call.state.is_sent())
        };
        let header = |form: Form, payload_bytes| {
            let (timeout_ms, metadata_bytes) = form.encode();
            RequestHeader {
                method: STREAM_METHOD,
                tag: 0,
                timeout_ms,
                metadata_bytes,
                payload_bytes,
            }
            .encode()
        };
        if self.streams.fill(&mut frame, is_open, header) {
            return Some(frame);
        }
        self.outgoing.recycle(frame);
        None
    }

    /// Begins a frame of the server's about streams.
    pub(crate) fn begin_stream_frame(
        &mut self,
        header: ResponseHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let fields = (header.status, header.names_bytes);
        let payload_bytes = header.payload_bytes;
        let Some((form, len)) = self.streams.begin_frame(fields, payload_bytes)? else {
            return Ok(cursor.skip(payload_bytes, HEADER_BYTES));
        };
        let whole = Whole {
            what: ResponsePart::Stream { form },
            len_bytes: len,
            behind_bytes: 0,
        };
        let memory = message_in_any_case(landings, len);
        read_into(self, whole, Ok(memory), cursor, landings)
    }
}

/// Why a stream cannot be opened towards a peer that does not know any.
fn unknown_to_peer(path: &str) -> Status {
    let text = format!(
        "{path} streams, and the peer does not know streams; call it over gRPC, or let it run this \
         version of grpcxx"
    );
    Status::new(Code::Unimplemented, text)
}
