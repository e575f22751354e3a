//! Methods of services as shards serve them: decoding, running, encoding, counting.

use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable};
use grpcxx_rpc::{Account, Code, Envelope, Status, Text};
use prost::Message;

use super::codec;
use super::exchange::{Request, Response};
use super::interceptor::Interceptor;
use super::methods::{Implementation, MethodCode, Methods};
use super::stats::MethodStats;
use super::stream::pipe::{Meter, PipeReceiver, PipeSender};
use crate::caller::Caller;
use crate::compute::{Compute, spawn_future};
use crate::function::{HoldWatch, panicked};
use crate::host::Beside;
use crate::shard::StreamShare;
use crate::trace::{self, CallSpan};
use crate::watch::RequestWatch;

/// A method whose messages are decoded and encoded.
pub(crate) trait Unary<A>: Send + Sync {
    /// Calls the method. `request` is what the envelope has beside the message.
    fn call(&self, envelope: &Envelope, request: Request<()>) -> Result<A, Status>;
}

/// The answer of a method, to be polled on the thread that has called it.
pub(crate) type LocalAnswer = Pin<Box<dyn Future<Output = Result<Envelope, Status>>>>;

/// The answer of a method, to be polled on whatever thread has time.
pub(crate) type PoolAnswer = Pin<Box<dyn Future<Output = Result<Envelope, Status>> + Send>>;

pub(super) struct Typed<F, M> {
    method: F,
    message: PhantomData<fn(M)>,
}

impl<F, M> Typed<F, M> {
    pub(super) fn new(method: F) -> Self {
        Self {
            method,
            message: PhantomData,
        }
    }
}

