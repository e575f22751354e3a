//! Requests that name their keys by the number of a list, as a server reads them.

use grpcxx_transport::Next;

use super::lists::STEP_BYTES;
use crate::connection::cursor::Cursor;
use crate::connection::landings::message_in_any_case;
use crate::connection::reader::{Whole, read_into};
use crate::connection::server::ServerConnection;
use crate::connection::server::inbound::{Arriving, RequestPart, tensors_of};
use crate::connection::{Landings, PeerViolation};
use crate::wire::RequestHeader;
use crate::{KeyList, Request};

impl ServerConnection {
    /// Begins a request that names its keys by the number of their list.
    pub(crate) fn begin_listed(
        &mut self,
        arriving: Arriving,
        header: &RequestHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        if header.payload_bytes != STEP_BYTES as u64 {
            return Err(PeerViolation::Length {
                place: "the payload of a request with the number of a list",
                found: header.payload_bytes.into(),
                allowed_max: STEP_BYTES as u64,
            });
        }
        let number = header.metadata_bytes.checked_neg();
        let Some(keys) = number.and_then(|number| self.kept_lists.find(number)) else {
            return Err(PeerViolation::UnknownList {
                found: header.metadata_bytes,
            });
        };
        if let Some(step_id) = cursor.slice(STEP_BYTES) {
            self.step_landed(arriving, keys, step_id);
            return Ok(None);
        }
        let whole = Whole {
            what: RequestPart::Step { arriving, keys },
            len_bytes: STEP_BYTES,
            behind_bytes: 0,
        };
        let memory = message_in_any_case(landings, STEP_BYTES);
        read_into(self, whole, Ok(memory), cursor, landings)
    }

    pub(crate) fn step_landed(&mut self, arriving: Arriving, keys: KeyList, step_id: &[u8]) {
        let step_id = step_id.first_chunk().expect("as many bytes were wanted");
        let step_id = i64::from_le_bytes(*step_id);
        let request = Request::FuseRecvTensor { step_id, keys };
        let expected = tensors_of(&request);
        self.deliver(arriving, request, expected);
    }
}
