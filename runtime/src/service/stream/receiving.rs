//! Messages that come one after the other, as methods and clients take them.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::{FutureExt, Stream};
use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Envelope, Metadata, Reason, Status, split_first_message};
use prost::{DecodeError, Message};

use super::pipe::{Chunk, Ending, PipeReceiver};
use crate::call::{Call, wait_beside};
use crate::cancellation::Cancel;
use crate::service::codec;
use crate::shard::StreamShare;

/// Messages that come one after the other: a stream in the sense of `futures`, with
/// [`message`](Self::message) for those who want no more than that.
///
/// It ends after the last message, or after the status with which the stream failed. Dropped by a
/// client before that, it cancels the stream.
pub struct Streaming<M> {
    raw: RawStreaming,
    message: PhantomData<fn() -> M>,
}

/// Messages as the bytes that they are.
pub(crate) struct RawStreaming {
    receiver: PipeReceiver,
    /// Messages that came together, and how far they were taken.
    run: Buffer,
    at_byte: usize,
    parts: Parts,
    end: End,
    trailers: Option<Metadata>,
}

/// The beginning of a message. Its credits have gone back, so it counts against the share of who
/// sends it.
struct Parts {
    buffers: Vec<Buffer>,
    bytes: usize,
    share: Option<Arc<StreamShare>>,
}

/// What tells how a stream ends.
enum End {
    /// The call of a client.
    Call(Call<Envelope>),
    /// The pipe alone, which a client ends or cuts.
    Pipe,
    Over,
}

/// A message, as it came.
pub(crate) enum Raw<'a> {
    Small(&'a [u8]),
    /// Pieces one behind the other.
    Long(Vec<Buffer>),
}

impl Raw<'_> {
    pub(crate) fn decode<M: Message + Default>(self) -> Result<M, DecodeError> {
        match self {
            Self::Small(bytes) => M::decode(bytes),
            Self::Long(pieces) => codec::decode(joined(pieces)),
        }
    }
}

impl<M: Message + Default> Streaming<M> {
    pub(crate) fn new(raw: RawStreaming) -> Self {
        Self {
            raw,
            message: PhantomData,
        }
    }

    /// The next message; `None` behind the last one.
    ///
    /// # Errors
    /// The status with which the stream failed.
    pub async fn message(&mut self) -> Result<Option<M>, Status> {
        poll_fn(|context| self.poll_message(context)).await
    }

    /// What the server says behind the last message; empty for a server, and before that.
    ///
    /// # Errors
    /// The status with which the stream failed. Messages before that are dropped.
    pub async fn trailers(&mut self) -> Result<Metadata, Status> {
        while self.message().await?.is_some() {}
        Ok(self.raw.trailers.clone().unwrap_or_default())
    }

    /// Blocks the calling thread until there is another message. Not for use on a shard.
    ///
    /// # Errors
    /// As of [`message`](Self::message); `FAILED_PRECONDITION` if none has come by then and it is a
    /// stream of a [`LocalEngine`](crate::LocalEngine), where nobody would carry it on.
    pub fn wait_message(&mut self) -> Result<Option<M>, Status> {
        // Most have come by then.
        match self.message().now_or_never() {
            Some(message) => message,
            None => wait_beside(self.raw.cancel(), self.message())?,
        }
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<M>, Status>> {
        let is_client = matches!(self.raw.end, End::Call(_));
        let decoded = ready!(self.raw.poll_with(context, |raw| raw.decode()))?;
        let message = decoded.transpose().map_err(|error| {
            self.raw.give_up();
            let code = match is_client {
                true => Code::DataLoss,
                false => Code::InvalidArgument,
            };
            Status::new(code, format!("a message of the stream: {error}"))
        });
        Poll::Ready(message)
    }
}

impl RawStreaming {
    /// What a method takes.
    pub(crate) fn of_client(receiver: PipeReceiver) -> Self {
        Self::new(receiver, End::Pipe)
    }

    /// What a client gets of this call.
    pub(crate) fn of_call(receiver: PipeReceiver, call: Call<Envelope>) -> Self {
        Self::new(receiver, End::Call(call))
    }

    fn new(receiver: PipeReceiver, end: End) -> Self {
        Self {
            run: Buffer::new(),
            at_byte: 0,
            parts: Parts::of(receiver.share().cloned()),
            receiver,
            end,
            trailers: None,
        }
    }

    /// Ends the stream for who takes its messages.
    fn give_up(&mut self) {
        self.end = End::Over;
        (self.run, self.at_byte) = (Buffer::new(), 0);
        self.parts.take();
    }

    /// What withdraws the call of a client, until it has ended.
    pub(super) fn cancel(&self) -> Option<Cancel> {
        match &self.end {
            End::Call(call) => call.cancel(),
            End::Pipe | End::Over => None,
        }
    }

