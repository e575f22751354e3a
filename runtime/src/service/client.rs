//! The calling end of services: what generated clients stand on.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use grpcxx_memory::Buffer;
use grpcxx_rpc as rpc;
use grpcxx_rpc::{Code, Envelope, RESPONSE_FETCH, Status};
use prost::Message;

use super::codec;
use super::exchange::{Request, Response};
use super::interceptor::Interceptor;
use super::stream::{ClientStreamCall, StreamCall, StreamStart};
use crate::call::Call;
use crate::remote::Remote;
use crate::trace;

/// What is or can be made a request: a message, with or without metadata.
pub trait IntoRequest<T> {
    /// The request.
    fn into_request(self) -> Request<T>;
}

impl<T> IntoRequest<T> for T {
    fn into_request(self) -> Request<T> {
        Request::new(self)
    }
}

impl<T> IntoRequest<T> for Request<T> {
    fn into_request(self) -> Request<T> {
        self
    }
}

/// Calls methods of a task by their paths. Generated clients are named methods over it.
#[derive(Clone, Debug)]
pub struct ServiceClient {
    remote: Remote,
    interceptor: Interceptor,
}

/// A call under way: a future of the answer. Dropping it cancels the call.
#[must_use = "dropping a call cancels it"]
#[derive(Debug)]
pub struct UnaryCall<R> {
    call: Call<Envelope>,
    message: PhantomData<fn() -> R>,
}

impl ServiceClient {
    /// Calls methods of this task.
    pub fn new(remote: Remote) -> Self {
        let interceptor = Interceptor::default();
        Self {
            remote,
            interceptor,
        }
    }

    /// Lets this code see each request before it leaves, behind the code that was given before.
    #[must_use]
    pub fn intercepted_by(
        self,
        code: impl Fn(Request<()>) -> Result<Request<()>, Status> + Send + Sync + 'static,
    ) -> Self {
        let interceptor = self.interceptor.then(code);
        Self {
            interceptor,
            ..self
        }
    }

    /// Calls the method at `path`, which is `/package.Service/Method`. The call begins at once.
    pub fn unary<M: Message, R>(&self, path: &str, request: Request<M>) -> UnaryCall<R> {
        let mut request = match self.interceptor.intercept_whole(request) {
            Ok(request) => request,
            Err(status) => return UnaryCall::new(self.remote.call_envelope(Err(status), None)),
        };
        let span = trace::of_method(path, self.remote.address(), request.metadata_mut());
        let envelope = codec::request(path, request.metadata(), request.get_ref());
        let bound = request.bound(self.remote.timeout());
        let call = self.remote.call_envelope(envelope, bound);
        UnaryCall::new(call.in_span(span))
    }

    /// Calls a method that answers with a stream. The call begins at once.
    pub fn server_stream<M: Message, R>(&self, path: &str, request: Request<M>) -> StreamCall<R> {
        let (request, message) = request.replace(());
        self.start(path, request).send_one(&message)
    }

    /// Calls a method that takes a stream. The call begins at once; the messages are asked for on
    /// the shard of the peer.
    pub fn client_stream<M, R, S>(&self, path: &str, request: Request<S>) -> ClientStreamCall<R>
    where
        M: Message + 'static,
        S: Stream<Item = M> + Send + 'static,
    {
        let (request, messages) = request.replace(());
        ClientStreamCall::new(
            self.start(path, request)
                .send_stream(&self.remote, messages),
        )
    }

    /// Calls a method that takes a stream and answers with one, as
    /// [`client_stream`](Self::client_stream) does.
    pub fn two_streams<M, R, S>(&self, path: &str, request: Request<S>) -> StreamCall<R>
    where
        M: Message + 'static,
        S: Stream<Item = M> + Send + 'static,
    {
        let (request, messages) = request.replace(());
        StreamCall::new(
            self.start(path, request)
                .send_stream(&self.remote, messages),
        )
    }

    fn start(&self, path: &str, request: Request<()>) -> StreamStart {
        StreamStart::of_remote(&self.remote, path, self.interceptor.intercept(request))
    }
}

impl<R> UnaryCall<R> {
    fn new(call: Call<Envelope>) -> Self {
        Self {
            call,
            message: PhantomData,
        }
    }
}

impl<R: Message + Default> UnaryCall<R> {
    /// Blocks the calling thread until the call has ended. Not for use on a shard.
    ///
    /// # Errors
    /// The status with which the call failed.
    pub fn wait(self) -> Result<Response<R>, Status> {
        decoded(&self.call.wait()?)
    }
}

impl<R: Message + Default> Future for UnaryCall<R> {
    type Output = Result<Response<R>, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let envelope = ready!(Pin::new(&mut self.call).poll(context))?;
        Poll::Ready(decoded(&envelope))
    }
}

fn decoded<R: Message + Default>(envelope: &Envelope) -> Result<Response<R>, Status> {
    let message = codec::decode(envelope.message()).map_err(|error| {
        Status::new(
            Code::DataLoss,
            format!("the message of the answer: {error}"),
        )
    })?;
    Ok(Response::with_metadata(message, envelope.answer_metadata()))
}

/// The answer of a method, in either form.
pub(crate) fn take_envelope(response: rpc::Response) -> Result<Envelope, Status> {
    match response {
        rpc::Response::Unary(envelope) => Ok(envelope),
        rpc::Response::Fetched(mut fetched) => match fetched.pop() {
            Some((name, tensor)) if name.as_str() == RESPONSE_FETCH => envelope_of(tensor.data),
            _ => Err(unexpected()),
        },
        rpc::Response::Message(_) | rpc::Response::Tensors(_) => Err(unexpected()),
    }
}

fn envelope_of(message: Buffer) -> Result<Envelope, Status> {
    Ok(Envelope::decode_answer(0, message)?)
}

fn unexpected() -> Status {
    let text = "the answer is of another kind than the question: no message of a method";
    Status::new(Code::DataLoss, text)
}
