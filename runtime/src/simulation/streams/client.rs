//! The client's end of a stream.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use fastrand::Rng;
use futures_util::Stream;
use grpcxx_memory::Buffer;
use grpcxx_rpc::{SHARED_MESSAGE_BYTES_MAX, Status};
use prost::Message;

use super::{ANSWER, Ending, Numbered, REQUEST, Reading, StreamKind, StreamPlan, message};
use crate::service::{Chunk, PipeSender, StreamCall, StreamStart, Streaming};
use crate::simulation::model::Watcher;

/// The client's end of a stream.
pub(in crate::simulation) struct OpenStream {
    pub(super) plan: StreamPlan,
    reader: Reader,
    messages: Option<PipeSender>,
    sent: u64,
    /// Whether the last look at it found something.
    pub(super) is_busy: bool,
}

enum Reader {
    Begins(StreamCall<Numbered>),
    Reads(Streaming<Numbered>),
}

impl OpenStream {
    pub(super) fn new(plan: StreamPlan, start: StreamStart) -> Self {
        Self {
            plan,
            reader: Reader::Begins(StreamCall::new(start.raw)),
            messages: Some(start.messages),
            sent: 0,
            is_busy: false,
        }
    }

    /// Goes on as far as the client wants to. Returns how the stream has ended, if it has.
    pub(super) fn poll(
        &mut self,
        id: usize,
        watcher: &Watcher,
        random: &mut Rng,
    ) -> Option<Result<(), Status>> {
        let sends_more = self.send(id, watcher, random);
        let taken_max = match self.plan.reading {
            Reading::All => usize::MAX,
            Reading::Slowly if self.is_busy && random.u32(..4) > 0 => return None,
            Reading::Slowly => random.usize(1..4),
            Reading::Never => 0,
        };
        let ended = self.read(id, watcher, taken_max);
        self.is_busy |= sends_more;
        ended
    }

    /// Sends as much as there is room for, or less. Returns whether more would go at once.
    fn send(&mut self, id: usize, watcher: &Watcher, random: &mut Rng) -> bool {
        let Some(pipe) = &self.messages else {
            return false;
        };
        let mut context = Context::from_waker(Waker::noop());
        while self.sent < self.plan.requests {
            match pipe.poll_room(&mut context) {
                Poll::Ready(true) => {}
                Poll::Ready(false) => {
                    self.messages = None;
                    return false;
                }
                Poll::Pending => return false,
            }
            let until = self.plan.requests.min(self.sent + random.u64(1..=16));
            let messages = self.sent..until;
            push(
                pipe,
                messages.map(|number| message(id, REQUEST, number, self.plan.bytes_max)),
            );
            self.sent = until;
            if random.u32(..4) == 0 && self.sent < self.plan.requests {
                return true;
            }
        }
        match self.plan.ending {
            Ending::Ends => pipe.end(),
            Ending::Cuts => watcher.model().streams.of(id).was_cut = true,
            Ending::LeavesOpen => return false,
        }
        self.messages = None;
        false
    }

    /// Takes so many messages.
    pub(super) fn read(
        &mut self,
        id: usize,
        watcher: &Watcher,
        taken_max: usize,
    ) -> Option<Result<(), Status>> {
        self.is_busy = false;
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..taken_max {
            let streaming = match &mut self.reader {
                Reader::Begins(call) => match Pin::new(call).poll(&mut context) {
                    Poll::Ready(Ok(response)) => {
                        self.reader = Reader::Reads(response.into_inner());
                        continue;
                    }
                    Poll::Ready(Err(status)) => return Some(Err(status)),
                    Poll::Pending => return None,
                },
                Reader::Reads(streaming) => streaming,
            };
            match Pin::new(streaming).poll_next(&mut context) {
                Poll::Ready(Some(Ok(got))) => self.took(id, watcher, &got),
                Poll::Ready(Some(Err(status))) => return Some(Err(status)),
                Poll::Ready(None) => return Some(Ok(())),
                Poll::Pending => return None,
            }
        }
        self.is_busy = taken_max > 0;
        None
    }

    fn took(&self, id: usize, watcher: &Watcher, got: &Numbered) {
        let mut model = watcher.model();
        model.streams.messages += 1;
        let progress = model.streams.of(id);
        let number = progress.taken_by_client;
        progress.taken_by_client += 1;
        let plan = &self.plan;
        let expected = match plan.kind {
            StreamKind::Listen => Numbered {
                number: plan.requests.min(plan.takes),
                data: Bytes::new(),
            },
            _ => message(id, ANSWER, number, plan.bytes_max),
        };
        assert!(
            *got == expected,
            "the client of stream {id} got message {} as the one after {number} others: {plan:?}",
            got.number
        );
    }
}

/// Puts messages into a pipe, small ones together, and long ones in two pieces.
fn push(pipe: &PipeSender, messages: impl Iterator<Item = Numbered>) {
    let (mut run, mut count) = (Vec::new(), 0);
    for message in messages {
        let encoded = message.encode_to_vec();
        if encoded.len() <= SHARED_MESSAGE_BYTES_MAX {
            run.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
            run.extend_from_slice(&encoded);
            count += 1;
            continue;
        }
        if count > 0 {
            pipe.push(Chunk::Messages(
                Buffer::from(std::mem::take(&mut run)),
                count,
            ));
            count = 0;
        }
        let (one, other) = encoded.split_at(encoded.len() / 2);
        pipe.push(Chunk::Message(
            [one, other].map(|part| Buffer::from(part.to_vec())).into(),
        ));
    }
    if count > 0 {
        pipe.push(Chunk::Messages(Buffer::from(run), count));
    }
}
