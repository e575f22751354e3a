//! Requests that name their keys by the number of a list, as a server reads them.

use grpcxx_transport::Next;

use super::lists::STEP_BYTES;
use crate::Request;
use crate::connection::PeerViolation;
use crate::connection::cursor::Cursor;
use crate::connection::server::ServerConnection;
use crate::connection::server::inbound::{Arriving, Inbound, tensors_of};
use crate::wire::RequestHeader;

impl ServerConnection {
    /// Begins a request that names its keys by the number of their list.
    pub(crate) fn begin_listed(
        &mut self,
        arriving: Arriving,
        header: &RequestHeader,
    ) -> Result<(), PeerViolation> {
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
        self.inbound = Inbound::Listed { arriving, keys };
        Ok(())
    }

    pub(crate) fn read_listed(&mut self, cursor: &mut Cursor<'_>) -> Option<Next> {
        let Some(step_id) = cursor.array::<STEP_BYTES>() else {
            return Some(Next::Head {
                at_least_bytes: STEP_BYTES,
            });
        };
        let step_id = i64::from_le_bytes(*step_id);
        if let Inbound::Listed { arriving, keys } =
            std::mem::replace(&mut self.inbound, Inbound::Header)
        {
            let request = Request::FuseRecvTensor { step_id, keys };
            let expected = tensors_of(&request);
            self.deliver(arriving, request, expected);
        }
        None
    }
}
