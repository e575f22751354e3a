//! Requests and answers that share a frame, as a server reads and sends them.

use std::collections::VecDeque;
use std::iter;

use grpcxx_transport::{Frame, Next, Outcome, SlotId, Time};

use crate::connection::cursor::Cursor;
use crate::connection::landings::message_in_any_case;
use crate::connection::reader::{Whole, read_into};
use crate::connection::server::answers::Expected;
use crate::connection::server::inbound::{Arriving, RequestPart, tensors_of};
use crate::connection::server::{RequestId, ServerConnection};
use crate::connection::{COALESCE_BYTES_MAX, ImmediateHit, Landings, PeerViolation};
use crate::extensions::element_types;
use crate::wire::{
    AnswerForm, BUNDLE_BYTES_MAX, BUNDLE_TAG, BundleReader, BundledReceive, Features, RECORD_BYTES,
    RequestHeader, ResponseHeader, ShapeForms, encode_record,
};
use crate::{HeldTensor, Request, Response, Right, Status, Tensor, TensorMeta, Text};

/// The answers that share frames, by frame.
///
/// Invariant: a list that is not in `free` belongs to a frame that waits for the link or is at the
/// link.
#[derive(Debug, Default)]
pub(crate) struct Bundled {
    lists: Vec<Answers>,
    free: Vec<u32>,
    /// What the tensor of the last answer is, with its record head.
    recent: Option<(TensorMeta, [u8; RECORD_BYTES])>,
    /// Whether that is the last head in the frame that was begun last.
    is_written: bool,
    /// Answers of all lists that no request has a slot for.
    immediate_hits: usize,
    /// Tensors that were immediate hits and need not be held any longer.
    released: Vec<HeldTensor>,
    /// Those that did not reach the link.
    lost: VecDeque<HeldTensor>,
}

/// The answers of one frame.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Those of requests, which have slots.
    requested: Vec<SlotId>,
    /// Tensors that were immediate hits, which are held until they have left.
    taken: Vec<HeldTensor>,
    /// How many were immediate hits and stay with their owner.
    kept: usize,
}

impl ServerConnection {
    /// Takes a frame of requests as soon as all of it is there.
    pub(crate) fn begin_bundle(
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
        let whole = Whole {
            what: RequestPart::Requests { received },
            len_bytes: len,
            behind_bytes: 0,
        };
        // Nobody else says what numbers stand for.
        let memory = message_in_any_case(landings, len);
        read_into(self, whole, Ok(memory), cursor, landings)
    }

    pub(crate) fn unbundle(
        &mut self,
        received: Time,
        requests: &[u8],
        landings: &mut dyn Landings,
    ) -> Result<(), PeerViolation> {
        if let Some(right) = self.gate.missing(Right::Step) {
            return self.refuse_bundle(received, requests, right, landings);
        }
        let keys_before = self.numbered_keys.bytes();
        let mut reader = BundleReader::new("bundle of requests", requests);
        while !reader.is_empty() {
            let receive = reader.receive()?;
            let BundledReceive { tag, step_id, .. } = receive;
            let key = self.numbered_keys.resolve(reader.key()?, landings)?;
            // What came first is served first.
            let may_hit = self.ready.is_empty() && !self.tags.contains_key(&tag);
            let immediate_hit = match may_hit {
                true => landings.immediate_hit(step_id, key, COALESCE_BYTES_MAX),
                false => None,
            };
            match immediate_hit {
                Some(ImmediateHit::Borrowed(held, tensor)) => {
                    self.answer_taken(received, &receive, held, tensor)?;
                }
                Some(ImmediateHit::Owned(tensor)) => {
                    self.answer_kept(received, &receive, &tensor)?
                }
                None => {
                    let key = key.clone();
                    self.deliver_bundled(received, &receive, key)?;
                }
            }
        }
        self.count_new_keys(keys_before)
    }

    /// Counts the keys that have got numbers since these were kept, if their peer may keep more.
    #[inline]
    fn count_new_keys(&mut self, bytes_before: usize) -> Result<(), PeerViolation> {
        if self.numbered_keys.bytes() > bytes_before {
            self.holding.check_keys()?;
            self.count_keys();
        }
        Ok(())
    }

