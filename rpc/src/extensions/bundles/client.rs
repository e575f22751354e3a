//! Requests and answers that share a frame, as a client sends and reads them.

use grpcxx_transport::{Next, SlotId};

use super::answers::{SHARED_DATA_BYTES_MAX, block_bytes};
use crate::connection::calls::{Call, CallId};
use crate::connection::client::inbound::{ResponsePart, gone};
use crate::connection::client::{ClientConnection, NO_CALL};
use crate::connection::cursor::Cursor;
use crate::connection::landings::{message_in_any_case, whole};
use crate::connection::outgoing::Outgoing;
use crate::connection::reader::{Whole, read_into};
use crate::connection::small::small_data;
use crate::connection::{ConnectionLimits, Landings, PeerViolation};
use crate::wire::{
    AnswerForm, BUNDLE_BYTES_MAX, BUNDLE_METHOD, BundleReader, BundledReceive, KeyReference,
    RECEIVE_BYTES, RECORD_BYTES, RequestHeader, ResponseHeader, decode_record,
};
use crate::{Response, Status, TensorMeta, Text};

impl ClientConnection {
    /// Queues a request for one tensor in a frame with others, which the peer knows.
    ///
    /// Such a request leaves even if its call ends before, since it may say what a number stands
    /// for.
    #[inline(always)]
    pub(crate) fn queue_bundled(&mut self, id: SlotId, timeout_ms: i32, step_id: i64, key: &Text) {
        match self.key_numbers.find_recent(key) {
            Some(number) => {
                let key = KeyReference::Known { number };
                append(&mut self.outgoing, id, timeout_ms, step_id, &key);
            }
            None => self.queue_with_key(id, timeout_ms, step_id, key),
        }
    }

    #[inline(never)]
    fn queue_with_key(&mut self, id: SlotId, timeout_ms: i32, step_id: i64, key: &Text) {
        let key = self.key_numbers.refer(key);
        append(&mut self.outgoing, id, timeout_ms, step_id, &key);
    }

    /// Takes a frame of answers as soon as all of it is there.
    pub(crate) fn begin_bundle(
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
        let whole = Whole {
            what: ResponsePart::Answers,
            len_bytes: len,
            behind_bytes: 0,
        };
        let memory = message_in_any_case(landings, len);
        read_into(self, whole, Ok(memory), cursor, landings)
    }

    pub(crate) fn unbundle(
        &mut self,
        answers: &[u8],
        landings: &mut dyn Landings,
    ) -> Result<(), PeerViolation> {
        let read = self.read_answers(answers, landings);
        self.answers.close();
        read
    }

    fn read_answers(
        &mut self,
        answers: &[u8],
        landings: &mut dyn Landings,
    ) -> Result<(), PeerViolation> {
        let mut reader = BundleReader::new("bundle of answers", answers);
        let message_bytes = usize::try_from(self.reader.limits.message_bytes).unwrap_or(usize::MAX);
        let shared_bytes_max = message_bytes.min(SHARED_DATA_BYTES_MAX);
        // While a response lands, what is complete waits behind it and not among the answers.
        let is_in_order = self.aside.is_empty();
        let mut data_bytes = 0;
        let mut index = 0;
        while !reader.is_empty() {
            let (tag, form) = reader.answer(index > 0)?;
            if form == AnswerForm::Whole {
                data_bytes = self.cache(reader.chunk("a record")?, index)?;
            }
            let data = reader.bytes("the data of a tensor", data_bytes)?;
            let may_share = is_in_order && data_bytes <= shared_bytes_max;
            self.take_answer(tag, data, may_share, reader.left_bytes(), landings)?;
            index += 1;
        }
        Ok(())
    }