impl<M, R, F, T> Unary<LocalAnswer> for Typed<F, M>
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Fn(Request<M>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<Response<R>, Status>> + 'static,
{
    fn call(&self, envelope: &Envelope, request: Request<()>) -> Result<LocalAnswer, Status> {
        Ok(Box::pin(encoded((self.method)(decoded(
            envelope, request,
        )?))))
    }
}

impl<M, R, F, T> Unary<PoolAnswer> for Typed<F, M>
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Fn(Request<M>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<Response<R>, Status>> + Send + 'static,
{
    fn call(&self, envelope: &Envelope, request: Request<()>) -> Result<PoolAnswer, Status> {
        Ok(Box::pin(encoded((self.method)(decoded(
            envelope, request,
        )?))))
    }
}

fn decoded<M: Message + Default>(
    envelope: &Envelope,
    request: Request<()>,
) -> Result<Request<M>, Status> {
    let message = codec::decode(envelope.message())
        .map_err(|error| Status::new(Code::InvalidArgument, format!("the message: {error}")))?;
    Ok(request.replace(message).0)
}

async fn encoded<R: Message>(
    answer: impl Future<Output = Result<Response<R>, Status>>,
) -> Result<Envelope, Status> {
    let (message, mut metadata, trailers) = answer.await?.into_parts();
    if let Some(trailers) = trailers {
        for (name, value) in trailers.take().iter() {
            metadata.append(name, value)?;
        }
    }
    codec::answer(&metadata, &message)
}

/// A method that an engine serves.
pub(crate) struct Registered {
    watch: HoldWatch,
    pub(crate) stats: MethodStats,
    code: MethodCode,
    interceptor: Interceptor,
}

/// What became of a call that a method was given.
pub(crate) enum Begun {
    /// It has ended.
    Ended(Result<Envelope, Status>),
    /// Its future waits for something, on this thread.
    Waits(LocalAnswer),
    /// Its future is to be polled by threads of the compute pool.
    ForPool(PoolAnswer),
}

impl Registered {
    /// A method of this service, which `watch` looks at.
    pub(crate) fn new(
        watch: HoldWatch,
        code: MethodCode,
        service: &Methods,
        shards: usize,
    ) -> Self {
        Self {
            stats: MethodStats::new(shards),
            watch,
            code,
            interceptor: service.interceptor.clone(),
        }
    }

    /// Where it is called.
    pub(crate) fn path(&self) -> &Text {
        self.watch.name()
    }

    /// Whether it is called with a stream.
    pub(crate) fn streams(&self) -> bool {
        matches!(
            self.code,
            MethodCode::OnShard(Implementation::Streams(_))
                | MethodCode::OnPool(Implementation::Streams(_))
        )
    }

    /// Calls the method on this shard, as far as it comes without waiting.
    pub(crate) fn begin(
        self: &Arc<Self>,
        envelope: Envelope,
        caller: &Caller,
        shard: usize,
    ) -> Begun {
        let bytes = envelope.message_bytes();
        let span = trace::of_served_method(&envelope);
        match &self.code {
            MethodCode::OnShard(Implementation::Unary(method)) => {
                self.begin_here(bytes, shard, span, || {
                    let request = Request::from_caller((), envelope.request_metadata(), caller);
                    method.call(&envelope, self.interceptor.intercept(request)?)
                })
            }
            MethodCode::OnPool(Implementation::Unary(method)) => {
                let (method, interceptor) = (Arc::clone(method), self.interceptor.clone());
                let caller = *caller;
                self.begin_on_pool(bytes, shard, span, move || {
                    let request = Request::from_caller((), envelope.request_metadata(), &caller);
                    method.call(&envelope, interceptor.intercept(request)?)
                })
            }
            _ => Begun::Ended(Err(self.called_otherwise())),
        }
    }

    /// Begins a call of a method that streams. `share` is let go of when the method has ended.
    pub(crate) fn begin_stream(
        self: &Arc<Self>,
        (envelope, caller): (&Envelope, &Caller),
        input: PipeReceiver,
        output: PipeSender,
        shard: usize,
        share: Option<Arc<StreamShare>>,
    ) -> Begun {
        let request = Request::from_caller((), envelope.request_metadata(), caller);
        let moved = Moved {
            method: Arc::clone(self),
            shard,
            input: input.meter(),
            output: output.meter(),
            _share: share.clone(),
        };
        let input = input.counted(share.as_ref());
        let span = trace::of_served_method(envelope);
        match &self.code {
            MethodCode::OnShard(Implementation::Streams(method)) => {
                self.begin_here(0, shard, span, || {
                    let request = self.interceptor.intercept(request)?;
                    let answer = method.call(request, input, output);
                    Ok(Box::pin(counted(moved, answer)) as LocalAnswer)
                })
            }
            MethodCode::OnPool(Implementation::Streams(method)) => {
                let (method, interceptor) = (Arc::clone(method), self.interceptor.clone());
                self.begin_on_pool(0, shard, span, move || {
                    let request = interceptor.intercept(request)?;
                    let answer = method.call(request, input, output);
                    Ok(Box::pin(counted(moved, answer)) as PoolAnswer)
                })
            }
            _ => Begun::Ended(Err(self.called_otherwise())),
        }
    }

    /// Why a call of the wrong kind is refused.
    fn called_otherwise(&self) -> Status {
        let path = self.path().as_str();
        let text = match self.streams() {
            false => format!("{path} takes one message and answers with one"),
            true => format!("{path} streams; call it from a peer that knows streams, or over gRPC"),
        };
        Status::new(Code::Unimplemented, text)
    }

    fn begin_on_pool(
        self: &Arc<Self>,
        message_bytes: usize,
        shard: usize,
        span: CallSpan,
        call: impl FnOnce() -> Result<PoolAnswer, Status> + Send + 'static,
    ) -> Begun {
        let begun = self.stats.begin(shard, message_bytes);
        let mut ending = Ending {
            method: Arc::clone(self),
            shard,
            begun: Some(begun),
        };
        Begun::ForPool(Box::pin(async move {
            let run = async { call()?.await };
            let run = tracing::Instrument::instrument(run, span.to_span());
            let answer = AssertUnwindSafe(run).catch_unwind().await;
            let answer = answer.unwrap_or_else(|panic| Err(panicked(&*panic)));
            span.note_end(&answer);
            ending.end(&answer);
            answer
        }))
    }

    fn begin_here(
        self: &Arc<Self>,
        message_bytes: usize,
        shard: usize,
        span: CallSpan,
        call: impl FnOnce() -> Result<LocalAnswer, Status>,
    ) -> Begun {
        let begun = self.stats.begin(shard, message_bytes);
        let mut answer = match caught(|| span.in_scope(call)) {
            Ok(answer) => span.instrument(answer),
            Err(status) => {
                let answer = Err(status);
                span.note_end(&answer);
                self.stats.end(shard, begun, &answer);
                return Begun::Ended(answer);
            }
        };
        // A future that has to wait is polled again by an executor, with a waker that counts.
        let mut context = Context::from_waker(Waker::noop());
        match self.poll(&mut answer, &mut context, begun) {
            Poll::Ready(answer) => {
                self.stats.end(shard, begun, &answer);
                Begun::Ended(answer)
            }
            Poll::Pending => {
                let method = Arc::clone(self);
                let mut ending = Ending {
                    method,
                    shard,
                    begun: Some(begun),
                };
                Begun::Waits(Box::pin(std::future::poll_fn(move |context| {
                    let since = Instant::now();
                    let polled = ending.method.poll(&mut answer, context, since);
                    if let Poll::Ready(answer) = &polled {
                        ending.end(answer);
                    }
                    polled
                })))
            }
        }
    }

    /// Polls the answer of the method, which has held the shard `since` then.
    fn poll(
        &self,
        answer: &mut LocalAnswer,
        context: &mut Context<'_>,
        since: Instant,
    ) -> Poll<Result<Envelope, Status>> {
        let polled = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context)));
        self.watch.note(since.elapsed());
        polled.unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic))))
    }

    /// Runs what a method has begun to its end, on this shard's thread, and hands over its answer.
    pub(crate) fn run(
        answer: LocalAnswer,
        done: impl FnOnce(Result<Envelope, Status>) + 'static,
    ) -> Withdrawal {
        let (withdrawal, task) = withdrawable(async move { done(answer.await) });
        // Methods bind the shards to their threads. One that has ended drops the future, and with
        // it whoever waits for the answer.
        if let Some(beside) = Beside::here() {
            beside.spawn(Box::pin(task));
        }
        withdrawal
    }
}

