use grpcxx_memory::Buffer;
use grpcxx_transport::{Next, SlotId};

use super::inbound::Inbound;
use crate::connection::body::Body;
use crate::connection::calls::Expected;
use crate::connection::client::ClientConnection;
use crate::connection::cursor::Cursor;
use crate::connection::landings::checked;
use crate::connection::records::Records;
use crate::connection::{Landings, PeerViolation};
use crate::wire::{HEADER_BYTES, ResponseHeader, decode_names, sorted_by_name};
use crate::{Code, Status, Text};

impl ClientConnection {
    pub(crate) fn begin_fetched(
        &mut self,
        id: SlotId,
        header: ResponseHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let place = "the names of a response";
        let allowed_max = self.limits.names_bytes as u64;
        let len = PeerViolation::checked_length(place, header.names_bytes, allowed_max)?;
        if len == 0 {
            self.names_landed(id, Buffer::new())?;
            return Ok(None);
        }
        let there_bytes = cursor.there(len as u64);
        match checked(landings.message(len, there_bytes), there_bytes, len as u64) {
            Ok(buffer) => {
                let behind_bytes = header.payload_bytes.saturating_sub(len as u64);
                self.want(Inbound::Names { id, behind_bytes }, buffer, len, cursor)
            }
            Err(status) => {
                // Without the names nobody knows the number of records, so the header has to say how much to skip.
                let payload = self.checked_payload(&header, "named tensors")?;
                self.complete(id, Err(status));
                Ok(cursor.skip(payload, HEADER_BYTES))
            }
        }
    }

    pub(crate) fn names_landed(&mut self, id: SlotId, names: Buffer) -> Result<(), PeerViolation> {
        let beside_bytes = self.beside_bytes();
        let call = self
            .calls
            .find(id)
            .expect("a call keeps its slot while its response comes");
        let Expected::Fetched { names: asked } = &call.expected else {
            unreachable!("only graph calls are answered with names");
        };
        let returned = decode_names(&names, self.limits.records)?;
        let mut records = Records::new(call.token, returned.len(), names.len() as u64)
            .beside(beside_bytes)
            .going_on();
        match indexes(asked, &returned) {
            Ok(indexes) => records = records.with_indexes(indexes),
            Err(status) => records.fail(status),
        }
        self.inbound = Inbound::Records {
            id,
            records: Body::Records(records),
        };
        Ok(())
    }
}

/// For each returned name its place among those asked for.
fn indexes(asked: &[Text], returned: &[Text]) -> Result<Vec<u32>, Status> {
    let order = sorted_by_name(asked).expect("a request with duplicates is not sent");
    let mut indexes = Vec::with_capacity(returned.len());
    let mut seen = vec![false; asked.len()];
    for name in returned {
        let found = order.binary_search_by(|&index| asked[index as usize].cmp(name));
        let index = found.map(|at| order[at]).map_err(|_| {
            Status::new(
                Code::Internal,
                format!("the peer returned {name:?}, which was not asked for"),
            )
        })?;
        if std::mem::replace(&mut seen[index as usize], true) {
            return Err(Status::new(
                Code::Internal,
                format!("the peer returned {name:?} twice"),
            ));
        }
        indexes.push(index);
    }
    match seen.iter().position(|&seen| !seen) {
        Some(missing) => Err(Status::new(
            Code::Internal,
            format!("the peer did not return {:?}", asked[missing]),
        )),
        None => Ok(indexes),
    }
}
