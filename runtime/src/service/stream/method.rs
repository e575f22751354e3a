//! Methods that stream, as shards serve them.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use futures_util::Stream;
use grpcxx_rpc::{Code, Envelope, Status};
use prost::Message;

use super::pipe::{PipeReceiver, PipeSender};
use super::receiving::{RawStreaming, Streaming};
use super::sending::{Batch, send_all};
use crate::service::exchange::{Request, Response, Trailers};
use crate::service::method::{LocalAnswer, PoolAnswer};

/// A method whose messages go through pipes.
pub(crate) trait Streams<A>: Send + Sync {
    /// Calls the method. `request` has what travels beside the messages. The answer ends with what
    /// comes behind all messages.
    fn call(&self, request: Request<()>, input: PipeReceiver, output: PipeSender) -> A;
}

/// A method that takes one message and answers with any number.
pub(crate) struct ServerStream<F, M>(Arc<F>, PhantomData<fn(M)>);

impl<F, M> ServerStream<F, M> {
    pub(crate) fn new(method: F) -> Self {
        Self(Arc::new(method), PhantomData)
    }
}

/// A method that takes any number of messages and answers with one.
pub(crate) struct ClientStream<F, M>(F, PhantomData<fn(M)>);

impl<F, M> ClientStream<F, M> {
    pub(crate) fn new(method: F) -> Self {
        Self(method, PhantomData)
    }
}

/// A method that takes any number of messages and answers with any number.
pub(crate) struct TwoStreams<F, M>(F, PhantomData<fn(M)>);

impl<F, M> TwoStreams<F, M> {
    pub(crate) fn new(method: F) -> Self {
        Self(method, PhantomData)
    }
}

impl<M, R, F, T, S> Streams<LocalAnswer> for ServerStream<F, M>
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Fn(Request<M>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<Response<S>, Status>> + 'static,
    S: Stream<Item = Result<R, Status>> + 'static,
{
    fn call(&self, request: Request<()>, input: PipeReceiver, output: PipeSender) -> LocalAnswer {
        let method = Arc::clone(&self.0);
        Box::pin(answer_one(method, request, input, output))
    }
}

impl<M, R, F, T, S> Streams<PoolAnswer> for ServerStream<F, M>
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Fn(Request<M>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<Response<S>, Status>> + Send + 'static,
    S: Stream<Item = Result<R, Status>> + Send + 'static,
{
    fn call(&self, request: Request<()>, input: PipeReceiver, output: PipeSender) -> PoolAnswer {
        let method = Arc::clone(&self.0);
        Box::pin(answer_one(method, request, input, output))
    }
}

impl<M, R, F, T> Streams<LocalAnswer> for ClientStream<F, M>
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Fn(Request<Streaming<M>>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<Response<R>, Status>> + 'static,
{
    fn call(&self, request: Request<()>, input: PipeReceiver, output: PipeSender) -> LocalAnswer {
        let answer = (self.0)(with_messages(request, input));
        Box::pin(respond_once(answer, output))
    }
}

impl<M, R, F, T> Streams<PoolAnswer> for ClientStream<F, M>
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Fn(Request<Streaming<M>>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<Response<R>, Status>> + Send + 'static,
{
    fn call(&self, request: Request<()>, input: PipeReceiver, output: PipeSender) -> PoolAnswer {
        let answer = (self.0)(with_messages(request, input));
        Box::pin(respond_once(answer, output))
    }
}

impl<M, R, F, T, S> Streams<LocalAnswer> for TwoStreams<F, M>
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Fn(Request<Streaming<M>>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<Response<S>, Status>> + 'static,
    S: Stream<Item = Result<R, Status>> + 'static,
{
    fn call(&self, request: Request<()>, input: PipeReceiver, output: PipeSender) -> LocalAnswer {
        let answer = (self.0)(with_messages(request, input));
        Box::pin(async move { respond(answer.await?, &output).await })
    }
}

impl<M, R, F, T, S> Streams<PoolAnswer> for TwoStreams<F, M>
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Fn(Request<Streaming<M>>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<Response<S>, Status>> + Send + 'static,
    S: Stream<Item = Result<R, Status>> + Send + 'static,
{
    fn call(&self, request: Request<()>, input: PipeReceiver, output: PipeSender) -> PoolAnswer {
        let answer = (self.0)(with_messages(request, input));
        Box::pin(async move { respond(answer.await?, &output).await })
    }
}

fn with_messages<M: Message + Default>(
    request: Request<()>,
    input: PipeReceiver,
) -> Request<Streaming<M>> {
    request.map(|()| Streaming::new(RawStreaming::of_client(input)))
}

/// Calls a method with the one message that is due.
async fn answer_one<M, R, F, T, S>(
    method: Arc<F>,
    request: Request<()>,
    input: PipeReceiver,
    output: PipeSender,
) -> Result<Envelope, Status>
where
    M: Message + Default,
    R: Message,
    F: Fn(Request<M>) -> T,
    T: Future<Output = Result<Response<S>, Status>>,
    S: Stream<Item = Result<R, Status>>,
{
    let mut messages = Streaming::new(RawStreaming::of_client(input));
    let message = messages.message().await?;
    let message = message.ok_or_else(|| no_message("the client"))?;
    let response = method(request.map(|()| message)).await?;
    respond(response, &output).await
}

/// Sends the one message that a method answers with.
async fn respond_once<R: Message>(
    answer: impl Future<Output = Result<Response<R>, Status>>,
    output: PipeSender,
) -> Result<Envelope, Status> {
    let (message, metadata, trailers) = answer.await?.into_parts();
    output.set_head(metadata);
    let mut batch = Batch::default();
    batch.add(&message, &output)?;
    batch.flush(&output);
    output.end();
    Ok(end(trailers))
}

/// Sends what a method answers with.
async fn respond<R: Message>(
    response: Response<impl Stream<Item = Result<R, Status>>>,
    output: &PipeSender,
) -> Result<Envelope, Status> {
    let (messages, metadata, trailers) = response.into_parts();
    output.set_head(metadata);
    send_all(messages, output).await?;
    output.end();
    Ok(end(trailers))
}

/// What comes behind all messages.
fn end(trailers: Option<Trailers>) -> Envelope {
    let metadata = trailers.map(|trailers| trailers.take()).unwrap_or_default();
    Envelope::answer(&metadata, 0).finish()
}

pub(super) fn no_message(who: &str) -> Status {
    let text = format!("{who} has ended the stream without the one message that is due");
    Status::new(Code::InvalidArgument, text)
}