/// Lets threads of the compute pool run what a method has begun for a peer to its end. It holds
/// none of them while it waits.
pub(crate) fn run_on_pool(
    compute: &Arc<dyn Compute>,
    peer: Account,
    answer: PoolAnswer,
    done: impl FnOnce(Result<Envelope, Status>) + Send + 'static,
) -> Withdrawal {
    let (withdrawal, task) = withdrawable(async move { done(answer.await) });
    spawn_future(compute, peer, task, withdrawal.handle.clone());
    withdrawal
}

/// A future that ends early when it is withdrawn. It is dropped then, with whoever waits for its
/// answer.
fn withdrawable<F: Future<Output = ()>>(
    future: F,
) -> (Withdrawal, impl Future<Output = ()> + use<F>) {
    let (handle, registration) = AbortHandle::new_pair();
    let future = Abortable::new(future, registration);
    let withdrawal = Withdrawal {
        handle,
        _share: None,
    };
    (withdrawal, async move {
        let _was_withdrawn = future.await;
    })
}

/// Drops the future of a call that nobody waits for any more.
pub(crate) struct Withdrawal {
    handle: AbortHandle,
    /// What the stream holds of its peer's share, until its last message and its answer have left.
    _share: Option<Arc<StreamShare>>,
}

impl Withdrawal {
    pub(crate) fn with(self, share: Option<Arc<StreamShare>>) -> Self {
        Self {
            _share: share,
            ..self
        }
    }
}

impl RequestWatch for Withdrawal {
    fn withdrawn(&self) {
        self.handle.abort();
    }
}

/// Counts the end of a call, also if it is dropped.
struct Ending {
    method: Arc<Registered>,
    shard: usize,
    begun: Option<Instant>,
}

impl Ending {
    fn end(&mut self, answer: &Result<Envelope, Status>) {
        if let Some(begun) = self.begun.take() {
            self.method.stats.end(self.shard, begun, answer);
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.end(&Err(Status::new(Code::Cancelled, "the call was withdrawn")));
    }
}

/// Counts the bytes of a stream at its end, also if it is dropped.
struct Moved {
    method: Arc<Registered>,
    shard: usize,
    input: Meter,
    output: Meter,
    _share: Option<Arc<StreamShare>>,
}

async fn counted(
    moved: Moved,
    answer: impl Future<Output = Result<Envelope, Status>>,
) -> Result<Envelope, Status> {
    let _counted_at_the_end = moved;
    answer.await
}

impl Drop for Moved {
    fn drop(&mut self) {
        let (input, output) = (self.input.passed_bytes(), self.output.passed_bytes());
        self.method.stats.add_bytes(self.shard, input, output);
    }
}

fn caught<T>(code: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    catch_unwind(AssertUnwindSafe(code)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}
