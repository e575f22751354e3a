//! Responses that are one message, and failures, as a client reads them.

use grpcxx_memory::Buffer;
use grpcxx_transport::{Next, SlotId};

use super::inbound::{ResponsePart, gone};
use crate::connection::calls::Expected;
use crate::connection::client::ClientConnection;
use crate::connection::cursor::Cursor;
use crate::connection::limits::DETAILS_BYTES_MAX;
use crate::connection::reader::{Whole, read_into, read_whole};
use crate::connection::records::message_too_long;
use crate::connection::{Landings, PeerViolation};
use crate::wire::{Announcement, ChunkHeader, Features, HEADER_BYTES, ResponseHeader};
use crate::{Code, Reason, Response, Status};

impl ClientConnection {
    pub(crate) fn begin_error(
        &mut self,
        id: SlotId,
        header: ResponseHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let len = self.checked_payload(&header, "the text of a failure")?;
        let details_bytes = self.details_bytes(&header, len)?;
        let failure = Failure {
            number: header.status,
            details_bytes,
        };
        let text_bytes = len - details_bytes as u64;
        let is_too_long = text_bytes > self.reader.limits.error_text_bytes as u64;
        if self.has_ended(id) || len == 0 || is_too_long {
            let text = match len {
                0 => String::new(),
                _ => format!("the peer's reason has {text_bytes} bytes, which is too long to keep"),
            };
            self.complete(id, Err(status_of(header.status, text)));
            return Ok(cursor.skip(len, HEADER_BYTES));
        }
        if let Some(bytes) = cursor.slice(len as usize) {
            self.complete(id, Err(failure.status(bytes)));
            return Ok(None);
        }
        let whole = Whole {
            what: ResponsePart::Failure { id, failure },
            len_bytes: len as usize,
            behind_bytes: 0,
        };
        read_whole(self, whole, cursor, landings)
    }

    /// How many of the bytes of a failure are its details.
    fn details_bytes(&self, header: &ResponseHeader, len: u64) -> Result<usize, PeerViolation> {
        if !self.takes(Features::STATUS_DETAILS) {
            return Ok(0);
        }
        let allowed_max = len.min(DETAILS_BYTES_MAX as u64);
        let place = "the details of a failure";
        match PeerViolation::checked_length(place, header.names_bytes, allowed_max) {
            // What has not announced them may have anything there.
            Err(_) if !self.has(Features::STATUS_DETAILS) => Ok(0),
            checked => checked,
        }
    }

    pub(crate) fn begin_message(
        &mut self,
        id: SlotId,
        header: ResponseHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let len = self.checked_payload(&header, "a message")?;
        let whole = Whole {
            what: ResponsePart::Message { id },
            len_bytes: len as usize,
            behind_bytes: 0,
        };
        self.read_message(id, whole, len, cursor, landings)
    }

    /// Reads a payload that holds a message of `message_bytes`, or skips it if nobody waits for it
    /// any more or it is too long.
    pub(crate) fn read_message(
        &mut self,
        id: SlotId,
        whole: Whole<ResponsePart>,
        message_bytes: u64,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let limits = &self.reader.limits;
        let refused = if self.has_ended(id) {
            Some(gone())
        } else if message_bytes > limits.message_bytes {
            Some(message_too_long(message_bytes, limits))
        } else {
            None
        };
        match refused {
            Some(status) if whole.len_bytes > 0 => {
                read_into(self, whole, Err(status), cursor, landings)
            }
            _ => read_whole(self, whole, cursor, landings),
        }
    }

    pub(crate) fn finish_message(&mut self, id: SlotId, body: Buffer) {
        let call = self.calls.find(id);
        if call.is_some_and(|call| matches!(call.expected, Expected::Announcement)) {
            let found = Announcement::find(&body).ok().flatten().unwrap_or_default();
            let knew_cancels = self.has(Features::CANCEL);
            self.peer = Some(found.features);
            if self.has(Features::CANCEL) && !knew_cancels {
                self.send_late_cancels();
            }
            self.take_proof(&found);
            self.bundles = self.has(Features::BUNDLES);
            if self.has(Features::CHUNKS) {
                let whole_frame_bytes = self.reader.limits.whole_frame_bytes;
                (self.outgoing.cutter).start(whole_frame_bytes, ChunkHeader::encode_of_request);
            }
            if self.may_move() && !found.offer.is_empty() {
                self.offer = Some(found.offer);
            }
            self.peer_status = Some(body.clone());
        }
        self.complete(id, Ok(Response::Message(body)));
    }
}

/// What the header of a failure says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) number: i32,
    /// How much of the payload, at its end, is details.
    details_bytes: usize,
}

impl Failure {
    /// The failure with this payload.
    pub(crate) fn status(self, payload: &[u8]) -> Status {
        let text_bytes = payload.len().saturating_sub(self.details_bytes);
        let (text, details) = payload.split_at(text_bytes);
        let status = status_of(self.number, String::from_utf8_lossy(text).into_owned());
        match details {
            [] => status,
            details => Status::with_details(status.code, status.message, details.to_vec().into())
                .because(status.reason),
        }
    }
}

/// The failure of a call whose reason there was no memory for.
pub(crate) fn reason_lost(number: i32, refused: &Status) -> Status {
    let text = format!("the peer's reason could not be kept: {}", refused.message);
    status_of(number, text)
}

pub(crate) fn status_of(number: i32, text: String) -> Status {
    let status = match Code::from_number(number) {
        Some(code) => Status::new(code, text),
        None => Status::new(Code::Unknown, format!("status code {number}: {text}")),
    };
    status.because(Reason::Peer)
}
