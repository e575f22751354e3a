//! How a server reads requests.

use std::time::Duration;

use grpcxx_memory::Buffer;
use grpcxx_transport::{Landing, Next, Progress, SlotId, Time};
use hashbrown::hash_map::Entry;
use smallvec::SmallVec;

use super::answers::Expected;
use super::messages::refusal;
use crate::connection::body::Body;
use crate::connection::cursor::Cursor;
use crate::connection::reader::{self, ArrivingBytes, FrameReader, Part, Side, Whole};
use crate::connection::server::{Incoming, RequestId, Served, ServerConnection, State};
use crate::connection::{Landings, PeerViolation};
use crate::extensions::streams::table::End;
use crate::extensions::streams::wire::Form;
use crate::wire::{
    BUNDLE_METHOD, CANCEL_METHOD, Features, HEADER_BYTES, RequestHeader, STREAM_METHOD,
    STREAM_OPEN_METHOD, UNARY_METHOD,
};
use crate::{Code, GraphCall, KeyList, Method, Names, Reason, Request, Status};

/// What bytes of a request are that are wanted as a whole.
#[derive(Debug)]
pub(crate) enum RequestPart {
    /// One protobuf message.
    Message { arriving: Arriving, method: Method },
    /// The step of a request for the tensors of a list that is kept.
    Step { arriving: Arriving, keys: KeyList },
    /// Head and message of a call by path.
    Unary {
        arriving: Arriving,
        head_bytes: usize,
    },
    /// The head of a stream, and its number.
    Stream {
        arriving: Arriving,
        head_bytes: usize,
    },
    /// What goes on in streams.
    OnStream { form: Form },
    /// What precedes the feeds of a graph call.
    Metadata { arriving: Arriving },
    /// Requests that share a frame, whose header was read at this time.
    Requests { received: Time },
}

/// A graph call whose feeds are on their way in.
#[derive(Debug)]
pub(crate) struct Feeds {
    pub(crate) arriving: Arriving,
    pub(crate) call: Box<GraphCall>,
    pub(crate) names: Names,
}

/// A request whose payload is on its way in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arriving {
    pub(crate) id: SlotId,
    deadline: Option<Time>,
    /// The number under which its keys shall be kept; 0 is none.
    keep: i32,
}

impl ServerConnection {
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
        reader::received(self, now, bytes, landings)
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
        reader::landed(self, now, landing, landings)
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

impl Side for ServerConnection {
    type Header = RequestHeader;
    type Whole = RequestPart;
    type Tensors = Feeds;

