//! How a server answers requests, and what it gives back of answers that nobody gets.

use grpcxx_memory::BufferMut;
use grpcxx_transport::{Frame, SlotId};
use smallvec::SmallVec;

use crate::connection::encode;
use crate::connection::server::{
    Cancelled, RequestId, Served, ServerConnection, State, Undelivered,
};
use crate::extensions::element_types;
use crate::extensions::heads_first::server as heads_first;
use crate::wire::{Announcement, Features};
use crate::{Code, Names, Reason, Request, Response, Status, Tensor};

/// What a successful answer consists of.
#[derive(Debug)]
pub(crate) enum Expected {
    Message {
        announce: bool,
    },
    Tensors {
        request: Request,
        /// What is on its way, to be given back if it gets lost.
        delivering: SmallVec<[Tensor; 1]>,
    },
    Fetched {
        names: Names,
    },
    Unary,
    Stream {
        number: u32,
    },
}

impl ServerConnection {
    /// Answers a request that the service shall not see, or no longer care for.
    pub(crate) fn refuse(&mut self, id: SlotId, status: Status) {
        let Some(served) = self.served.find_mut(id) else {
            return;
        };
        let state = served.state;
        if state == State::Answered {
            return;
        }
        let none = Expected::Message { announce: false };
        let expected = std::mem::replace(&mut served.expected, none);
        if let Expected::Stream { number } = expected {
            self.forget_stream(id, number);
        }
        self.respond(id, Err(status), &mut |_| None);
        if state == State::HandedOut {
            self.cancelled.push_back(Cancelled {
                id: RequestId(id),
                expected,
            });
        }
    }

    /// Queues the one answer of a request.
    pub(crate) fn respond(
        &mut self,
        id: SlotId,
        result: Result<Response, Status>,
        memory: &mut dyn FnMut(usize) -> Option<BufferMut>,
    ) {
        let Err(result) = self.bundle(id, result) else {
            return;
        };
        let result = match result {
            Ok(Response::Fetched(_) | Response::Message(_)) if self.owes_much() => {
                Err(self.too_much_unsent())
            }
            result => result,
        };
        let mut frame = self.outgoing.empty_frame();
        let encoded = match &result {
            Ok(Response::Tensors(tensors)) => self.encode_tensors(id, &mut frame, tensors, memory),
            Ok(response) => (self.encode_other(id, &mut frame, response))
                .and_then(|()| self.may_owe(frame.len_bytes())),
            Err(status) => Err(status.clone()),
        };
        match result {
            Ok(Response::Tensors(tensors)) if encoded.is_ok() => {
                if let Some(served) = self.served.find_mut(id)
                    && let Expected::Tensors { delivering, .. } = &mut served.expected
                {
                    *delivering = tensors;
                }
            }
            Ok(Response::Unary(envelope)) => envelope.recycle(),
            _ => {}
        }
        self.queue_answer(id, frame, encoded);
    }

    /// Answers a request with tensors that their owner keeps: they are not given back if they do
    /// not reach the link. As of [`ServerConnection::try_answer_in`]. `false` says that nobody
    /// waits for the answer any more.
    pub fn answer_kept_in(
        &mut self,
        id: RequestId,
        tensors: &[Tensor],
        memory: &mut dyn FnMut(usize) -> Option<BufferMut>,
    ) -> bool {
        let is_outstanding = self.is_outstanding(id);
        if is_outstanding {
            let mut frame = self.outgoing.empty_frame();
            let encoded = self.encode_tensors(id.0, &mut frame, tensors, memory);
            self.queue_answer(id.0, frame, encoded);
        }
        is_outstanding
    }

    /// Fills an empty frame with tensors.
    fn encode_tensors(
        &self,
        id: SlotId,
        frame: &mut Frame,
        tensors: &[Tensor],
        memory: &mut dyn FnMut(usize) -> Option<BufferMut>,
    ) -> Result<(), Status> {
        let Served { tag, expected, .. } = self.served.find(id).expect("the caller has found it");
        expected.check(tensors)?;
        element_types::check(self.common(), tensors.iter().map(|tensor| tensor.dtype))?;
        if self.has(Features::HEADS_FIRST) && heads_first::suits(tensors) {
            let mut memory = |len| if self.lends { memory(len) } else { None };
            return heads_first::response(frame, *tag, tensors, &self.answer_limits, &mut memory);
        }
        encode::tensors_response(frame, *tag, tensors, &self.answer_limits)
    }

