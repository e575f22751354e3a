//! How a client makes calls by path, and reads their answers.

use grpcxx_memory::Buffer;
use grpcxx_transport::{Next, SlotId};

use super::wire::{Envelope, HEAD_BYTES_MAX};
use crate::connection::calls::Expected;
use crate::connection::client::ClientConnection;
use crate::connection::client::inbound::{ResponsePart, gone};
use crate::connection::cursor::Cursor;
use crate::connection::encode;
use crate::connection::limits::STAR_RECORDS_MAX;
use crate::connection::reader::Whole;
use crate::connection::{Landings, PeerViolation};
use crate::extensions::element_types;
use crate::wire::{Features, ResponseHeader, is_of_star};
use crate::{
    Code, DType, GraphCall, Reason, Request, Response, Shape, Status, Tensor, TraceContext,
};

/// A call that waits until it is known what the peer takes.
#[derive(Debug)]
pub(crate) struct Waiting {
    id: SlotId,
    timeout_ms: i32,
    request: Request,
}

impl Waiting {
    pub(crate) fn new(id: SlotId, timeout_ms: i32, request: Request) -> Self {
        Self {
            id,
            timeout_ms,
            request,
        }
    }
}

impl ClientConnection {
    /// Keeps a call that an extension carries until the peer has announced itself, or shapes it for
    /// what the peer knows. `None` says that it waits, or has ended since the peer cannot take it.
    pub(crate) fn shape(
        &mut self,
        id: SlotId,
        timeout_ms: i32,
        request: Request,
    ) -> Option<Request> {
        let wanted = match &request {
            Request::Unary(_) => Features::SERVICES,
            Request::StarRunGraph(call) => wanted_of_call(call),
            _ => Features::NONE,
        };
        if wanted.is_empty() {
            return Some(request);
        }
        if self.peer.is_none() && self.announced.intersects(wanted) {
            self.waiting.push(Waiting {
                id,
                timeout_ms,
                request,
            });
            self.expect(id, Expected::Unary);
            return None;
        }
        match self.shaped(request) {
            Ok(request) => Some(request),
            Err(status) => {
                self.finish(id, Err(status));
                None
            }
        }
    }

    /// The request as the peer takes it.
    fn shaped(&self, request: Request) -> Result<Request, Status> {
        match request {
            Request::Unary(envelope) if !self.has(Features::SERVICES) => {
                self.as_graph_call(&envelope)
            }
            Request::StarRunGraph(mut call) if !self.has(Features::TRACES) => {
                call.trace = None;
                Ok(Request::StarRunGraph(call))
            }
            request => Ok(request),
        }
    }

    /// What a peer without the extension is asked in place of a call by path: a function of that
    /// name, with the message as a vector of bytes.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` if the call has metadata other than hints: a graph call has no place
    /// for them, and the method may need them. If the peer's announcement has failed, the status of
    /// that.
    fn as_graph_call(&self, envelope: &Envelope) -> Result<Request, Status> {
        let (path, metadata) = (envelope.path(), envelope.request_metadata());
        if let Some((name, _)) = metadata.iter().find(|(name, _)| !HINTS.contains(name)) {
            let call = format!("the call of {path} has the metadata {name:?}");
            let unknown = no_place_for_metadata(&call);
            return Err(self.lacking(&call, "the extension services", unknown));
        }
        let message = envelope.message();
        let tensor = Tensor {
            dtype: DType::UInt8,
            shape: Shape::vector(message.len()),
            is_dead: false,
            data: message,
        };
        let call = GraphCall::new(path)
            .with_feed(REQUEST_FEED, tensor)
            .with_fetch(RESPONSE_FETCH);
        Ok(Request::StarRunGraph(Box::new(call)))
    }

