use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_transport::{Next, Progress, SlotId, Time};

use super::messages::status_of;
use crate::connection::body::Body;
use crate::connection::calls::{Call, Expected};
use crate::connection::client::ClientConnection;
use crate::connection::cursor::{Cursor, Filled};
use crate::connection::records::Records;
use crate::connection::{Landings, PeerViolation};
use crate::extensions::bundles::client::small_tensor;
use crate::extensions::chunks::reader::{self, TakesChunks};
use crate::wire::{
    BUNDLE_TAG, Features, HEADER_BYTES, RECORD_BYTES, ResponseHeader, decode_record,
};
use crate::{Code, Reason, Response, Status, Text};

/// What the next bytes from the peer are.
#[derive(Debug, Default)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one in each connection, and a box would be allocated for each frame"
)]
pub(crate) enum Inbound {
    #[default]
    Header,
    /// The body of a successful response.
    Message { id: SlotId },
    /// The text of a failed one.
    ErrorText { id: SlotId, status: i32 },
    /// The names of fetched tensors.
    Names {
        id: SlotId,
        /// What the header says of the length of the tensors behind them.
        behind_bytes: u64,
    },
    /// What the tensors of a response are, all of them before their data.
    Heads {
        id: SlotId,
        /// What the header says of the length of the data.
        data_bytes: u64,
    },
    /// Tensors.
    Records { id: SlotId, records: Body },
    /// Answers that share a frame, once they have landed.
    Bundle { answers: Option<Buffer> },
}

/// A response behind which the link has shown more before its payload was there.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most are records, and a box would be allocated for each"
)]
pub(crate) enum Landing {
    Records {
        id: SlotId,
        records: Body,
    },
    /// Complete, and told once those before it are.
    Complete {
        id: SlotId,
        result: Result<Response, Status>,
    },
}

