use std::time::Duration;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_transport::{Landing, Next, Progress, SlotId, Time};
use hashbrown::hash_map::Entry;
use smallvec::SmallVec;

use super::answers::Expected;
use super::messages::refusal;
use crate::connection::cursor::{Cursor, Filled};
use crate::connection::records::Records;
use crate::connection::server::{Incoming, RequestId, Served, ServerConnection, State};
use crate::connection::{Landings, PeerViolation};
use crate::extensions::chunks::reader::{self, TakesChunks};
use crate::wire::{BUNDLE_METHOD, CANCEL_METHOD, Features, HEADER_BYTES, RequestHeader};
use crate::{Code, GraphCall, KeyList, Method, Reason, Request, Status, Text};

/// What the next bytes from the peer are.
#[derive(Debug, Default)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one in each connection, and a box would be allocated for each frame"
)]
pub(crate) enum Inbound {
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
pub(crate) struct Arriving {
    pub(crate) id: SlotId,
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
        let next = reader::read(self, now, &mut cursor, landings)?;
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
            return reader::landed(self, now, landing, landings);
        }
        if !landing.is_complete() {
            return Ok(self.grow(landing, landings));
        }
        let cursor = &mut Cursor::new(&[]);
        match self.land(landing.into_shared(), cursor) {
            Some(next) => Ok(next),
            None => reader::read(self, now, cursor, landings),
        }
    }
}

impl ServerConnection {
    pub(crate) fn begin(
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

    /// Fills memory for so many bytes, or the first of them, with what is there, and orders the
    /// rest.
    pub(crate) fn want(
        &mut self,
        inbound: Inbound,
        buffer: BufferMut,
        whole_bytes: usize,
        cursor: &mut Cursor<'_>,
    ) -> Option<Next> {
        self.inbound = inbound;
        match cursor.fill(buffer, whole_bytes) {
            Filled::Whole(buffer) => self.land(buffer, cursor),
            Filled::Partly(landing) => Some(Next::Land(landing)),
        }
    }

    pub(crate) fn land(&mut self, buffer: Buffer, cursor: &mut Cursor<'_>) -> Option<Next> {
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

    /// What the frame that arrives in chunks takes of the arena, while another is at hand.
    pub(crate) fn beside_bytes(&self) -> u64 {
        match self.chunks.aside() {
            Some(Inbound::Feeds { records, .. }) => records.arena_bytes(),
            _ => 0,
        }
    }

    /// Whether a frame has begun that is not complete.
    pub fn is_within_frame(&self) -> bool {
        !matches!(self.inbound, Inbound::Header) || self.chunks.is_begun()
    }

    /// Queues a complete request for the service, unless it has been answered meanwhile.
    #[inline]
    pub(crate) fn deliver(&mut self, arriving: Arriving, request: Request, expected: Expected) {
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
