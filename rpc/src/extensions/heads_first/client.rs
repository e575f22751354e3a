//! Responses with all heads first, as a client begins them.

use grpcxx_transport::{Next, SlotId};

use super::body::HeadsFirst;
use crate::connection::body::Body;
use crate::connection::calls::Expected;
use crate::connection::client::ClientConnection;
use crate::connection::client::inbound::ResponsePart;
use crate::connection::cursor::Cursor;
use crate::connection::reader::{Part, Whole, read_whole};
use crate::connection::{Landings, PeerViolation};
use crate::wire::{Features, Heads, ResponseHeader};

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
        let allowed_max = payload.min(self.reader.limits.names_bytes as u64);
        let place = "the heads of a response";
        let len = PeerViolation::checked_length(place, header.names_bytes, allowed_max)?;
        let behind_bytes = payload - len as u64;
        if let Some(heads) = cursor.slice(len) {
            self.heads_landed(id, behind_bytes, heads)?;
            return Ok(None);
        }
        let whole = Whole {
            what: ResponsePart::Heads { id },
            len_bytes: len,
            behind_bytes,
        };
        read_whole(self, whole, cursor, landings)
    }

    pub(crate) fn heads_landed(
        &mut self,
        id: SlotId,
        data_bytes: u64,
        heads: &[u8],
    ) -> Result<(), PeerViolation> {
        let beside_bytes = self.reader.beside_bytes();
        let call = (self.calls.find(id)).expect("a call keeps its slot while its response comes");
        let Expected::Tensors { count } = call.expected else {
            unreachable!("only receives of tensors are answered with heads");
        };
        let heads =
            Heads::decode(heads, count, self.shapes_taken()).map_err(PeerViolation::Heads)?;
        let allowed = heads.data_bytes();
        if data_bytes != allowed {
            return Err(PeerViolation::Length {
                place: "the data behind the heads of a response",
                found: data_bytes.into(),
                allowed_max: allowed,
            });
        }
        self.reader.part = Part::Tensors {
            of: id,
            body: Body::HeadsFirst(HeadsFirst::new(call.token, heads, count, beside_bytes)),
        };
        Ok(())
    }
}
