//! Responses with all heads first, as a client begins them.

use grpcxx_transport::{Next, SlotId};

use super::body::HeadsFirst;
use crate::connection::body::Body;
use crate::connection::calls::Expected;
use crate::connection::client::ClientConnection;
use crate::connection::client::inbound::Inbound;
use crate::connection::cursor::Cursor;
use crate::connection::landings::checked;
use crate::connection::{Landings, PeerViolation};
use crate::wire::{Features, HEADER_BYTES, Heads, ResponseHeader};

impl ClientConnection {
    /// Whether a response has all heads first.
    pub(crate) fn has_heads_first(&self, header: &ResponseHeader) -> bool {
        header.names_bytes != 0 && self.takes(Features::HEADS_FIRST)
    }

    pub(crate) fn begin_heads(
        &mut self,
        id: SlotId,
        header: ResponseHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let payload = self.checked_payload(&header, "tensors")?;
        let allowed_max = payload.min(self.limits.names_bytes as u64);
        let place = "the heads of a response";
        let len = PeerViolation::checked_length(place, header.names_bytes, allowed_max)?;
        let data_bytes = payload - len as u64;
        if let Some(heads) = cursor.slice(len) {
            self.heads_landed(id, data_bytes, heads)?;
            return Ok(None);
        }
        let there_bytes = cursor.there(len as u64);
        match checked(landings.message(len, there_bytes), there_bytes, len as u64) {
            Ok(buffer) => self.want(Inbound::Heads { id, data_bytes }, buffer, len, cursor),
            Err(status) => {
                self.complete(id, Err(status));
                Ok(cursor.skip(payload, HEADER_BYTES))
            }
        }
    }

    pub(crate) fn heads_landed(
        &mut self,
        id: SlotId,
        data_bytes: u64,
        heads: &[u8],
    ) -> Result<(), PeerViolation> {
        let beside_bytes = self.beside_bytes();
        let call = (self.calls.find(id)).expect("a call keeps its slot while its response comes");
        let Expected::Tensors { count } = call.expected else {
            unreachable!("only receives of tensors are answered with heads");
        };
        let heads = Heads::decode(heads, count).map_err(PeerViolation::Heads)?;
        let allowed = heads.data_bytes();
        if data_bytes != allowed {
            return Err(PeerViolation::Length {
                place: "the data behind the heads of a response",
                found: data_bytes.into(),
                allowed_max: allowed,
            });
        }
        self.inbound = Inbound::Records {
            id,
            records: Body::HeadsFirst(HeadsFirst::new(call.token, heads, count, beside_bytes)),
        };
        Ok(())
    }
}
