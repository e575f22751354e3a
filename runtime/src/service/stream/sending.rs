//! Messages on their way out: a stream of them is polled, and what it gives is put into a pipe.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Envelope, Metadata, Reason, SHARED_MESSAGE_BYTES_MAX, Status};
use prost::Message;

use super::pipe::{Chunk, PipeSender};
use super::receiving::MESSAGE_BYTES_MAX;
use crate::service::codec;

/// Messages that go into a pipe together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    count: u32,
    /// Length of the messages that are whole: the code of one may panic.
    whole_bytes: usize,
}

/// Puts what is in a batch into a pipe when it is dropped, also by a panic.
struct Flushed<'a> {
    batch: &'a mut Batch,
    pipe: &'a PipeSender,
}

impl Drop for Flushed<'_> {
    fn drop(&mut self) {
        self.batch.flush(self.pipe);
    }
}

impl Batch {
    /// Adds a message. One that is long goes into the pipe at once, behind those before it.
    pub(crate) fn add(&mut self, message: &impl Message, pipe: &PipeSender) -> Result<(), Status> {
        let len = message.encoded_len();
        if len <= SHARED_MESSAGE_BYTES_MAX {
            self.bytes.extend_from_slice(&(len as u32).to_le_bytes());
            let encoded = message.encode(&mut self.bytes);
            encoded.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
            return self.added(pipe);
        }
        check_length(len)?;
        let envelope = codec::answer(&Metadata::default(), message)?;
        self.add_long(envelope, pipe);
        Ok(())
    }

    /// Adds a message that is encoded already.
    pub(crate) fn add_encoded(&mut self, message: Buffer, pipe: &PipeSender) -> Result<(), Status> {
        if message.len() <= SHARED_MESSAGE_BYTES_MAX {
            let len = message.len() as u32;
            self.bytes.extend_from_slice(&len.to_le_bytes());
            self.bytes.extend_from_slice(&message);
            return self.added(pipe);
        }
        check_length(message.len())?;
        self.flush(pipe);
        pipe.push(Chunk::Message(vec![message]));
        Ok(())
    }

    fn added(&mut self, pipe: &PipeSender) -> Result<(), Status> {
        self.count += 1;
        self.whole_bytes = self.bytes.len();
        if self.bytes.len() >= BATCH_BYTES {
            self.flush(pipe);
        }
        Ok(())
    }

    fn add_long(&mut self, envelope: Envelope, pipe: &PipeSender) {
        self.flush(pipe);
        pipe.push(Chunk::Message(envelope.into_pieces()));
    }

    /// Puts what is there into the pipe.
    pub(crate) fn flush(&mut self, pipe: &PipeSender) {
        self.bytes.truncate(self.whole_bytes);
        self.whole_bytes = 0;
        if self.count > 0 {
            let capacity = self.bytes.len();
            let bytes = std::mem::replace(&mut self.bytes, Vec::with_capacity(capacity));
            let count = std::mem::take(&mut self.count);
            pipe.push(Chunk::Messages(Buffer::from(bytes), count));
        }
    }
}

fn check_length(len: usize) -> Result<(), Status> {
    if len <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let text = format!("a message of {len} bytes cannot be sent, allowed are {MESSAGE_BYTES_MAX}");
    Err(Status::new(Code::ResourceExhausted, text).because(Reason::Limit))
}

/// Puts all messages into a pipe, as there is room.
pub(crate) async fn send_all<M: Message>(
    messages: impl Stream<Item = Result<M, Status>>,
    pipe: &PipeSender,
) -> Result<(), Status> {
    send_with(messages, pipe, |batch, message, pipe| {
        batch.add(&message, pipe)
    })
    .await
}

/// Sends messages, each put into a batch by `add`.
pub(crate) async fn send_with<M>(
    messages: impl Stream<Item = Result<M, Status>>,
    pipe: &PipeSender,
    mut add: impl FnMut(&mut Batch, M, &PipeSender) -> Result<(), Status>,
) -> Result<(), Status> {
    let mut messages = pin!(messages);
    let mut batch = Batch::default();
    poll_fn(|context| {
        let batch = &mut batch;
        let flushed = Flushed { batch, pipe };
        make(messages.as_mut(), pipe, flushed.batch, &mut add, context)
    })
    .await
}

/// Makes messages until there is no room, no message, or others have waited long enough.
fn make<M, S: Stream<Item = Result<M, Status>>>(
    mut messages: Pin<&mut S>,
    pipe: &PipeSender,
    batch: &mut Batch,
    add: &mut impl FnMut(&mut Batch, M, &PipeSender) -> Result<(), Status>,
    context: &mut Context<'_>,
) -> Poll<Result<(), Status>> {
    for _ in 0..BATCHES_PER_POLL {
        if !ready!(pipe.poll_room(context)) {
            return Poll::Ready(Err(gone()));
        }
        for _ in 0..MESSAGES_PER_BATCH {
            match ready!(messages.as_mut().poll_next(context)) {
                Some(message) => add(batch, message?, pipe)?,
                None => return Poll::Ready(Ok(())),
            }
            if batch.count == 0 {
                break;
            }
        }
    }
    // Others of this thread have their turn.
    context.waker().wake_by_ref();
    Poll::Pending
}

/// Why a stream ends that nobody reads any more.
fn gone() -> Status {
    let text = "nobody takes the messages of the stream any more";
    Status::new(Code::Cancelled, text).because(Reason::Cancelled)
}

/// Length from which a batch goes into the pipe, in bytes.
const BATCH_BYTES: usize = 16 << 10;

/// Messages that are made before the pipe is looked at again.
const MESSAGES_PER_BATCH: usize = 1024;

/// Batches, or long messages, before other futures of the thread have their turn.
const BATCHES_PER_POLL: usize = 4;
