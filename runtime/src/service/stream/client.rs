//! The calling end of methods that stream.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt};
use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Envelope, Metadata, Status};
use prost::Message;

use super::ends::StreamEnds;
use super::method::no_message;
use super::pipe::{PipeSender, pipe};
use super::receiving::{Raw, RawStreaming, Streaming};
use super::sending::{Batch, send_all, send_with};
use crate::call::{Call, wait_beside};
use crate::local;
use crate::remote::Remote;
use crate::service::exchange::{Request, Response};
use crate::trace;

/// What is or can be made a request with a stream of messages.
pub trait IntoStreamingRequest<M> {
    /// The messages.
    type Messages: Stream<Item = M> + Send + 'static;

    /// The request.
    fn into_streaming_request(self) -> Request<Self::Messages>;
}

impl<M, S: Stream<Item = M> + Send + 'static> IntoStreamingRequest<M> for S {
    type Messages = S;

    fn into_streaming_request(self) -> Request<S> {
        Request::new(self)
    }
}

impl<M, S: Stream<Item = M> + Send + 'static> IntoStreamingRequest<M> for Request<S> {
    type Messages = S;

    fn into_streaming_request(self) -> Self {
        self
    }
}

/// A call under way of a method that answers with a stream: a future of that, which is there when
/// the server has said the first thing. Dropping it cancels the call.
#[must_use = "dropping a call cancels it"]
pub struct StreamCall<R> {
    raw: Option<RawStreaming>,
    message: PhantomData<fn() -> R>,
}

/// A call under way of a method that takes a stream and answers with one message: a future of that.
/// Dropping it cancels the call.
#[must_use = "dropping a call cancels it"]
pub struct ClientStreamCall<R> {
    raw: RawStreaming,
    head: Option<Metadata>,
    message: Option<R>,
}

/// Both directions of a stream that has begun.
pub(crate) struct StreamStart {
    pub(crate) raw: RawStreaming,
    pub(crate) messages: PipeSender,
}

/// Begins a call whose messages go through these pipes.
type Begin<'a> =
    &'a dyn Fn(Result<Envelope, Status>, Option<Duration>, StreamEnds) -> Call<Envelope>;

impl StreamStart {
    pub(crate) fn new(
        begin: Begin<'_>,
        envelope: Result<Envelope, Status>,
        timeout: Option<Duration>,
    ) -> Self {
        let (messages, outgoing) = pipe();
        let (incoming, receiver) = pipe();
        let call = begin(envelope, timeout, StreamEnds::new(outgoing, incoming));
        Self {
            raw: RawStreaming::of_call(receiver, call),
            messages,
        }
    }

    /// Begins a call of a method at this path; one that was refused ends with its status.
    pub(crate) fn of_remote(
        remote: &Remote,
        path: &str,
        request: Result<Request<()>, Status>,
    ) -> Self {
        let timeout = (request.as_ref().ok()).and_then(|request| request.bound(remote.timeout()));
        let envelope = request.and_then(|request| {
            let metadata = trace::with_current(request.metadata());
            Ok(Envelope::request(path, &metadata, 0)?.finish())
        });
        let begin = |envelope, timeout, ends| remote.call_stream(envelope, timeout, ends);
        Self::new(&begin, envelope, timeout)
    }

    /// Sends one message and no more.
    pub(crate) fn send_one<R>(self, message: &impl Message) -> StreamCall<R> {
        let mut batch = Batch::default();
        let added = batch.add(message, &self.messages);
        batch.flush(&self.messages);
        match added {
            Ok(()) => self.messages.end(),
            Err(status) => self.messages.fail(status),
        }
        StreamCall::new(self.raw)
    }

    /// Sends all messages of a stream, which is polled on the shard of the peer.
    pub(crate) fn send_stream<M: Message + 'static>(
        self,
        remote: &Remote,
        messages: impl Stream<Item = M> + Send + 'static,
    ) -> RawStreaming {
        let Self {
            raw,
            messages: pipe,
        } = self;
        let send = move || async move {
            let sending = send_all(messages.map(Ok), &pipe);
            match AssertUnwindSafe(sending).catch_unwind().await {
                Ok(Ok(())) => pipe.end(),
                Ok(Err(status)) => pipe.fail(status),
                Err(_panic) => {}
            }
        };
        let spawn = move |_: &mut crate::shard::ShardContext<'_>| {
            // It goes on by itself, until the call has ended.
            drop(local::spawn_local(send()));
        };
        // If the shard takes no more, the pipe is cut, and the call is cancelled.
        let _is_full = remote.run_on_shard(spawn);
        raw
    }
}

impl<R> StreamCall<R> {
    pub(crate) fn new(raw: RawStreaming) -> Self {
        Self {
            raw: Some(raw),
            message: PhantomData,
        }
    }
}

