//! Graph calls, as a server reads them.

use grpcxx_memory::Buffer;
use grpcxx_transport::Next;
use smallvec::SmallVec;

use super::answers::Expected;
use super::inbound::{Arriving, Feeds, RequestPart};
use crate::connection::body::Body;
use crate::connection::cursor::Cursor;
use crate::connection::reader::{Part, Whole, read_whole};
use crate::connection::records::Records;
use crate::connection::server::{RequestId, ServerConnection};
use crate::connection::small::SmallFrame;
use crate::connection::{Landings, PeerViolation};
use crate::wire::{Malformed, RequestHeader, ShapeForms, decode_graph_metadata};
use crate::{GraphCall, NamedTensors, Names, Request, Tensor};

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
        if self.begin_known(arriving, len, cursor, landings) {
            return Ok(None);
        }
        let whole = Whole {
            what: RequestPart::Metadata { arriving },
            len_bytes: len,
            behind_bytes: header.payload_bytes.saturating_sub(len as u64),
        };
        read_whole(self, whole, cursor, landings)
    }

    /// Begins a call that is like one before it, if its metadata are all there, and takes it if the
    /// rest of it is too. `false` says that nothing was taken.
    fn begin_known(
        &mut self,
        arriving: Arriving,
        len: usize,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> bool {
        let Some(metadata) = cursor.peek(len) else {
            return false;
        };
        let mut call = self.spare_calls.pop().unwrap_or_default();
        let names_max = self.answer_limits.records;
        let Some(names) = self.signatures.read(metadata, names_max, &mut call) else {
            self.reuse_call(call);
            return false;
        };
        cursor.slice(len);
        if !self.may_call(arriving, &call) {
            self.expect_feeds(arriving, call, names, len);
            return true;
        }
        let frame = SmallFrame {
            token: RequestId(arriving.id).token(),
            head_bytes: len,
            beside_bytes: self.reader.beside_bytes(),
            shapes: ShapeForms::of(self.common()),
            limits: &self.reader.limits,
        };
        match frame.tensors(names.len(), &mut self.reader.records, cursor, landings) {
            Some(Ok(tensors)) => {
                call.feeds = zipped(names, tensors);
                self.deliver_call(arriving, call);
            }
            Some(Err(status)) => self.refuse(arriving.id, status),
            None => self.expect_feeds(arriving, call, names, len),
        }
        true
    }

    pub(crate) fn metadata_landed(
        &mut self,
        arriving: Arriving,
        metadata: &Buffer,
    ) -> Result<(), Malformed> {
        // No more than an answer for this peer may have.
        let (call, names) = decode_graph_metadata(metadata, self.answer_limits.records)?;
        self.may_call(arriving, &call);
        self.expect_feeds(arriving, Box::new(call), names, metadata.len());
        Ok(())
    }

    /// Whether the peer has the right to a call; one without it is refused. What that feeds is
    /// taken off the link without memory.
    fn may_call(&mut self, arriving: Arriving, call: &GraphCall) -> bool {
        let is_of_step = call.ps_graph_count > 0;
        let missing = (self.gate).missing_for_call(&call.graph_handle, is_of_step);
        if let Some(right) = missing {
            self.refuse(arriving.id, right.missing());
        }
        missing.is_none()
    }

    fn expect_feeds(
        &mut self,
        arriving: Arriving,
        call: Box<GraphCall>,
        names: Names,
        metadata_bytes: usize,
    ) {
        let token = RequestId(arriving.id).token();
        let records = Records::new(token, names.len(), metadata_bytes as u64)
            .beside(self.reader.beside_bytes())
            .with_shapes(ShapeForms::of(self.common()));
        self.reader.part = Part::Tensors {
            of: Feeds {
                arriving,
                call,
                names,
            },
            body: Body::Records(records),
        };
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
                self.deliver_call(arriving, call);
            }
            Err(status) => self.refuse(arriving.id, status),
        }
    }

    fn deliver_call(&mut self, arriving: Arriving, call: Box<GraphCall>) {
        let expected = Expected::Fetched {
            names: call.fetches.clone(),
        };
        self.deliver(arriving, Request::StarRunGraph(call), expected);
    }

    /// Takes the box of a call back that was taken out of it, for another call.
    pub fn reuse_call(&mut self, mut call: Box<GraphCall>) {
        if self.spare_calls.len() < SPARE_CALLS_MAX {
            *call = GraphCall::default();
            self.spare_calls.push(call);
        }
    }
}

/// Names with their tensors. Most lists have one, for which a loop is long.
#[inline]
pub(crate) fn zipped(mut names: Names, mut tensors: SmallVec<[Tensor; 1]>) -> NamedTensors {
    match (names.len(), names.pop(), tensors.pop()) {
        (1, Some(name), Some(tensor)) => NamedTensors::from_buf([(name, tensor)]),
        (_, Some(name), Some(tensor)) => {
            let last = std::iter::once((name, tensor));
            names.into_iter().zip(tensors).chain(last).collect()
        }
        (..) => NamedTensors::new(),
    }
}

/// Most boxes that wait for calls.
const SPARE_CALLS_MAX: usize = 64;
