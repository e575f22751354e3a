use grpcxx_memory::Buffer;
use grpcxx_transport::{Next, SlotId};

use super::inbound::{Inbound, gone};
use crate::connection::calls::Expected;
use crate::connection::client::ClientConnection;
use crate::connection::cursor::Cursor;
use crate::connection::landings::checked;
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
        let ended = self.is_ended(id);
        if ended || len == 0 || len > self.limits.error_text_bytes as u64 {
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
        let there_bytes = cursor.there(len);
        match checked(
            landings.message(len as usize, there_bytes),
            there_bytes,
            len,
        ) {
            Ok(buffer) => self.want(
                Inbound::ErrorText {
                    id,
                    status: header.status,
                },
                buffer,
                len as usize,
                cursor,
            ),
            Err(refused) => {
                self.complete(id, Err(reason_lost(header.status, &refused)));
                Ok(cursor.skip(len, HEADER_BYTES))
            }
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
        if len == 0 {
            self.finish_message(id, Buffer::new());
            return Ok(None);
        }
        let memory = if self.is_ended(id) {
            Err(gone())
        } else if len > self.limits.message_bytes {
            Err(message_too_long(len, &self.limits))
        } else {
            let there_bytes = cursor.there(len);
            checked(
                landings.message(len as usize, there_bytes),
                there_bytes,
                len,
            )
        };
        match memory {
            Ok(buffer) => self.want(Inbound::Message { id }, buffer, len as usize, cursor),
            Err(status) => {
                self.complete(id, Err(status));
                Ok(cursor.skip(len, HEADER_BYTES))
            }
        }
    }

    pub(crate) fn finish_message(&mut self, id: SlotId, body: Buffer) {
        let call = self.calls.find(id);
        if call.is_some_and(|call| matches!(call.expected, Expected::Announcement)) {
            let found = Announcement::find(&body).ok().flatten().unwrap_or_default();
            self.peer = Some(found.features);
            self.bundles = self.has(Features::BUNDLES);
            if self.has(Features::CHUNKS) {
                let whole_frame_bytes = self.limits.whole_frame_bytes;
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