impl ClientConnection {
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
        self.go_on();
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
        landing: grpcxx_transport::Landing,
        landings: &mut dyn Landings,
    ) -> Result<Next, PeerViolation> {
        if !landing.is_full() {
            // The link died; that it is gone comes as an event of its own.
            return Ok(Next::Pause);
        }
        if !landing.is_complete() && !self.chunks.is_inside() {
            return Ok(self.grow(landing, landings));
        }
        if let Some(Landing::Records { records, .. }) = self.landing.front_mut() {
            records.landed(landing.into_shared());
            self.finish_landed();
            // The link has gone on, so this does not count.
            return Ok(Next::Pause);
        }
        if self.chunks.is_inside() {
            return reader::landed(self, now, landing, landings);
        }
        self.land(landing.into_shared())?;
        if let Inbound::Records { records, .. } = &self.inbound
            && records.is_landing()
        {
            // As above.
            return Ok(Next::Pause);
        }
        reader::read(self, now, &mut Cursor::new(&[]), landings)
    }

    /// Puts a response aside whose payload still lands while the link shows what follows it.
    fn go_on(&mut self) {
        if let Inbound::Records { records, .. } = &self.inbound
            && records.are_begun()
            && records.is_landing()
            && let Inbound::Records { id, records } =
                std::mem::replace(&mut self.inbound, Inbound::Header)
        {
            self.landing.push_back(Landing::Records { id, records });
        }
    }

    /// Ends the oldest responses whose payload has landed.
    fn finish_landed(&mut self) {
        while let Some(front) = self.landing.pop_front() {
            match front {
                Landing::Records { id, records } if records.is_complete() => {
                    let result = self.response(id, records);
                    self.finish(id, result);
                }
                Landing::Complete { id, result } => self.finish(id, result),
                Landing::Records { .. } => return self.landing.push_front(front),
            }
        }
    }

    /// Ends the call of a response that is complete, after those before it.
    pub(crate) fn complete(&mut self, id: SlotId, result: Result<Response, Status>) {
        if self.landing.is_empty() {
            self.finish(id, result);
        } else {
            self.landing.push_back(Landing::Complete { id, result });
        }
    }

    pub(crate) fn begin(
        &mut self,
        header: ResponseHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let id = SlotId::from_raw(header.tag);
        let heads_first = self.has_heads_first(&header);
        let Some(
            call @ Call {
                is_sent: true,
                is_answered: false,
                ..
            },
        ) = self.calls.find_mut(id)
        else {
            if header.tag == BUNDLE_TAG && self.takes(Features::BUNDLES) {
                return self.begin_bundle(header, cursor, landings);
            }
            return Err(PeerViolation::UnknownTag { found: header.tag });
        };
        call.is_answered = true;
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
                let (token, is_ended) = (call.token, call.is_ended);
                if count == 1
                    && !is_ended
                    && let Some(result) = self.whole_tensor(token, cursor, landings)
                {
                    self.complete(id, result);
                    return Ok(None);
                }
                let records = Records::new(token, count, 0).beside(self.beside_bytes());
                self.inbound = Inbound::Records {
                    id,
                    records: Body::Records(records.going_on()),
                };
                Ok(None)
            }
            Expected::Fetched { .. } => self.begin_fetched(id, header, cursor, landings),
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
        let bytes = cursor.peek_rest();
        let (head, data) = bytes.split_first_chunk::<RECORD_BYTES>()?;
        let meta = decode_record(head).ok()?;
        let len = usize::try_from(meta.data_bytes).ok()?;
        let data = data.get(..len)?;
        let frame_bytes = (HEADER_BYTES + RECORD_BYTES + len) as u64;
        if len == 0 || frame_bytes > self.limits.frame_bytes {
            return None;
        }
        cursor.slice(RECORD_BYTES + len);
        Some(small_tensor(token, &meta, data, &self.limits, landings))
    }

    /// Fills memory for so many bytes, or the first of them, with what is there, and orders the
    /// rest.
    pub(crate) fn want(
        &mut self,
        inbound: Inbound,
        buffer: BufferMut,
        whole_bytes: usize,
        cursor: &mut Cursor<'_>,
    ) -> Result<Option<Next>, PeerViolation> {
        self.inbound = inbound;
        match cursor.fill(buffer, whole_bytes) {
            Filled::Whole(buffer) => {
                self.land(buffer)?;
                Ok(None)
            }
            Filled::Partly(landing) => Ok(Some(Next::Land(landing))),
        }
    }

    pub(crate) fn land(&mut self, buffer: Buffer) -> Result<(), PeerViolation> {
        match std::mem::replace(&mut self.inbound, Inbound::Header) {
            Inbound::Message { id } => self.finish_message(id, buffer),
            Inbound::ErrorText { id, status } => {
                let text = String::from_utf8_lossy(&buffer).into_owned();
                self.complete(id, Err(status_of(status, text)));
            }
            Inbound::Names { id, .. } => self.names_landed(id, buffer)?,
            Inbound::Heads { id, data_bytes } => self.heads_landed(id, data_bytes, &buffer)?,
            Inbound::Records { id, mut records } => {
                records.landed(buffer);
                self.inbound = Inbound::Records { id, records };
            }
            Inbound::Bundle { .. } => {
                self.inbound = Inbound::Bundle {
                    answers: Some(buffer),
                };
            }
            // The link is gone, and this was on its way.
            Inbound::Header => {}
        }
        Ok(())
    }

    pub(crate) fn read_records(
        &mut self,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let Inbound::Records { id, records } = &mut self.inbound else {
            unreachable!("the caller has looked");
        };
        let id = *id;
        if self.calls.find(id).is_none_or(|call| call.is_ended) {
            records.fail(gone());
        }
        let next = records.advance(cursor, &self.limits, landings)?;
        if next.is_none() {
            self.go_on();
        }
        if let Inbound::Records { records, .. } = &self.inbound
            && records.is_complete()
            && let Inbound::Records { id, records } =
                std::mem::replace(&mut self.inbound, Inbound::Header)
        {
            let result = self.response(id, records);
            self.complete(id, result);
        }
        Ok(next)
    }

    pub(crate) fn response(&mut self, id: SlotId, records: Body) -> Result<Response, Status> {
        let (tensors, indexes) = records.into_result(|index| self.name_of(id, index))?;
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
            std::mem::take(names).into_iter().zip(tensors).collect(),
        ))
    }

    /// How a call asked for the tensor with this index.
    fn name_of(&self, id: SlotId, index: usize) -> Option<Text> {
        match &self.calls.find(id)?.expected {
            Expected::Fetched { names } => names.get(index).cloned(),
            Expected::Tensors { .. } => self.asked.key(id, index),
            Expected::Announcement | Expected::Message => None,
        }
    }

    /// What the frame that arrives in chunks takes of the arena, while another is at hand.
    pub(crate) fn beside_bytes(&self) -> u64 {
        match self.chunks.aside() {
            Some(Inbound::Records { records, .. }) => records.arena_bytes(),
            _ => 0,
        }
    }

    /// Whether a frame has begun that is not complete.
    pub fn is_within_frame(&self) -> bool {
        !matches!(self.inbound, Inbound::Header) || self.chunks.is_begun()
    }

    pub(crate) fn is_ended(&self, id: SlotId) -> bool {
        self.calls.find(id).is_none_or(|call| call.is_ended)
    }

    pub(crate) fn checked_payload(
        &self,
        header: &ResponseHeader,
        place: &'static str,
    ) -> Result<u64, PeerViolation> {
        let allowed_max = self.limits.frame_bytes.saturating_sub(HEADER_BYTES as u64);
        PeerViolation::check_length(place, header.payload_bytes, allowed_max)?;
        Ok(header.payload_bytes)
    }
}

/// Why payload is dropped; nobody sees it, since the call has ended before.
pub(crate) fn gone() -> Status {
    Status::new(Code::Cancelled, "the call has ended").because(Reason::Cancelled)
}
