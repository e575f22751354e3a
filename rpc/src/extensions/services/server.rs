//! How a server reads and answers calls by path.

use grpcxx_memory::Buffer;
use grpcxx_transport::Next;

use super::wire::{Envelope, HEAD_BYTES_MAX, head_too_long};
use crate::connection::cursor::Cursor;
use crate::connection::reader::{Whole, read_into, read_whole};
use crate::connection::records::message_too_long;
use crate::connection::server::ServerConnection;
use crate::connection::server::answers::Expected;
use crate::connection::server::inbound::{Arriving, RequestPart};
use crate::connection::{Landings, PeerViolation};
use crate::wire::{HEADER_BYTES, RequestHeader};
use crate::{Request, Right, Status};

impl ServerConnection {
    /// Begins a call by path. One that cannot be taken is answered with its reason, and its payload
    /// is skipped.
    pub(crate) fn begin_unary(
        &mut self,
        arriving: Arriving,
        header: &RequestHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let (found, len) = (header.metadata_bytes, header.payload_bytes);
        let head_bytes = usize::try_from(found).unwrap_or(usize::MAX);
        let limits = &self.reader.limits;
        let refused = if let Some(right) = self.gate.missing(Right::Call) {
            Some(right.missing())
        } else if head_bytes > HEAD_BYTES_MAX || head_bytes as u64 > len {
            Some(head_too_long(found as u32 as u64))
        } else if len - head_bytes as u64 > limits.message_bytes {
            Some(message_too_long(len - head_bytes as u64, limits))
        } else {
            None
        };
        let whole = Whole {
            what: RequestPart::Unary {
                arriving,
                head_bytes,
            },
            len_bytes: len as usize,
            behind_bytes: 0,
        };
        match refused {
            Some(status) if len > 0 => read_into(self, whole, Err(status), cursor, landings),
            Some(status) => {
                self.refuse(arriving.id, status);
                Ok(cursor.skip(len, HEADER_BYTES))
            }
            None => read_whole(self, whole, cursor, landings),
        }
    }

    pub(crate) fn unary_landed(&mut self, arriving: Arriving, head_bytes: usize, bytes: Buffer) {
        match Envelope::decode_next(head_bytes, bytes, &mut self.last_head) {
            Ok(envelope) => {
                let request = Request::Unary(self.boxed(envelope));
                self.deliver(arriving, request, Expected::Unary);
            }
            Err(malformed) => self.refuse(arriving.id, Status::from(malformed)),
        }
    }

    fn boxed(&mut self, envelope: Envelope) -> Box<Envelope> {
        match self.spare_envelopes.pop() {
            Some(mut spare) => {
                *spare = envelope;
                spare
            }
            None => Box::new(envelope),
        }
    }

    /// Takes the box of a request by path back, for another.
    pub fn reuse_envelope(&mut self, mut envelope: Box<Envelope>) {
        if self.spare_envelopes.len() < SPARE_ENVELOPES_MAX {
            *envelope = Envelope::default();
            self.spare_envelopes.push(envelope);
        }
    }
}

/// Most boxes that wait for requests.
const SPARE_ENVELOPES_MAX: usize = 64;