    /// Refuses all requests of a frame. Their keys keep their numbers, since the peer may get the
    /// right later.
    #[cold]
    fn refuse_bundle(
        &mut self,
        received: Time,
        requests: &[u8],
        right: Right,
        landings: &mut dyn Landings,
    ) -> Result<(), PeerViolation> {
        let keys_before = self.numbered_keys.bytes();
        let mut reader = BundleReader::new("bundle of requests", requests);
        while !reader.is_empty() {
            let receive = reader.receive()?;
            self.numbered_keys.resolve(reader.key()?, landings)?;
            let arriving = self.admit_bundled(received, &receive)?;
            self.refuse(arriving.id, right.missing());
        }
        self.count_new_keys(keys_before)
    }

    #[inline(never)]
    fn deliver_bundled(
        &mut self,
        received: Time,
        receive: &BundledReceive,
        key: Text,
    ) -> Result<(), PeerViolation> {
        let arriving = self.admit_bundled(received, receive)?;
        let step_id = receive.step_id;
        let request = Request::RecvTensor { step_id, key };
        let expected = tensors_of(&request);
        self.deliver(arriving, request, expected);
        Ok(())
    }

    fn admit_bundled(
        &mut self,
        received: Time,
        receive: &BundledReceive,
    ) -> Result<Arriving, PeerViolation> {
        let header = RequestHeader {
            tag: receive.tag,
            timeout_ms: receive.timeout_ms,
            ..RequestHeader::default()
        };
        self.admit(received, &header)
    }

    /// Answers a request whose tensor was taken out of its step, and which therefore has no slot.
    #[inline]
    fn answer_taken(
        &mut self,
        received: Time,
        receive: &BundledReceive,
        held: HeldTensor,
        tensor: &Tensor,
    ) -> Result<(), PeerViolation> {
        let answers = match self.append_answer(receive.tag, tensor) {
            Ok(answers) => answers,
            Err(status) => {
                self.bundled.released.push(held);
                return self.refuse_bundled(received, receive, status);
            }
        };
        answers.taken.push(held);
        self.bundled.immediate_hits += 1;
        Ok(())
    }

    /// Answers with a tensor that its owner keeps.
    #[inline(never)]
    fn answer_kept(
        &mut self,
        received: Time,
        receive: &BundledReceive,
        tensor: &Tensor,
    ) -> Result<(), PeerViolation> {
        let answers = match self.append_answer(receive.tag, tensor) {
            Ok(answers) => answers,
            Err(status) => return self.refuse_bundled(received, receive, status),
        };
        answers.kept += 1;
        self.bundled.immediate_hits += 1;
        Ok(())
    }

    /// Tensors that were immediate hits and need not be held any longer.
    pub fn drain_released(&mut self) -> impl Iterator<Item = HeldTensor> {
        self.bundled.released.drain(..)
    }

    /// The next immediate hit that did not reach the link, for the step that it came from.
    pub fn poll_lost(&mut self) -> Option<HeldTensor> {
        self.bundled.lost.pop_front()
    }

    #[cold]
    fn refuse_bundled(
        &mut self,
        received: Time,
        receive: &BundledReceive,
        status: Status,
    ) -> Result<(), PeerViolation> {
        let arriving = self.admit_bundled(received, receive)?;
        self.refuse(arriving.id, status);
        Ok(())
    }