impl<R: Message + Default> StreamCall<R> {
    /// Blocks the calling thread until the server has said the first thing. Not for use on a shard.
    ///
    /// # Errors
    /// The status with which the call failed. `FAILED_PRECONDITION` if it is a call of a
    /// [`LocalEngine`](crate::LocalEngine), where nobody would carry it on.
    pub fn wait(self) -> Result<Response<Streaming<R>>, Status> {
        wait_beside(self.raw.as_ref().and_then(RawStreaming::cancel), self)?
    }
}

impl<R: Message + Default> Future for StreamCall<R> {
    type Output = Result<Response<Streaming<R>>, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let raw = self
            .raw
            .as_mut()
            .expect("a future is not polled behind its end");
        let metadata = ready!(raw.poll_head(context))?;
        let raw = self.raw.take().expect("it was there");
        Poll::Ready(Ok(Response::with_metadata(Streaming::new(raw), metadata)))
    }
}

impl<R> ClientStreamCall<R> {
    pub(crate) fn new(raw: RawStreaming) -> Self {
        Self {
            raw,
            head: None,
            message: None,
        }
    }
}

impl<R: Message + Default + Unpin> ClientStreamCall<R> {
    /// Blocks the calling thread until the call has ended. Not for use on a shard.
    ///
    /// # Errors
    /// The status with which the call failed. `FAILED_PRECONDITION` if it is a call of a
    /// [`LocalEngine`](crate::LocalEngine), where nobody would carry it on.
    pub fn wait(self) -> Result<Response<R>, Status> {
        wait_beside(self.raw.cancel(), self)?
    }
}

impl<R: Message + Default + Unpin> Future for ClientStreamCall<R> {
    type Output = Result<Response<R>, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.head.is_none() {
            this.head = Some(ready!(this.raw.poll_head(context))?);
        }
        loop {
            let decoded = ready!(this.raw.poll_with(context, |raw| raw.decode::<R>()))?;
            let Some(message) = decoded else {
                break;
            };
            let message = message.map_err(|error| {
                Status::new(
                    Code::DataLoss,
                    format!("the message of the answer: {error}"),
                )
            })?;
            if this.message.replace(message).is_some() {
                let text = "the server has answered with more than the one message that is due";
                return Poll::Ready(Err(Status::new(Code::Internal, text)));
            }
        }
        let mut metadata = this.head.take().unwrap_or_default();
        for (name, value) in this.raw.take_trailers().iter() {
            metadata.append(name, value)?;
        }
        let message = this.message.take().ok_or_else(|| no_message("the server"));
        Poll::Ready(message.map(|message| Response::with_metadata(message, metadata)))
    }
}

/// The messages of a stream towards a method, as bytes, for other doors to services than the star
/// port.
pub struct RawSink {
    pipe: PipeSender,
}

/// A call under way whose messages are bytes: a future of metadata and a stream of the messages.
pub struct RawStream {
    raw: RawStreaming,
}

impl RawSink {
    /// Sends all messages, until they or the call end. With one that fails the method hears why.
    pub async fn send_all(self, messages: impl Stream<Item = Result<Bytes, Status>>) {
        let sent = send_with(messages, &self.pipe, |batch, message, pipe| {
            batch.add_encoded(Buffer::from(message), pipe)
        });
        match sent.await {
            Ok(()) => self.pipe.end(),
            Err(status) => self.pipe.fail(status),
        }
    }
}

impl RawStream {
    pub(crate) fn begin(start: StreamStart) -> (RawSink, Self) {
        let stream = Self { raw: start.raw };
        let pipe = start.messages;
        (RawSink { pipe }, stream)
    }

    /// What the method says before its messages.
    ///
    /// # Errors
    /// The status with which the call failed before it said anything.
    pub async fn head(&mut self) -> Result<Metadata, Status> {
        std::future::poll_fn(|context| self.raw.poll_head(context)).await
    }

    /// What the method has said behind its messages, once they have ended.
    pub fn take_trailers(&mut self) -> Metadata {
        self.raw.take_trailers()
    }
}

/// Each message in the pieces in which it lies.
impl Stream for RawStream {
    type Item = Result<Vec<Buffer>, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let message = ready!(self.raw.poll_with(context, |raw| match raw {
            Raw::Small(bytes) => vec![Buffer::from(bytes.to_vec())],
            Raw::Long(pieces) => pieces,
        }));
        Poll::Ready(message.transpose())
    }
}

impl<R> fmt::Debug for StreamCall<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamCall").finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for ClientStreamCall<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientStreamCall").finish_non_exhaustive()
    }
}

impl fmt::Debug for RawSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawSink").finish_non_exhaustive()
    }
}

impl fmt::Debug for RawStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawStream").finish_non_exhaustive()
    }
}
