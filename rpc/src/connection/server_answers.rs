//! How a server answers requests, and what it gives back of answers that nobody gets.

use grpcxx_memory::BufferMut;
use grpcxx_transport::Frame;
use smallvec::SmallVec;

use super::heads_first::{self, suits};
use super::server::{Cancelled, RequestId, ServerConnection, State, Undelivered};
use super::slots::SlotId;
use super::{ConnectionLimits, encode};
use crate::wire::{Announcement, Features};
use crate::{Code, Request, Response, Status, Tensor, Text};

/// What a successful answer consists of.
#[derive(Debug)]
pub(super) enum Expected {
    Message {
        announce: bool,
    },
    Tensors {
        request: Request,
        /// What is on its way, to be given back if it gets lost.
        delivering: SmallVec<[Tensor; 1]>,
    },
    Fetched {
        names: Vec<Text>,
    },
}

impl ServerConnection {
    /// Answers a request that the service shall not see, or no longer care for.
    pub(super) fn refuse(&mut self, id: SlotId, status: Status) {
        let Some(served) = self.served.get_mut(id) else {
            return;
        };
        let state = served.state;
        if state == State::Answered {
            return;
        }
        let none = Expected::Message { announce: false };
        let expected = std::mem::replace(&mut served.expected, none);
        self.respond(id, Err(status), &mut |_| None);
        if state == State::HandedOut {
            self.cancelled.push_back(Cancelled {
                id: RequestId(id),
                expected,
            });
        }
    }

    /// Queues the one answer of a request.
    pub(super) fn respond(
        &mut self,
        id: SlotId,
        result: Result<Response, Status>,
        memory: &mut dyn FnMut(usize) -> Option<BufferMut>,
    ) {
        let Err(result) = self.bundle(id, result) else {
            return;
        };
        let lends = self.lends;
        let heads_first = self.has(Features::HEADS_FIRST);
        let served = self.served.get_mut(id).expect("the caller has found it");
        let announcement = match served.expected {
            Expected::Message { announce: true } => Some(self.announcement()),
            _ => None,
        };
        let served = self.served.get_mut(id).expect("the caller has found it");
        let mut frame = self.outgoing.empty_frame();
        let encoded = match &result {
            Ok(Response::Tensors(tensors))
                if heads_first && served.expected.keys() == tensors.len() && suits(tensors) =>
            {
                let mut memory = |len| if lends { memory(len) } else { None };
                heads_first::response(&mut frame, served.tag, tensors, &self.limits, &mut memory)
            }
            Ok(response) => served.expected.encode(
                &mut frame,
                served.tag,
                response,
                announcement.as_ref(),
                &self.limits,
            ),
            Err(status) => Err(status.clone()),
        };
        if let Err(status) = encoded {
            frame.clear();
            encode::error_response(&mut frame, served.tag, &status, &self.limits);
        } else if let (Expected::Tensors { delivering, .. }, Ok(Response::Tensors(tensors))) =
            (&mut served.expected, result)
        {
            *delivering = tensors;
        }
        frame.token = id.raw();
        self.outgoing.push(frame);
        self.answered(id);
    }

    /// Notes that the one answer of a request is queued.
    #[inline]
    pub(super) fn answered(&mut self, id: SlotId) {
        let served = self.served.get_mut(id).expect("its answer was just queued");
        served.state = State::Answered;
        self.tags.remove(&served.tag);
        self.deadlines.remove(id.slot);
    }

    /// What an answer can say about this side.
    fn announcement(&self) -> Announcement {
        let offer = if self.common().intersects(Features::MEDIA) {
            self.offer.clone()
        } else {
            Vec::new()
        };
        Announcement {
            features: self.announced,
            offer,
        }
    }

    /// Saves the tensors of an answer that comes between a cancel and the moment the service hears of it.
    pub(super) fn rescue(&mut self, id: RequestId, result: Result<Response, Status>) {
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
                id: Some(id),
                request: request.clone(),
                tensors,
            });
        }
    }

    pub(super) fn give_back(&mut self, id: RequestId, expected: Expected) {
        if let Expected::Tensors {
            request,
            delivering,
        } = expected
            && !delivering.is_empty()
        {
            self.undelivered.push_back(Undelivered {
                id: Some(id),
                request,
                tensors: delivering,
            });
        }
    }

    /// Gives a tensor back whose request was never handed out.
    pub(super) fn give_back_unasked(&mut self, request: Request, tensor: Tensor) {
        self.undelivered.push_back(Undelivered {
            id: None,
            request,
            tensors: SmallVec::from_buf([tensor]),
        });
    }
}

impl Expected {
    /// How many tensors the answer has, if it is tensors without names.
    fn keys(&self) -> usize {
        match self {
            Self::Tensors { request, .. } => key_count(request),
            Self::Message { .. } | Self::Fetched { .. } => 0,
        }
    }

    /// Fills an empty frame with the answer.
    fn encode(
        &self,
        frame: &mut Frame,
        tag: u64,
        response: &Response,
        announcement: Option<&Announcement>,
        limits: &ConnectionLimits,
    ) -> Result<(), Status> {
        match (self, response) {
            (Self::Message { .. }, Response::Message(body)) => {
                encode::message_response(frame, tag, body, announcement, limits)
            }
            (Self::Tensors { request, .. }, Response::Tensors(tensors))
                if key_count(request) == tensors.len() =>
            {
                encode::tensors_response(frame, tag, tensors, limits)
            }
            (Self::Tensors { request, .. }, Response::Tensors(tensors)) => Err(Status::new(
                Code::Internal,
                format!(
                    "the service answered {} keys with {} tensors",
                    key_count(request),
                    tensors.len()
                ),
            )),
            (Self::Fetched { names }, Response::Fetched(fetched)) => {
                encode::fetched_response(frame, tag, names, fetched, limits)
            }
            (
                Self::Message { .. } | Self::Tensors { .. } | Self::Fetched { .. },
                Response::Message(_) | Response::Tensors(_) | Response::Fetched(_),
            ) => Err(Status::new(
                Code::Internal,
                "the service answered with another kind of response than the method has",
            )),
        }
    }
}

fn key_count(request: &Request) -> usize {
    match request {
        Request::FuseRecvTensor { keys, .. } => keys.len(),
        Request::RecvTensor { .. } => 1,
        Request::Message { .. } | Request::StarRunGraph(_) => 0,
    }
}
