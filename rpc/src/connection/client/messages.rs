//! Responses that are one message, and failures, as a client reads them.

use grpcxx_memory::Buffer;
use grpcxx_transport::{Next, SlotId};

use super::inbound::{ResponsePart, gone};
use crate::connection::calls::Expected;
use crate::connection::client::ClientConnection;
use crate::connection::cursor::Cursor;
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
        let has_ended = self.has_ended(id);
        if has_ended || len == 0 || len > self.reader.limits.error_text_bytes as u64 {
            let text = match len {
                0 => String::new(),
                len => format!("the peer's reason has {len} bytes, which is too long to keep"),
            };
            self.complete(id, Err(status_of(header.status, text)));
            return Ok(cursor.skip(len, HEADER_BYTES));
        }
        if let Some(text) = cursor.slice(len as usize) {
            let text = String::from_utf8_lossy(text).into_owned();
            self.complete(id, Err(status_of(header.status, text)));
            return Ok(None);
        }
        let status = header.status;
        let whole = Whole {
            what: ResponsePart::ErrorText { id, status },
            len_bytes: len as usize,
            behind_bytes: 0,
        };
        read_whole(self, whole, cursor, landings)
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
            self.peer = Some(found.features);
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
