//! Graph calls, as a server reads them.

use grpcxx_memory::Buffer;
use grpcxx_transport::Next;

use super::answers::Expected;
use super::inbound::{Arriving, Feeds, RequestPart};
use crate::Request;
use crate::connection::body::Body;
use crate::connection::cursor::Cursor;
use crate::connection::reader::{Part, Whole, read_whole};
use crate::connection::records::Records;
use crate::connection::server::{RequestId, ServerConnection};
use crate::connection::{Landings, PeerViolation};
use crate::wire::{Malformed, RequestHeader, ShapeForms, decode_graph_metadata};

impl ServerConnection {
    pub(crate) fn begin_graph(
        &mut self,
        arriving: Arriving,
        header: RequestHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let allowed_max = self.reader.limits.names_bytes as u64;
        let len =
            PeerViolation::checked_length("graph metadata", header.metadata_bytes, allowed_max)?;
        let whole = Whole {
            what: RequestPart::Metadata { arriving },
            len_bytes: len,
            behind_bytes: header.payload_bytes.saturating_sub(len as u64),
        };
        read_whole(self, whole, cursor, landings)
    }

    pub(crate) fn metadata_landed(
        &mut self,
        arriving: Arriving,
        metadata: &Buffer,
    ) -> Result<(), Malformed> {
        // No more than an answer for this peer may have.
        let (call, names) = decode_graph_metadata(metadata, self.answer_limits.records)?;
        let function = call.graph_handle.as_str();
        if let Some(right) = (self.gate).missing_for_call(function, call.ps_graph_count > 0) {
            // What it feeds is taken off the link without memory.
            self.refuse(arriving.id, right.missing());
        }
        let token = RequestId(arriving.id).token();
        let records = Records::new(token, names.len(), metadata.len() as u64)
            .beside(self.reader.beside_bytes())
            .with_shapes(ShapeForms::of(self.common()));
        self.reader.part = Part::Tensors {
            of: Feeds {
                arriving,
                call: Box::new(call),
                names,
            },
            body: Body::Records(records),
        };
        Ok(())
    }

    /// Delivers or refuses a graph call whose feeds are all there or dropped.
    pub(crate) fn feeds_landed(&mut self, feeds: Feeds, body: Body) {
        let Feeds {
            arriving,
            mut call,
            names,
        } = feeds;
        match body.into_result(|index| names.get(index).cloned()) {
            Ok((tensors, _)) => {
                call.feeds.extend(names.into_iter().zip(tensors));
                let expected = Expected::Fetched {
                    names: call.fetches.clone(),
                };
                self.deliver(arriving, Request::StarRunGraph(call), expected);
            }
            Err(status) => self.refuse(arriving.id, status),
        }
    }
}
