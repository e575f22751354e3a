//! Tensors by name, as a client reads them.

use std::mem;

use grpcxx_memory::Buffer;
use grpcxx_transport::{Next, SlotId};

use super::inbound::ResponsePart;
use crate::connection::body::Body;
use crate::connection::calls::Expected;
use crate::connection::client::ClientConnection;
use crate::connection::cursor::Cursor;
use crate::connection::reader::{Part, Whole, read_whole};
use crate::connection::records::Records;
use crate::connection::{Landings, PeerViolation};
use crate::wire::{ResponseHeader, decode_names, sorted_by_name};
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
        let allowed_max = self.reader.limits.names_bytes as u64;
        let len = PeerViolation::checked_length(place, header.names_bytes, allowed_max)?;
        let whole = Whole {
            what: ResponsePart::Names { id },
            len_bytes: len,
            behind_bytes: header.payload_bytes.saturating_sub(len as u64),
        };
        read_whole(self, whole, cursor, landings)
    }

    pub(crate) fn names_landed(&mut self, id: SlotId, names: Buffer) -> Result<(), PeerViolation> {
        let beside_bytes = self.reader.beside_bytes();
        let call = self
            .calls
            .find(id)
            .expect("a call keeps its slot while its response comes");
        let Expected::Fetched { names: asked } = &call.expected else {
            unreachable!("only graph calls are answered with names");
        };
        let returned = decode_names(&names, self.records_taken())?;
        let mut records = Records::new(call.token, returned.len(), names.len() as u64)
            .beside(beside_bytes)
            .going_on()
            .with_shapes(self.shapes_taken());
        match indexes(asked, &returned) {
            Ok(indexes) => records = records.with_indexes(indexes),
            Err(status) => records.fail(status),
        }
        self.reader.part = Part::Tensors {
            of: id,
            body: Body::Records(records),
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
        if mem::replace(&mut seen[index as usize], true) {
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
