//! Requests and answers that share a frame, as a server reads and sends them.

use grpcxx_transport::{Frame, Next, Time};

use super::cursor::Cursor;
use super::landings::message_in_any_case;
use super::server::{Expected, ServerConnection};
use super::server_inbound::{Inbound, tensors_of};
use super::slots::SlotId;
use super::{COALESCE_BYTES_MAX, Landings, PeerViolation, encode};
use crate::wire::{
    AnswerForm, BUNDLE_BYTES_MAX, BUNDLE_TAG, BundleReader, Features, RECORD_BYTES, RequestHeader,
    ResponseHeader, encode_record,
};
use crate::{Request, Response, Status};

/// The requests whose answers share frames, by frame.
///
/// Invariant: a list that is not in `free` belongs to a frame that waits for the link or is at the link.
#[derive(Debug, Default)]
pub(super) struct Bundled {
    lists: Vec<Vec<SlotId>>,
    free: Vec<u32>,
    /// The record head written last into the frame that was begun last.
    recent: Option<[u8; RECORD_BYTES]>,
}

impl ServerConnection {
    /// Takes a frame of requests as soon as all of it is there.
    pub(super) fn begin_bundle(
        &mut self,
        received: Time,
        header: &RequestHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let allowed_max = BUNDLE_BYTES_MAX as u64;
        PeerViolation::check_length("a bundle of requests", header.payload_bytes, allowed_max)?;
        let len = header.payload_bytes as usize;
        if let Some(requests) = cursor.slice(len) {
            self.unbundle(received, requests, landings)?;
            return Ok(None);
        }
        // Nobody else says what numbers stand for.
        let memory = message_in_any_case(landings, len);
        let inbound = Inbound::Bundle {
            received,
            requests: None,
        };
        Ok(self.want(inbound, memory, cursor))
    }

    /// Takes a frame of requests that has landed.
    pub(super) fn read_bundle(&mut self, landings: &mut dyn Landings) -> Result<(), PeerViolation> {
        let inbound = std::mem::replace(&mut self.inbound, Inbound::Header);
        let Inbound::Bundle {
            received,
            requests: Some(requests),
        } = inbound
        else {
            unreachable!("the link shows bytes only when its landing is done");
        };
        self.unbundle(received, &requests, landings)
    }

    fn unbundle(
        &mut self,
        received: Time,
        requests: &[u8],
        landings: &mut dyn Landings,
    ) -> Result<(), PeerViolation> {
        let mut reader = BundleReader::new("bundle of requests", requests);
        while !reader.is_empty() {
            let receive = reader.receive()?;
            let key = self.numbered_keys.resolve(reader.key()?, landings)?;
            let header = RequestHeader {
                tag: receive.tag,
                timeout_ms: receive.timeout_ms,
                ..RequestHeader::default()
            };
            let arriving = self.admit(received, &header)?;
            let request = Request::RecvTensor {
                step_id: receive.step_id,
                key,
            };
            let expected = tensors_of(&request);
            self.deliver(arriving, request, expected);
        }
        Ok(())
    }

    /// Lets an answer share a frame with others, or gives it back if it cannot.
    #[inline]
    pub(super) fn bundle(
        &mut self,
        id: SlotId,
        result: Result<Response, Status>,
    ) -> Result<(), Result<Response, Status>> {
        let tensors = match result {
            Ok(Response::Tensors(tensors)) if self.has(Features::BUNDLES) => tensors,
            result => return Err(result),
        };
        let served = self.served.get_mut(id).expect("the caller has found it");
        let Expected::Tensors {
            request: Request::RecvTensor { .. },
            delivering,
        } = &mut served.expected
        else {
            return Err(Ok(Response::Tensors(tensors)));
        };
        let record = match &tensors[..] {
            [tensor] if tensor.data.len() <= COALESCE_BYTES_MAX => encode_record(tensor),
            _ => return Err(Ok(Response::Tensors(tensors))),
        };
        let record = match record {
            Ok(record) => record,
            Err(status) => return Err(Err(status)),
        };
        let data = &tensors[0].data;
        let bundled = &mut self.bundled;
        let frame = (self.outgoing).bundle(ANSWER_BYTES_MAX + data.len(), |frame| {
            let header = ResponseHeader {
                tag: BUNDLE_TAG,
                ..ResponseHeader::default()
            };
            frame.bytes_mut().extend_from_slice(&header.encode());
            frame.token = bundled.begin();
        });
        let bytes = frame.bytes_mut();
        bytes.extend_from_slice(&served.tag.to_le_bytes());
        if bundled.recent == Some(record) {
            bytes.push(AnswerForm::AsBefore as u8);
        } else {
            bytes.push(AnswerForm::Whole as u8);
            bytes.extend_from_slice(&record);
            bundled.recent = Some(record);
        }
        bytes.extend_from_slice(data);
        encode::note_length(frame);
        bundled.add(frame, id);
        *delivering = tensors;
        self.answered(id);
        Ok(())
    }
}

impl Bundled {
    /// The token of a new frame.
    fn begin(&mut self) -> u64 {
        self.recent = None;
        let list = self.free.pop().unwrap_or_else(|| {
            self.lists.push(Vec::new());
            self.lists.len() as u32 - 1
        });
        let id = SlotId {
            slot: NO_SLOT,
            generation: list,
        };
        id.raw()
    }

    fn add(&mut self, frame: &Frame, id: SlotId) {
        let list = SlotId::from_raw(frame.token).generation;
        self.lists[list as usize].push(id);
    }

    /// Takes the list of a frame that the link is done with, if it is one of answers.
    pub(super) fn take(&mut self, frame: &Frame) -> Option<(u32, Vec<SlotId>)> {
        let token = SlotId::from_raw(frame.token);
        (token.slot == NO_SLOT).then(|| {
            let list = std::mem::take(&mut self.lists[token.generation as usize]);
            (token.generation, list)
        })
    }

    /// Gives a list back that was taken, for use.
    pub(super) fn recycle(&mut self, list: u32, mut ids: Vec<SlotId>) {
        ids.clear();
        self.lists[list as usize] = ids;
        self.free.push(list);
    }
}

/// Most bytes of an answer beside its data.
const ANSWER_BYTES_MAX: usize = 8 + 1 + RECORD_BYTES;

/// In a token, in place of a slot: it is the number of a list.
const NO_SLOT: u32 = u32::MAX;
