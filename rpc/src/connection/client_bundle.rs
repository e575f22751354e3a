//! Requests and answers that share a frame, as a client sends and reads them.

use grpcxx_memory::Buffer;
use grpcxx_transport::Next;
use smallvec::SmallVec;

use super::client::{Call, ClientConnection, Expected, NO_CALL};
use super::client_inbound::{Inbound, gone};
use super::cursor::Cursor;
use super::encode;
use super::landings::message_in_any_case;
use super::records::tensor_memory;
use super::slots::SlotId;
use super::{ConnectionLimits, Landings, PeerViolation};
use crate::wire::{
    AnswerForm, BUNDLE_BYTES_MAX, BUNDLE_METHOD, BundleReader, BundledReceive, Features, Malformed,
    Problem, RECEIVE_BYTES, RECORD_BYTES, RequestHeader, ResponseHeader, decode_record,
};
use crate::{Request, Response, Status, Tensor, TensorMeta};

impl ClientConnection {
    /// Queues a request in a frame with others, if it is for one tensor and the peer knows that.
    ///
    /// Such a request leaves even if its call ends before, since it may say what a number stands for.
    #[inline]
    pub(super) fn queue_bundled(&mut self, id: SlotId, timeout_ms: i32, request: &Request) -> bool {
        let Request::RecvTensor { step_id, key } = request else {
            return false;
        };
        if !self.has(Features::BUNDLES) {
            return false;
        }
        let key = self.key_numbers.refer(key);
        let request = BundledReceive {
            tag: id.raw(),
            step_id: *step_id,
            timeout_ms,
        };
        let frame = (self.outgoing).bundle(RECEIVE_BYTES + key.len_bytes(), |frame| {
            let header = RequestHeader {
                method: BUNDLE_METHOD,
                ..RequestHeader::default()
            };
            frame.bytes_mut().extend_from_slice(&header.encode());
            frame.token = NO_CALL;
        });
        request.encode(frame.bytes_mut());
        key.encode(frame.bytes_mut());
        encode::note_length(frame);
        true
    }

    /// Takes a frame of answers as soon as all of it is there.
    pub(super) fn begin_bundle(
        &mut self,
        header: ResponseHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let allowed_max = BUNDLE_BYTES_MAX as u64;
        PeerViolation::check_length("a bundle of answers", header.payload_bytes, allowed_max)?;
        let len = header.payload_bytes as usize;
        if let Some(answers) = cursor.slice(len) {
            self.unbundle(answers, landings)?;
            return Ok(None);
        }
        let memory = message_in_any_case(landings, len);
        self.want(Inbound::Bundle { answers: None }, memory, cursor)
    }

    /// Takes a frame of answers that has landed.
    pub(super) fn read_bundle(&mut self, landings: &mut dyn Landings) -> Result<(), PeerViolation> {
        let inbound = std::mem::replace(&mut self.inbound, Inbound::Header);
        let Inbound::Bundle {
            answers: Some(answers),
        } = inbound
        else {
            unreachable!("the link shows bytes only when its landing is done");
        };
        self.unbundle(&answers, landings)
    }

    fn unbundle(
        &mut self,
        answers: &[u8],
        landings: &mut dyn Landings,
    ) -> Result<(), PeerViolation> {
        let mut reader = BundleReader::new("bundle of answers", answers);
        let mut index = 0;
        let mut recent = None;
        while !reader.is_empty() {
            let (tag, form) = reader.answer(recent.is_some())?;
            let meta = match (form, recent) {
                (AnswerForm::AsBefore, Some(meta)) => meta,
                (AnswerForm::AsBefore | AnswerForm::Whole, _) => {
                    let head: &[u8; RECORD_BYTES] = reader.chunk("a record")?;
                    decode_record(head).map_err(|cause| PeerViolation::Record { index, cause })?
                }
            };
            let data = data_of(&mut reader, &meta)?;
            self.take_answer(tag, &meta, data, landings)?;
            recent = Some(meta);
            index += 1;
        }
        Ok(())
    }

    fn take_answer(
        &mut self,
        tag: u64,
        meta: &TensorMeta,
        data: &[u8],
        landings: &mut dyn Landings,
    ) -> Result<(), PeerViolation> {
        let id = SlotId::from_raw(tag);
        let Some(
            call @ Call {
                is_sent: true,
                is_answered: false,
                expected: Expected::Tensors { count: 1 },
                ..
            },
        ) = self.calls.get_mut(id)
        else {
            return Err(PeerViolation::UnknownTag { found: tag });
        };
        call.is_answered = true;
        let result = match call.is_ended {
            true => Err(gone()),
            false => small_tensor(call.token, meta, data, &self.limits, landings),
        };
        self.complete(id, result);
        Ok(())
    }
}

/// The response that is one tensor whose data is there as a whole.
#[inline]
pub(super) fn small_tensor(
    token: u64,
    meta: &TensorMeta,
    data: &[u8],
    limits: &ConnectionLimits,
    landings: &mut dyn Landings,
) -> Result<Response, Status> {
    let data = match data {
        [] => Buffer::new(),
        data => {
            let mut buffer = tensor_memory(token, 0, meta, limits, landings)?;
            buffer.copy_from_slice(data);
            buffer.freeze()
        }
    };
    Ok(Response::Tensors(SmallVec::from_buf([Tensor {
        dtype: meta.dtype,
        shape: meta.shape.clone(),
        is_dead: meta.is_dead,
        data,
    }])))
}

fn data_of<'a>(reader: &mut BundleReader<'a>, meta: &TensorMeta) -> Result<&'a [u8], Malformed> {
    match usize::try_from(meta.data_bytes) {
        Ok(len) => reader.bytes("the data of a tensor", len),
        Err(_) => Err(reader.malformed(
            "the data of a tensor",
            Problem::Short {
                wanted_bytes: meta.data_bytes,
                left_bytes: reader.left_bytes(),
            },
        )),
    }
}