    /// Fills an empty frame with what is not tensors without names.
    fn encode_other(
        &mut self,
        id: SlotId,
        frame: &mut Frame,
        response: &Response,
    ) -> Result<(), Status> {
        let common = self.common();
        let Served { tag, expected, .. } = self.served.find(id).expect("the caller has found it");
        match (expected, response) {
            (Expected::Message { announce }, Response::Message(body)) => {
                let announcement = announce.then(|| self.announcement());
                encode::message_response(
                    frame,
                    *tag,
                    body,
                    announcement.as_ref(),
                    &self.answer_limits,
                )
            }
            (Expected::Fetched { names }, Response::Fetched(fetched)) => {
                let mut dtypes = fetched.iter().map(|(_, tensor)| tensor.dtype);
                element_types::check(common, &mut dtypes)?;
                let records = &mut self.outgoing.records;
                encode::fetched_response(frame, *tag, names, fetched, &self.answer_limits, records)
            }
            (Expected::Unary | Expected::Stream { .. }, Response::Unary(envelope)) => {
                encode::unary_response(frame, *tag, envelope, &self.answer_limits)
            }
            (
                Expected::Message { .. }
                | Expected::Tensors { .. }
                | Expected::Fetched { .. }
                | Expected::Unary
                | Expected::Stream { .. },
                Response::Message(_)
                | Response::Tensors(_)
                | Response::Fetched(_)
                | Response::Unary(_),
            ) => Err(other_kind()),
        }
    }

    /// Queues the one answer of a request: the frame, or why it cannot be sent.
    fn queue_answer(&mut self, id: SlotId, mut frame: Box<Frame>, encoded: Result<(), Status>) {
        if let Err(status) = encoded {
            let served = self.served.find(id).expect("the caller has found it");
            frame.clear();
            encode::error_response(&mut frame, served.tag, &status, &self.answer_limits);
        }
        frame.token = id.raw();
        // So that others pass between the chunks of one that is very long.
        let unsent_bytes = frame.len_bytes().min(self.unsent_bytes_max / 2);
        self.unsent_bytes += unsent_bytes;
        self.holding.note_unsent(self.unsent_bytes);
        if let Some(served) = self.served.find_mut(id) {
            served.unsent_bytes = unsent_bytes;
        }
        self.outgoing.push(frame);
        self.answered(id);
    }

    /// Why an answer is dropped that was made while the peer did not read those before.
    #[cold]
    fn too_much_unsent(&self) -> Status {
        let text = format!(
            "answers of {} bytes have not left this connection, as many as are allowed; read them first",
            self.unsent_bytes
        );
        Status::new(Code::ResourceExhausted, text).because(Reason::Limit)
    }

    /// Whether an answer of so many bytes may be made beside those that have not left the peer's
    /// connections.
    fn may_owe(&self, bytes: u64) -> Result<(), Status> {
        if self.holding.may_owe(bytes) {
            return Ok(());
        }
        let text = "answers have not left the connections of this peer that have as many bytes as \
                    are allowed; read them first";
        Err(Status::new(Code::ResourceExhausted, text).because(Reason::Limit))
    }

    /// Notes that the one answer of a request is queued.
    #[inline]
    pub(crate) fn answered(&mut self, id: SlotId) {
        let served = self
            .served
            .find_mut(id)
            .expect("its answer was just queued");
        served.state = State::Answered;
        if let Expected::Stream { number } = served.expected {
            self.streams.remove(number);
        }
        self.tags.remove(&served.tag);
        self.deadlines.remove(id.slot);
    }

    /// What an answer can say about this side.
    fn announcement(&self) -> Announcement {
        let offer = if self.common().intersects(Features::MEDIA) && self.may_offer() {
            self.offer.clone()
        } else {
            Vec::new()
        };
        let mut announcement = Announcement {
            features: self.announced,
            offer,
            ..Announcement::default()
        };
        self.add_proof(&mut announcement);
        announcement
    }

    /// Saves the tensors of an answer that comes between a cancel and the moment the service hears
    /// of it.
    pub(crate) fn rescue(&mut self, id: RequestId, result: Result<Response, Status>) {
        let Ok(Response::Tensors(tensors)) = result else {
            return;
        };
        let waiting = self
            .cancelled
            .iter_mut()
            .find(|cancelled| cancelled.id == id);
        if let Some(Cancelled {
            expected:
                Expected::Tensors {
                    request,
                    delivering,
                },
            ..
        }) = waiting
            && delivering.is_empty()
        {
            delivering.clone_from(&tensors);
            self.undelivered.push_back(Undelivered {
                id,
                request: request.clone(),
                tensors,
            });
        }
    }

    pub(crate) fn give_back(&mut self, id: RequestId, expected: Expected) {
        if let Expected::Tensors {
            request,
            delivering,
        } = expected
            && !delivering.is_empty()
        {
            self.undelivered.push_back(Undelivered {
                id,
                request,
                tensors: delivering,
            });
        }
    }
}

impl Expected {
    /// Refuses tensors that are not what was asked for.
    fn check(&self, tensors: &[Tensor]) -> Result<(), Status> {
        let Self::Tensors { request, .. } = self else {
            return Err(other_kind());
        };
        let keys = key_count(request);
        if keys == tensors.len() {
            return Ok(());
        }
        let text = format!(
            "the service answered {keys} keys with {} tensors",
            tensors.len()
        );
        Err(Status::new(Code::Internal, text))
    }
}

fn other_kind() -> Status {
    Status::new(
        Code::Internal,
        "the service answered with another kind of response than the method has",
    )
}

fn key_count(request: &Request) -> usize {
    match request {
        Request::FuseRecvTensor { keys, .. } => keys.len(),
        Request::RecvTensor { .. } => 1,
        Request::Message { .. }
        | Request::StarRunGraph(_)
        | Request::Unary(_)
        | Request::Stream(_) => 0,
    }
}
