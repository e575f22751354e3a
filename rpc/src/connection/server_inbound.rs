use std::time::Duration;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_transport::{Landing, Next, Progress, Time};
use hashbrown::hash_map::Entry;
use smallvec::SmallVec;

use super::chunks;
use super::cursor::{Cursor, Filled};
use super::encode::unsupported;
use super::landings::checked;
use super::records::{Records, message_too_long};
use super::server::{Incoming, RequestId, Served, ServerConnection, State};
use super::server_answers::Expected;
use super::slots::SlotId;
use super::{Landings, PeerViolation};
use crate::wire::{
    Announcement, BUNDLE_METHOD, CANCEL_METHOD, Features, HEADER_BYTES, Malformed, PlainReceive,
    RequestHeader, decode_graph_metadata, decode_receive,
};
use crate::{Code, GraphCall, KeyList, Method, Request, Status, Text};

/// What the next bytes from the peer are.
#[derive(Debug, Default)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one in each connection, and a box would be allocated for each frame"
)]
pub(super) enum Inbound {
    #[default]
    Header,
    /// One protobuf message.
    Message { arriving: Arriving, method: Method },
    /// The step of a request for the tensors of a list that is kept.
    Listed { arriving: Arriving, keys: KeyList },
    /// What precedes the feeds of a graph call.
    Metadata {
        arriving: Arriving,
        /// What the header says of the length of the feeds.
        feeds_bytes: u64,
    },
    /// The feeds of a graph call.
    Feeds {
        arriving: Arriving,
        call: Box<GraphCall>,
        names: Vec<Text>,
        records: Records,
    },
    /// Requests that share a frame, once they have landed.
    Bundle {
        received: Time,
        requests: Option<Buffer>,
    },
}

/// A request whose payload is on its way in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arriving {
    pub(super) id: SlotId,
    deadline: Option<Time>,
    /// The number under which its keys shall be kept; 0 is none.
    keep: i32,
}

impl ServerConnection {
    /// Takes bytes that the link shows, and says how many are done with and what the link shall do next.
    ///
    /// # Errors
    /// The peer broke the protocol; close the link.
    pub fn handle_received(
        &mut self,
        now: Time,
        bytes: &[u8],
        landings: &mut dyn Landings,
    ) -> Result<Progress, PeerViolation> {
        let mut cursor = Cursor::new(bytes);
        let next = chunks::read(self, now, &mut cursor, landings)?;
        Ok(Progress {
            consumed_bytes: cursor.consumed_bytes(),
            next,
        })
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
        if !landing.is_full() {
            // The link died; that it is gone comes as an event of its own.
            return Ok(Next::Pause);
        }
        if self.chunks.is_inside() {
            return chunks::landed(self, now, landing, landings);
        }
        let cursor = &mut Cursor::new(&[]);
        match self.land(landing.into_shared(), cursor) {
            Some(next) => Ok(next),
            None => chunks::read(self, now, cursor, landings),
        }
    }
}

