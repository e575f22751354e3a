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
use crate::connection::server::graph::zipped;
use crate::connection::small::SmallFrame;
use crate::connection::{Landings, PeerViolation};
use crate::wire::{ResponseHeader, decode_names, sorted_by_name};
use crate::{Code, Response, Status, Text};

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
        if let Some(result) = self.whole_fetched(id, len, cursor, landings) {
            self.complete(id, result);
            return Ok(None);
        }
        let whole = Whole {
            what: ResponsePart::Names { id },
            len_bytes: len,
            behind_bytes: header.payload_bytes.saturating_sub(len as u64),
        };
        read_whole(self, whole, cursor, landings)
    }

    /// Takes a small response, if all of it is there and the names are those that were asked for,
    /// in their order.
    fn whole_fetched(
        &mut self,
        id: SlotId,
        names_bytes: usize,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Option<Result<Response, Status>> {
        let returned = cursor.peek(names_bytes)?;
        let beside_bytes = self.reader.beside_bytes();
        let shapes = self.shapes_taken();
        let call = self.calls.find_mut(id)?;
        let (token, has_ended) = (call.token, call.state.has_ended());
        let Expected::Fetched { names } = &mut call.expected else {
            return None;
        };
        if has_ended || !are_names(returned, names) {
            return None;
        }
        let frame = SmallFrame {
            token,
            head_bytes: names_bytes,
            beside_bytes,
            shapes,
            limits: &self.reader.limits,
        };
        let mut behind = cursor.behind(names_bytes);
        let records = &mut self.reader.records;
        let tensors = frame.tensors(names.len(), records, &mut behind, landings)?;
        cursor.slice(names_bytes + behind.consumed_bytes());
        Some(tensors.map(|tensors| Response::Fetched(zipped(mem::take(names), tensors))))
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

/// Whether the names of a response are these.
fn are_names(mut bytes: &[u8], names: &[Text]) -> bool {
    for name in names {
        let name = &name.as_buffer()[..];
        let Some((len, behind)) = bytes.split_first_chunk() else {
            return false;
        };
        if usize::from(u16::from_le_bytes(*len)) != name.len() || !behind.starts_with(name) {
            return false;
        }
        bytes = &behind[name.len()..];
    }
    bytes.is_empty()
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