    /// Takes a record, and says how much data each answer has from now on.
    #[inline(never)]
    fn cache(&mut self, head: &[u8; RECORD_BYTES], index: usize) -> Result<usize, PeerViolation> {
        if !self.answers.knows(head) {
            let meta = decode_record(head, self.shapes_taken());
            let meta = meta.map_err(|cause| PeerViolation::Record { index, cause })?;
            self.answers.cache(head, meta);
        }
        // Data that has no place in memory is not all in the frame either.
        Ok(usize::try_from(self.answers.meta().data_bytes).unwrap_or(usize::MAX))
    }

    /// Takes an answer, behind which so many bytes of answers are left. Its data may share memory
    /// if its caller allows it.
    #[inline(always)]
    fn take_answer(
        &mut self,
        tag: u64,
        data: &[u8],
        may_share: bool,
        left_bytes: usize,
        landings: &mut dyn Landings,
    ) -> Result<(), PeerViolation> {
        let id = SlotId::from_raw(tag);
        if may_share
            && self.answers.has_room(data.len())
            && let Some(call) = self.calls.occupied(id)
            && call.get().awaits_shared_tensor()
        {
            // Before the data is copied: then it is still known to have nothing to drop.
            let Call { token, .. } = call.remove();
            self.note_answer(id);
            self.answers.push_shared(CallId(id), token, data);
            return Ok(());
        }
        self.take_apart(id, data, may_share, left_bytes, landings)
    }

    /// Takes an answer whose data does not fit into the present block of memory, or may not lie
    /// there, or which nobody waits for.
    #[inline(never)]
    fn take_apart(
        &mut self,
        id: SlotId,
        data: &[u8],
        may_share: bool,
        left_bytes: usize,
        landings: &mut dyn Landings,
    ) -> Result<(), PeerViolation> {
        let Some(call) = self.calls.find_mut(id).filter(|call| call.awaits_tensor()) else {
            return Err(PeerViolation::UnknownTag { found: id.raw() });
        };
        call.state.answer();
        let token = call.token;
        let may_share = may_share && call.shares_memory;
        if call.state.has_ended() {
            self.complete(id, Err(gone()));
            return Ok(());
        }
        let meta = self.answers.meta();
        if !self.aside.is_empty() {
            let result = small_tensor(token, meta, data, &self.reader.limits, landings);
            self.complete(id, result);
            return Ok(());
        }
        if let Some(len) = block_bytes(data.len(), left_bytes).filter(|_| may_share)
            && let Some(block) = landings.block(token, len)
            && let Ok(block) = whole(Ok(block), len as u64)
        {
            self.answers.open(block);
            self.answers.push_shared(CallId(id), token, data);
            self.calls.remove(id);
            self.note_answer(id);
            return Ok(());
        }
        match small_data((token, 0), meta, data, &self.reader.limits, landings) {
            Ok(data) => {
                self.answers.push(CallId(id), token, data);
                self.calls.remove(id);
                self.note_answer(id);
            }
            Err(status) => self.finish(id, Err(status)),
        }
        Ok(())
    }
}

/// The response that is one tensor whose data is there as a whole.
#[inline]
pub(crate) fn small_tensor(
    token: u64,
    meta: &TensorMeta,
    data: &[u8],
    limits: &ConnectionLimits,
    landings: &mut dyn Landings,
) -> Result<Response, Status> {
    let data = small_data((token, 0), meta, data, limits, landings)?;
    Ok(Response::from(meta.tensor(data)))
}

/// Appends a request to a frame that others share.
#[inline(always)]
fn append(
    outgoing: &mut Outgoing,
    id: SlotId,
    timeout_ms: i32,
    step_id: i64,
    key: &KeyReference<'_>,
) {
    let request = BundledReceive {
        tag: id.raw(),
        step_id,
        timeout_ms,
    };
    let frame = outgoing.bundle(RECEIVE_BYTES + key.len_bytes(), |frame| {
        let header = RequestHeader {
            method: BUNDLE_METHOD,
            ..RequestHeader::default()
        };
        frame.bytes_mut().extend_from_slice(&header.encode());
        frame.token = NO_CALL;
    });
    request.encode(key, frame.bytes_mut());
}