impl ServerConnection {
    pub(super) fn begin(
        &mut self,
        now: Time,
        header: RequestHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let allowed_max = self.limits.frame_bytes.saturating_sub(HEADER_BYTES as u64);
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
        let mut arriving = self.admit(now, &header)?;
        let id = arriving.id;
        if header.metadata_bytes != 0
            && header.method == Method::FuseRecvTensor.number()
            && self.has(Features::KEY_LISTS)
        {
            if header.metadata_bytes < 0 {
                return self.begin_listed(arriving, &header).map(|()| None);
            }
            arriving.keep = header.metadata_bytes;
        }
        match Method::from_number(header.method) {
            Some(Method::StarRunGraph) => self.begin_graph(arriving, header, cursor, landings),
            Some(method) => match refusal(method) {
                Some(text) => {
                    self.refuse(id, Status::new(Code::Unimplemented, text));
                    Ok(cursor.skip(header.payload_bytes, HEADER_BYTES))
                }
                None => Ok(self.begin_message(arriving, method, header, cursor, landings)),
            },
            None => {
                let text = format!("method {} is not part of star", header.method);
                self.refuse(id, Status::new(Code::Unimplemented, text));
                Ok(cursor.skip(header.payload_bytes, HEADER_BYTES))
            }
        }
    }

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
                Status::new(Code::Cancelled, "the client gave the call up"),
            );
        }
        Ok(None)
    }

    /// Gives a request its slot.
    pub(super) fn admit(
        &mut self,
        now: Time,
        header: &RequestHeader,
    ) -> Result<Arriving, PeerViolation> {
        let Entry::Vacant(tag) = self.tags.entry(header.tag) else {
            return Err(PeerViolation::DuplicateTag { found: header.tag });
        };
        let id = self.served.insert(Served {
            tag: header.tag,
            expected: Expected::Message { announce: false },
            state: State::Arriving,
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

    fn begin_message(
        &mut self,
        arriving: Arriving,
        method: Method,
        header: RequestHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Option<Next> {
        let len = header.payload_bytes;
        if len == 0 {
            self.message_landed(arriving, method, Buffer::new());
            return None;
        }
        let memory = if len > self.limits.message_bytes {
            Err(message_too_long(len, &self.limits))
        } else {
            if let Some(request) = self.known_receive(method, len as usize, cursor, landings) {
                let expected = tensors_of(&request);
                self.deliver(arriving, request, expected);
                return None;
            }
            checked(landings.message(len as usize), len)
        };
        match memory {
            Ok(buffer) => self.want(Inbound::Message { arriving, method }, buffer, cursor),
            Err(status) => {
                self.refuse(arriving.id, status);
                cursor.skip(len, HEADER_BYTES)
            }
        }
    }

    /// Takes a request for tensors whose keys are all known, if all of it is there.
    fn known_receive(
        &self,
        method: Method,
        len: usize,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Option<Request> {
        let keys_max = match method {
            Method::RecvTensor => 1,
            Method::FuseRecvTensor => self.limits.records,
            _ => return None,
        };
        let mut bytes = PlainReceive::read(cursor.peek(len)?)?;
        let step_id = bytes.step_id;
        let request = if method == Method::RecvTensor {
            let key = landings.known_key(bytes.next()?)?;
            Request::RecvTensor { step_id, key }
        } else {
            let mut keys = Vec::with_capacity(keys_max.min(bytes.keys_max()));
            while keys.len() < keys_max
                && let Some(key) = bytes.next()
            {
                keys.push(landings.known_key(key)?);
            }
            let keys = keys.into();
            Request::FuseRecvTensor { step_id, keys }
        };
        // Whoever asks for nothing, or for something else too, is answered with care.
        let is_empty = matches!(&request, Request::FuseRecvTensor { keys, .. } if keys.is_empty());
        if is_empty || !bytes.is_empty() {
            return None;
        }
        cursor.slice(len);
        Some(request)
    }

    fn begin_graph(
        &mut self,
        arriving: Arriving,
        header: RequestHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let len = match usize::try_from(header.metadata_bytes) {
            Ok(len) if len <= self.limits.names_bytes => len,
            _ => {
                return Err(PeerViolation::Length {
                    place: "graph metadata",
                    found: header.metadata_bytes.into(),
                    allowed_max: self.limits.names_bytes as u64,
                });
            }
        };
        let inbound = Inbound::Metadata {
            arriving,
            feeds_bytes: header.payload_bytes.saturating_sub(len as u64),
        };
        if len == 0 {
            self.inbound = inbound;
            return Ok(self.land(Buffer::new(), cursor));
        }
        match checked(landings.message(len), len as u64) {
            Ok(buffer) => Ok(self.want(inbound, buffer, cursor)),
            Err(status) => {
                // Without the metadata nobody knows the number of feeds, so the header has to say how much to skip.
                self.refuse(arriving.id, status);
                Ok(cursor.skip(header.payload_bytes.max(len as u64), HEADER_BYTES))
            }
        }
    }

    /// Fills memory with what is there, and orders the rest.
    pub(super) fn want(
        &mut self,
        inbound: Inbound,
        buffer: BufferMut,
        cursor: &mut Cursor<'_>,
    ) -> Option<Next> {
        self.inbound = inbound;
        match cursor.fill(buffer) {
            Filled::Whole(buffer) => self.land(buffer, cursor),
            Filled::Partly(landing) => Some(Next::Land(landing)),
        }
    }

    pub(super) fn land(&mut self, buffer: Buffer, cursor: &mut Cursor<'_>) -> Option<Next> {
        match std::mem::replace(&mut self.inbound, Inbound::Header) {
            Inbound::Message { arriving, method } => {
                self.message_landed(arriving, method, buffer);
            }
            Inbound::Metadata {
                arriving,
                feeds_bytes,
            } => {
                if let Err(malformed) = self.metadata_landed(arriving, &buffer) {
                    self.refuse(arriving.id, malformed.into());
                    return cursor.skip(feeds_bytes, HEADER_BYTES);
                }
            }
            Inbound::Feeds {
                arriving,
                call,
                names,
                mut records,
            } => {
                records.landed(buffer);
                self.inbound = Inbound::Feeds {
                    arriving,
                    call,
                    names,
                    records,
                };
            }
            Inbound::Bundle { received, .. } => {
                let requests = Some(buffer);
                self.inbound = Inbound::Bundle { received, requests };
            }
            // The link is gone, and this was on its way.
            Inbound::Header | Inbound::Listed { .. } => {}
        }
        None
    }

    fn message_landed(&mut self, arriving: Arriving, method: Method, body: Buffer) {
        let decoded = match method {
            Method::RecvTensor => decode_receive(&body, 1).map(|mut message| {
                let key = message.keys.pop().expect("a decoded request has a key");
                let step_id = message.step_id;
                tensors_asked(Request::RecvTensor { step_id, key })
            }),
            Method::FuseRecvTensor => {
                decode_receive(&body, self.limits.records.max(2)).map(|message| {
                    tensors_asked(Request::FuseRecvTensor {
                        step_id: message.step_id,
                        keys: message.keys.into_vec().into(),
                    })
                })
            }
            Method::GetStatus => self.status_asked(&body).map(|announce| {
                let request = Request::Message { method, body };
                (request, Expected::Message { announce })
            }),
            _ => {
                let request = Request::Message { method, body };
                Ok((request, Expected::Message { announce: false }))
            }
        };
        match decoded {
            Ok((request, expected)) => self.deliver(arriving, request, expected),
            Err(malformed) => self.refuse(arriving.id, malformed.into()),
        }
    }

    /// Notes what the peer announces, and whether its answer shall carry an announcement.
    fn status_asked(&mut self, body: &Buffer) -> Result<bool, Malformed> {
        let Some(announcement) = Announcement::find(body)? else {
            return Ok(false);
        };
        self.meet(announcement.features);
        Ok(!self.announced.is_empty())
    }

    fn metadata_landed(&mut self, arriving: Arriving, metadata: &Buffer) -> Result<(), Malformed> {
        let (call, names) = decode_graph_metadata(metadata, self.limits.records)?;
        let token = RequestId(arriving.id).token();
        self.inbound = Inbound::Feeds {
            arriving,
            call: Box::new(call),
            records: Records::new(token, names.len(), metadata.len() as u64),
            names,
        };
        Ok(())
    }

    pub(super) fn read_feeds(
        &mut self,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let Inbound::Feeds {
            arriving, records, ..
        } = &mut self.inbound
        else {
            unreachable!("the caller has looked");
        };
        let served = self.served.get(arriving.id);
        if served.is_none_or(|served| served.state != State::Arriving) {
            records.fail(Status::new(
                Code::Cancelled,
                "the request has been answered",
            ));
        }
        let next = records.advance(cursor, &self.limits, landings)?;
        if records.is_complete()
            && let Inbound::Feeds {
                arriving,
                mut call,
                names,
                records,
            } = std::mem::replace(&mut self.inbound, Inbound::Header)
        {
            match records.into_result() {
                Ok((tensors, _)) => {
                    call.feeds.extend(names.into_iter().zip(tensors));
                    let expected = Expected::Fetched {
                        names: call.fetches.clone(),
                    };
                    self.deliver(arriving, Request::StarRunGraph(call), expected);
                }
                Err(status) => self.refuse(arriving.id, status),
            }
        }
        Ok(next)
    }

    /// Queues a complete request for the service, unless it has been answered meanwhile.
    #[inline]
    pub(super) fn deliver(&mut self, arriving: Arriving, request: Request, expected: Expected) {
        if let Request::FuseRecvTensor { keys, .. } = &request
            && arriving.keep != 0
            && !self.kept_lists.keep(arriving.keep, keys)
        {
            let text = format!("the keys cannot be kept as list {}", arriving.keep);
            return self.refuse(arriving.id, Status::new(Code::InvalidArgument, text));
        }
        if let Some(
            served @ Served {
                state: State::Arriving,
                ..
            },
        ) = self.served.get_mut(arriving.id)
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

fn tensors_asked(request: Request) -> (Request, Expected) {
    let expected = tensors_of(&request);
    (request, expected)
}

#[inline]
pub(super) fn tensors_of(request: &Request) -> Expected {
    Expected::Tensors {
        request: request.clone(),
        delivering: SmallVec::new(),
    }
}

/// Why a method is refused without asking the service.
fn refusal(method: Method) -> Option<&'static str> {
    match method {
        // Originals answer with the bare names, and their callers look for nothing else.
        Method::Logging => Some("Logging"),
        Method::Tracing => Some("Tracing"),
        method => unsupported(method),
    }
}