    /// Lets an answer share a frame with others, or gives it back if it cannot.
    #[inline]
    #[expect(
        clippy::result_large_err,
        reason = "the result comes back whole, without an allocation"
    )]
    pub(crate) fn bundle(
        &mut self,
        id: SlotId,
        result: Result<Response, Status>,
    ) -> Result<(), Result<Response, Status>> {
        let tensors = match result {
            Ok(Response::Tensors(tensors)) if self.has(Features::BUNDLES) => tensors,
            result => return Err(result),
        };
        let served = self.served.find(id).expect("the caller has found it");
        let Expected::Tensors {
            request: Request::RecvTensor { .. },
            ..
        } = &served.expected
        else {
            return Err(Ok(Response::Tensors(tensors)));
        };
        let tag = served.tag;
        let answers = match &tensors[..] {
            [tensor] if tensor.data.len() <= COALESCE_BYTES_MAX => self.append_answer(tag, tensor),
            _ => return Err(Ok(Response::Tensors(tensors))),
        };
        let answers = match answers {
            Ok(answers) => answers,
            Err(status) => return Err(Err(status)),
        };
        answers.requested.push(id);
        let served = self.served.find_mut(id).expect("the caller has found it");
        if let Expected::Tensors { delivering, .. } = &mut served.expected {
            *delivering = tensors;
        }
        self.answered(id);
        Ok(())
    }

    /// Appends an answer to the frame that others share, or to a new one. Returns those that it
    /// shares it with.
    #[inline]
    fn append_answer(&mut self, tag: u64, tensor: &Tensor) -> Result<&mut Answers, Status> {
        let common = self.common();
        let bundled = &mut self.bundled;
        let recent = bundled.recent.as_ref();
        if !recent.is_some_and(|(meta, _)| meta.is_of(tensor)) {
            element_types::check(common, iter::once(tensor.dtype))?;
            bundled.note_record(tensor, self.answer_limits.shapes)?;
        }
        let data = &tensor.data;
        let frame = (self.outgoing).bundle(ANSWER_BYTES_MAX + data.len(), |frame| {
            let header = ResponseHeader {
                tag: BUNDLE_TAG,
                ..ResponseHeader::default()
            };
            frame.bytes_mut().extend_from_slice(&header.encode());
            frame.token = bundled.begin();
        });
        let bytes = frame.bytes_mut();
        let mut head = [AnswerForm::AsBefore as u8; HEAD_BYTES];
        head[..8].copy_from_slice(&tag.to_le_bytes());
        if std::mem::replace(&mut bundled.is_written, true) {
            bytes.extend_from_slice(&head);
        } else if let Some((_, record)) = &bundled.recent {
            head[8] = AnswerForm::Whole as u8;
            bytes.extend_from_slice(&head);
            bytes.extend_from_slice(record);
        }
        bytes.extend_from_slice(data);
        let list = SlotId::from_raw(frame.token).generation;
        Ok(&mut bundled.lists[list as usize])
    }

    /// Takes back a frame of answers that the link is done with. False if it is another.
    pub(crate) fn answers_sent(
        &mut self,
        frame: &Frame,
        outcome: Outcome,
        delivered: &mut impl FnMut(RequestId),
    ) -> bool {
        let Some((list, mut answers)) = self.bundled.take(frame) else {
            return false;
        };
        for id in answers.requested.drain(..) {
            self.answer_sent(id, outcome, delivered);
        }
        match outcome {
            Outcome::Done => self.bundled.released.append(&mut answers.taken),
            Outcome::Lost => self.bundled.lost.extend(answers.taken.drain(..)),
        }
        self.bundled.recycle(list, answers);
        true
    }
}

impl Bundled {
    /// Notes what the tensor of the next answer is.
    #[inline(never)]
    fn note_record(&mut self, tensor: &Tensor, forms: ShapeForms) -> Result<(), Status> {
        let record = encode_record(tensor, forms)?;
        self.is_written = false;
        self.recent = Some((tensor.meta(), record));
        Ok(())
    }

    /// The token of a new frame.
    fn begin(&mut self) -> u64 {
        self.is_written = false;
        let list = self.free.pop().unwrap_or_else(|| self.add_lists());
        let id = SlotId {
            slot: NO_SLOT,
            generation: list,
        };
        id.raw()
    }

    /// Makes two lists and returns one: a frame may be on its way while the next one begins, and a
    /// connection that is warm shall not allocate when that happens for the first time.
    #[cold]
    fn add_lists(&mut self) -> u32 {
        for _ in 0..2 {
            self.free.push(self.lists.len() as u32);
            self.lists.push(Answers {
                taken: Vec::with_capacity(TAKEN_AT_FIRST),
                ..Answers::default()
            });
        }
        self.free.pop().expect("two were made")
    }

    /// Answers that were given at once and have not left.
    pub(crate) fn immediate_hits(&self) -> usize {
        self.immediate_hits
    }

    /// Takes the list of a frame that the link is done with, if it is one of answers.
    fn take(&mut self, frame: &Frame) -> Option<(u32, Answers)> {
        let token = SlotId::from_raw(frame.token);
        (token.slot == NO_SLOT).then(|| {
            let answers = std::mem::take(&mut self.lists[token.generation as usize]);
            self.immediate_hits -= answers.taken.len() + answers.kept;
            (token.generation, answers)
        })
    }

    /// Gives an emptied list back that was taken, for use.
    fn recycle(&mut self, list: u32, mut answers: Answers) {
        answers.kept = 0;
        self.lists[list as usize] = answers;
        self.free.push(list);
    }
}

/// Most bytes of an answer beside its data.
const ANSWER_BYTES_MAX: usize = HEAD_BYTES + RECORD_BYTES;

/// Bytes of its tag and its form.
const HEAD_BYTES: usize = 8 + 1;

/// How many tensors a new list of answers has room for.
const TAKEN_AT_FIRST: usize = 4;

/// In a token, in place of a slot: it is the number of a list.
const NO_SLOT: u32 = u32::MAX;