    /// Waits until the peer has said something. Returns what it says before its messages, or with
    /// which status it failed without any.
    pub(crate) fn poll_head(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Metadata, Status>> {
        ready!(self.receiver.poll_begun(context));
        if let Some(head) = self.receiver.take_head() {
            return Poll::Ready(Ok(head));
        }
        if self.receiver.ending() != Ending::None {
            // It has failed, or it has no messages.
            ready!(self.poll_end(context))?;
        }
        Poll::Ready(Ok(Metadata::default()))
    }

    pub(crate) fn take_trailers(&mut self) -> Metadata {
        self.trailers.take().unwrap_or_default()
    }

    /// Takes the next message.
    pub(crate) fn poll_with<R>(
        &mut self,
        context: &mut Context<'_>,
        take: impl FnOnce(Raw<'_>) -> R,
    ) -> Poll<Result<Option<R>, Status>> {
        loop {
            if let Some((message, rest)) = split_first_message(&self.run[self.at_byte..]) {
                self.at_byte = self.run.len() - rest.len();
                return Poll::Ready(Ok(Some(take(Raw::Small(message)))));
            }
            if let End::Over = self.end {
                return Poll::Ready(Ok(None));
            }
            match ready!(self.receiver.poll_take(context)) {
                Some(Chunk::Messages(run, _)) => (self.run, self.at_byte) = (run, 0),
                Some(Chunk::Message(pieces)) => {
                    return Poll::Ready(Ok(Some(take(Raw::Long(pieces)))));
                }
                Some(Chunk::Part { bytes, is_last }) => {
                    if let Err(status) = self.parts.push(bytes) {
                        self.give_up();
                        return Poll::Ready(Err(status));
                    }
                    if is_last {
                        let whole = self.parts.take();
                        return Poll::Ready(Ok(Some(take(Raw::Long(whole)))));
                    }
                }
                None => {
                    let ended = ready!(self.poll_end(context));
                    let is_cut = !self.parts.take().is_empty();
                    ended?;
                    return Poll::Ready(if is_cut { Err(cut()) } else { Ok(None) });
                }
            }
        }
    }

    /// How the stream ended, once all messages were taken.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let ended = match &mut self.end {
            End::Over => Ok(()),
            End::Pipe if self.receiver.ending() == Ending::Ended => Ok(()),
            End::Pipe => Err(self.receiver.take_failure().unwrap_or_else(|| {
                let text = "the client has gone in mid-stream";
                Status::new(Code::Cancelled, text).because(Reason::Cancelled)
            })),
            End::Call(call) => {
                let envelope = ready!(Pin::new(call).poll(context));
                envelope.map(|envelope| self.trailers = Some(envelope.answer_metadata()))
            }
        };
        self.end = End::Over;
        Poll::Ready(ended)
    }
}

impl Parts {
    fn of(share: Option<Arc<StreamShare>>) -> Self {
        Self {
            buffers: Vec::new(),
            bytes: 0,
            share,
        }
    }

    /// Takes one more.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: the message is too long, or its peer has too many of them.
    fn push(&mut self, part: Buffer) -> Result<(), Status> {
        let (before, more) = (self.bytes, part.len());
        if before + more > MESSAGE_BYTES_MAX {
            return Err(too_long());
        }
        if let Some(share) = &self.share {
            share.hold_parts(before as u64, more as u64)?;
        }
        self.bytes += more;
        self.buffers.push(part);
        Ok(())
    }

    /// All of them. They are the message's own business from then on.
    fn take(&mut self) -> Vec<Buffer> {
        if let Some(share) = &self.share {
            share.release_parts(self.bytes as u64);
        }
        self.bytes = 0;
        std::mem::take(&mut self.buffers)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.take();
    }
}

#[cold]
fn too_long() -> Status {
    let text = format!(
        "a message of the stream has more than {MESSAGE_BYTES_MAX} bytes, as many as are allowed"
    );
    Status::new(Code::ResourceExhausted, text).because(Reason::Limit)
}

#[cold]
fn cut() -> Status {
    let text = "the stream ended in the middle of a message";
    Status::new(Code::DataLoss, text)
}

/// Pieces one behind the other.
fn joined(mut pieces: Vec<Buffer>) -> Buffer {
    if pieces.len() == 1
        && let Some(piece) = pieces.pop()
    {
        return piece;
    }
    let mut whole = Vec::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
    for piece in &pieces {
        whole.extend_from_slice(piece);
    }
    Buffer::from(whole)
}

impl<M: Message + Default> Stream for Streaming<M> {
    type Item = Result<M, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(context).map(Result::transpose)
    }
}

impl<M> fmt::Debug for Streaming<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streaming").finish_non_exhaustive()
    }
}

/// Longest message, in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 20;

#[cfg(all(test, not(loom)))]
mod tests {
    use grpcxx_rpc::proto::GetStatusRequest;

    use super::super::pipe::pipe;
    use super::*;

    #[test]
    fn nothing_follows_a_message_that_cannot_be_read() {
        let (sender, receiver) = pipe();
        let messages: [&[u8]; 3] = [&[], &[0x0a, 9], &[]];
        let mut run = Vec::new();
        for message in messages {
            run.extend_from_slice(&(message.len() as u32).to_le_bytes());
            run.extend_from_slice(message);
        }
        let run = Buffer::from(run);
        sender.push(Chunk::Messages(run, 3));
        sender.end();
        let mut messages = Streaming::<GetStatusRequest>::new(RawStreaming::of_client(receiver));
        assert!(messages.wait_message().unwrap().is_some());
        assert_eq!(
            messages.wait_message().unwrap_err().code,
            Code::InvalidArgument
        );
        assert!(messages.wait_message().unwrap().is_none());
    }

    #[test]
    fn a_stream_that_ends_in_the_middle_of_a_message_has_failed() {
        let (sender, receiver) = pipe();
        sender.push(Chunk::Part {
            bytes: Buffer::from(vec![0x0a]),
            is_last: false,
        });
        sender.end();
        let mut messages = Streaming::<GetStatusRequest>::new(RawStreaming::of_client(receiver));
        assert_eq!(messages.wait_message().unwrap_err().code, Code::DataLoss);
        assert!(messages.wait_message().unwrap().is_none());
    }
}
