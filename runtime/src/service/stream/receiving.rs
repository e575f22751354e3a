//! Messages that come one after the other, as methods and clients take them.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Envelope, Metadata, Reason, Status, split_first_message};
use prost::Message;

use super::pipe::{Chunk, Ending, PipeReceiver};
use crate::call::Call;
use crate::host::wait;
use crate::service::codec;

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
    /// The beginning of a message.
    parts: Vec<Buffer>,
    parts_bytes: usize,
    end: End,
    trailers: Option<Metadata>,
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
    Whole(Buffer),
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
    /// As of [`message`](Self::message).
    pub fn wait_message(&mut self) -> Result<Option<M>, Status> {
        wait(self.message())
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<M>, Status>> {
        let is_client = matches!(self.raw.end, End::Call(_));
        let decoded = ready!(self.raw.poll_with(context, |raw| match raw {
            Raw::Small(bytes) => M::decode(bytes),
            Raw::Whole(buffer) => codec::decode(buffer),
        }))?;
        let message = decoded.transpose().map_err(|error| {
            self.raw.end = End::Over;
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
            receiver,
            run: Buffer::new(),
            at_byte: 0,
            parts: Vec::new(),
            parts_bytes: 0,
            end,
            trailers: None,
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
                    return Poll::Ready(Ok(Some(take(Raw::Whole(joined(pieces))))));
                }
                Some(Chunk::Part { bytes, is_last }) => {
                    self.parts_bytes += bytes.len();
                    if self.parts_bytes > MESSAGE_BYTES_MAX {
                        return Poll::Ready(Err(self.too_long()));
                    }
                    self.parts.push(bytes);
                    if is_last {
                        self.parts_bytes = 0;
                        let whole = joined(std::mem::take(&mut self.parts));
                        return Poll::Ready(Ok(Some(take(Raw::Whole(whole)))));
                    }
                }
                None => {
                    ready!(self.poll_end(context))?;
                    return Poll::Ready(Ok(None));
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

    #[cold]
    fn too_long(&mut self) -> Status {
        self.end = End::Over;
        self.parts.clear();
        let text = format!(
            "a message of the stream has more than {MESSAGE_BYTES_MAX} bytes, as many as are allowed"
        );
        Status::new(Code::ResourceExhausted, text).because(Reason::Limit)
    }
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