    #[inline]
    fn reader(&mut self) -> &mut FrameReader<Self> {
        &mut self.reader
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<(RequestHeader, u64), PeerViolation> {
        let place = "request header";
        let header = RequestHeader::decode(bytes);
        let header = header.map_err(|cause| PeerViolation::WrongId { place, cause })?;
        Ok((header, header.tag))
    }

    fn takes_chunks(&self) -> bool {
        self.has(Features::CHUNKS)
    }

    fn may_begin(&self) -> bool {
        !self.is_full()
    }

    /// Streams go on, and what is cancelled makes room.
    fn must_begin(&mut self, bytes: &[u8; HEADER_BYTES]) -> bool {
        let is_awaited = match RequestHeader::decode(bytes) {
            Ok(header) if header.method == CANCEL_METHOD => self.has(Features::CANCEL),
            Ok(header) if header.method == STREAM_METHOD => self.has(Features::STREAMS),
            // What is wrong with it is said when it is read.
            Ok(_) | Err(_) => false,
        };
        self.is_paused = !is_awaited;
        is_awaited
    }

    fn begin(
        &mut self,
        now: Time,
        header: RequestHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let allowed_max = self.reader.limits.payload_bytes();
        PeerViolation::check_length(
            "the payload of a request",
            header.payload_bytes,
            allowed_max,
        )?;
        if header.method == CANCEL_METHOD && self.has(Features::CANCEL) {
            return self.cancelled_by_peer(header);
        }
        if header.method == BUNDLE_METHOD && self.has(Features::BUNDLES) {
            return self.begin_bundle(now, &header, cursor, landings);
        }
        if header.method == STREAM_METHOD && self.has(Features::STREAMS) {
            return self.begin_stream_frame(&header, cursor, landings);
        }
        let mut arriving = self.admit(now, &header)?;
        let id = arriving.id;
        if header.method == UNARY_METHOD && self.has(Features::SERVICES) {
            return self.begin_unary(arriving, &header, cursor, landings);
        }
        if header.method == STREAM_OPEN_METHOD && self.has(Features::STREAMS) {
            return self.begin_stream(arriving, &header, cursor, landings);
        }
        let method = Method::from_number(header.method);
        if let Some(right) = method.and_then(|method| self.gate.missing_for(method)) {
            self.refuse(id, right.missing());
            return Ok(cursor.skip(header.payload_bytes, HEADER_BYTES));
        }
        if header.metadata_bytes != 0
            && header.method == Method::FuseRecvTensor.number()
            && self.has(Features::KEY_LISTS)
        {
            if header.metadata_bytes < 0 {
                return self.begin_listed(arriving, &header, cursor, landings);
            }
            self.holding.check_keys()?;
            arriving.keep = header.metadata_bytes;
        }
        match method {
            Some(Method::StarRunGraph) => self.begin_graph(arriving, header, cursor, landings),
            Some(method) => match refusal(method) {
                Some(text) => {
                    self.refuse(id, Status::new(Code::Unimplemented, text));
                    Ok(cursor.skip(header.payload_bytes, HEADER_BYTES))
                }
                None => self.begin_message(arriving, method, header, cursor, landings),
            },
            None => {
                let text = format!("method {} is not part of star", header.method);
                self.refuse(id, Status::new(Code::Unimplemented, text));
                Ok(cursor.skip(header.payload_bytes, HEADER_BYTES))
            }
        }
    }

    fn take_whole(
        &mut self,
        whole: Whole<RequestPart>,
        bytes: Buffer,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        match whole.what {
            RequestPart::Message { arriving, method } => {
                self.message_landed(arriving, method, bytes);
            }
            RequestPart::Step { arriving, keys } => self.step_landed(arriving, keys, &bytes),
            RequestPart::Unary {
                arriving,
                head_bytes,
            } => self.unary_landed(arriving, head_bytes, bytes),
            RequestPart::Stream {
                arriving,
                head_bytes,
            } => self.stream_begun(arriving, head_bytes, bytes)?,
            RequestPart::OnStream { form } => self.streams.take_frame(End::Server, form, bytes)?,
            RequestPart::Metadata { arriving } => {
                if let Err(malformed) = self.metadata_landed(arriving, &bytes) {
                    self.refuse(arriving.id, malformed.into());
                    return Ok(cursor.skip(whole.behind_bytes, HEADER_BYTES));
                }
            }
            RequestPart::Requests { received } => self.unbundle(received, &bytes, landings)?,
        }
        Ok(None)
    }

    fn drop_whole(&mut self, what: RequestPart, status: Status) {
        match what {
            RequestPart::Message { arriving, .. }
            | RequestPart::Step { arriving, .. }
            | RequestPart::Unary { arriving, .. }
            | RequestPart::Metadata { arriving } => self.refuse(arriving.id, status),
            RequestPart::Stream { .. }
            | RequestPart::OnStream { .. }
            | RequestPart::Requests { .. } => {
                unreachable!("these frames have all of their memory")
            }
        }
    }

    fn drop_unwanted(&mut self) {
        if let Part::Tensors { of, body } = &mut self.reader.part {
            let served = self.served.find(of.arriving.id);
            if served.is_none_or(|served| served.state != State::Arriving) {
                let text = "the request has been answered";
                body.fail(Status::new(Code::Cancelled, text));
            }
        }
    }

    fn take_tensors(&mut self, feeds: Feeds, body: Body) {
        self.feeds_landed(feeds, body);
    }

    /// The link shows nothing behind feeds before they are there.
    fn set_aside(&mut self, _: Feeds, _: Body) {
        unreachable!("no landing of a request is one that the link goes on behind");
    }

    fn take_aside(&mut self, landing: Landing) -> Option<Landing> {
        Some(landing)
    }

    #[inline]
    fn note_arriving(&mut self, bytes: u64) {
        self.holding.note_arriving(bytes);
    }

    #[inline]
    fn check_arriving(
        &self,
        wanted: ArrivingBytes,
        landings: &mut dyn Landings,
    ) -> Result<(), Status> {
        self.holding.check_arriving(wanted, || landings.room())
    }
}

impl ServerConnection {
    fn cancelled_by_peer(&mut self, header: RequestHeader) -> Result<Option<Next>, PeerViolation> {
        if header.payload_bytes != 0 {
            return Err(PeerViolation::Length {
                place: "the payload of a cancel",
                found: header.payload_bytes.into(),
                allowed_max: 0,
            });
        }
        // An unknown tag is one whose answer has crossed the cancel.
        if let Some(&id) = self.tags.get(&header.tag) {
            self.refuse(
                id,
                Status::new(Code::Cancelled, "the client gave the call up")
                    .because(Reason::Cancelled),
            );
        }
        Ok(None)
    }

    /// Gives a request its slot.
    pub(crate) fn admit(
        &mut self,
        now: Time,
        header: &RequestHeader,
    ) -> Result<Arriving, PeerViolation> {
        let Entry::Vacant(tag) = self.tags.entry(header.tag) else {
            return Err(PeerViolation::DuplicateTag { found: header.tag });
        };
        let id = self.served.insert_with(|| Served {
            tag: header.tag,
            expected: Expected::Message { announce: false },
            state: State::Arriving,
            unsent_bytes: 0,
        });
        tag.insert(id);
        let mut deadline = None;
        if self.has(Features::DEADLINE)
            && let Ok(timeout_ms @ 1..) = u64::try_from(header.timeout_ms)
        {
            let at = now + Duration::from_millis(timeout_ms);
            self.deadlines.insert(id.slot, at);
            deadline = Some(at);
        }
        Ok(Arriving {
            id,
            deadline,
            keep: 0,
        })
    }

    /// Queues a complete request for the service, unless it has been answered meanwhile.
    #[inline]
    pub(crate) fn deliver(&mut self, arriving: Arriving, request: Request, expected: Expected) {
        if let Request::FuseRecvTensor { keys, .. } = &request
            && arriving.keep != 0
            && !self.keep_list(arriving.keep, keys)
        {
            let text = format!("the keys cannot be kept as list {}", arriving.keep);
            return self.refuse(arriving.id, Status::new(Code::InvalidArgument, text));
        }
        if let Some(
            served @ Served {
                state: State::Arriving,
                ..
            },
        ) = self.served.find_mut(arriving.id)
        {
            served.state = State::Ready;
            served.expected = expected;
            self.ready.push_back(Incoming {
                id: RequestId(arriving.id),
                request,
                deadline: arriving.deadline,
            });
        }
    }
}

#[inline]
pub(crate) fn tensors_of(request: &Request) -> Expected {
    Expected::Tensors {
        request: request.clone(),
        delivering: SmallVec::new(),
    }
}