    /// Sends the calls that waited until the peer said what it knows.
    pub(crate) fn release_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            let Waiting { id, request, .. } = waiting;
            let timeout_ms = match self.has(Features::DEADLINE) {
                true => waiting.timeout_ms,
                false => 0,
            };
            let Some(call) = self.calls.find_mut(id) else {
                continue;
            };
            // The peer hears of a deadline that is too late by as long as this call has waited, so
            // it is told when the time is over, too.
            call.is_deadline_sent = false;
            if self.has_ended(id) {
                self.finish(id, Err(gone()));
                continue;
            }
            if let Request::Stream(envelope) = &request {
                self.release_stream(id, timeout_ms, envelope);
                continue;
            }
            let request = match self.shaped(request) {
                Ok(request) => request,
                Err(status) => {
                    self.finish(id, Err(status));
                    continue;
                }
            };
            let common = self.common();
            let limits = self.reader.limits.between(common);
            let mut frame = self.outgoing.empty_frame();
            let encoded = element_types::check_request(common, &request).and_then(|()| {
                let records = &mut self.outgoing.records;
                encode::request(&mut frame, id.raw(), timeout_ms, &request, &limits, records)
            });
            match encoded {
                Ok(()) => {
                    frame.token = id.raw();
                    self.outgoing.push(frame);
                    if let Some(call) = self.calls.find_mut(id) {
                        call.expected = Expected::of(request);
                    }
                }
                Err(status) => {
                    self.outgoing.recycle(frame);
                    self.finish(id, Err(status));
                }
            }
        }
    }

    pub(crate) fn begin_unary(
        &mut self,
        id: SlotId,
        header: ResponseHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let len = self.checked_payload(&header, "a unary answer")?;
        let allowed_max = len.min(HEAD_BYTES_MAX as u64);
        let place = "the head of a unary answer";
        let head_bytes = PeerViolation::checked_length(place, header.names_bytes, allowed_max)?;
        let whole = Whole {
            what: ResponsePart::Unary { id, head_bytes },
            len_bytes: len as usize,
            behind_bytes: 0,
        };
        self.read_message(id, whole, len - head_bytes as u64, cursor, landings)
    }

    pub(crate) fn unary_landed(&mut self, id: SlotId, head_bytes: usize, bytes: Buffer) {
        let result = Envelope::decode_answer(head_bytes, bytes);
        let result = result.map(Response::Unary).map_err(|malformed| {
            Status::new(Code::DataLoss, malformed.to_string()).because(Reason::Peer)
        });
        self.complete(id, result);
    }
}

/// What a graph call needs its peer to have announced: one with a span, with types or shapes that
/// star does not have, or with more tensors than originals take.
#[inline]
pub(crate) fn wanted_of_call(call: &GraphCall) -> Features {
    let if_so = |is_so, feature| if is_so { feature } else { Features::NONE };
    let count = call.feeds.len().max(call.fetches.len());
    let are_of_star = (call.feeds.iter()).all(|(_, tensor)| is_of_star(&tensor.shape));
    element_types::wanted_of_call(call)
        | if_so(call.trace.is_some(), Features::TRACES)
        | if_so(count > STAR_RECORDS_MAX, Features::MANY_TENSORS)
        | if_so(!are_of_star, Features::PACKED_SHAPES)
}

fn no_place_for_metadata(call: &str) -> Status {
    let text = format!(
        "{call}, and the peer does not know the extension services, without which star carries \
         none; call it without metadata or over gRPC, or let the peer run a version of grpcxx that \
         announces services"
    );
    Status::new(Code::FailedPrecondition, text)
}

/// Metadata that say where a call was made and not what it asks for: the trace context of W3C. They
/// are left out where they cannot travel.
const HINTS: [&str; 2] = [TraceContext::METADATA, "tracestate"];

/// The feed that has the message of a request, where a call by path travels as a graph call.
pub const REQUEST_FEED: &str = "request";

/// The fetch that has the message of the answer there.
pub const RESPONSE_FETCH: &str = "response";
