//! What a program says of a call and how it hears of its end: a [`CallSpec`] goes in, a
//! [`CompletionHandler`] or a future takes the result.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_channel::oneshot;
use grpcxx_memory::BufferMut;
use grpcxx_rpc::{Code, Request, Response, Status, Tensor, TensorMeta};

use crate::cancellation::{Cancel, Cancellation};
use crate::client::Peer;
use crate::command::Taken;
use crate::fate::stopped;
use crate::host::wait_for;
use crate::shard::ShardContext;
use crate::trace::CallSpan;

/// What a call ends in.
pub type CallResult = Result<Response, Status>;

/// One call: whom it asks for what, how long it may take, and what withdraws it.
#[derive(Debug)]
#[must_use = "a call begins when it is submitted"]
pub struct CallSpec<'a> {
    pub(crate) peer: &'a Peer,
    pub(crate) request: Request,
    pub(crate) timeout: Option<Duration>,
    pub(crate) cancellation: Option<&'a Cancellation>,
}

impl<'a> CallSpec<'a> {
    /// Asks `peer` for the answer to `request`, and waits as long as the peer lives.
    #[inline]
    pub fn new(peer: &'a Peer, request: Request) -> Self {
        Self {
            peer,
            request,
            timeout: None,
            cancellation: None,
        }
    }

    /// Bounds the whole call, the wait for a connection included. `None` is for no bound.
    #[inline]
    pub fn with_timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        Self {
            timeout: timeout.into(),
            ..self
        }
    }

    /// Lets `cancellation` withdraw the call. A cancellation is for one call; one that was used
    /// before withdraws only its first.
    pub fn with_cancellation(self, cancellation: &'a Cancellation) -> Self {
        Self {
            cancellation: Some(cancellation),
            ..self
        }
    }
}

/// Takes the results of calls on the shard that made them, without a hop to another thread.
///
/// All methods run on the shard's thread and must not block. Each call ends in one
/// [`CompletionHandler::on_complete`], or in one [`CompletionHandler::on_tensor`] in its place. If
/// the engine is gone by then, the method runs on whatever thread notices, and calls that it makes
/// are not carried out.
pub trait CompletionHandler: Send + Sync {
    /// A call ended. `token` is the one given with the call; further calls can be made through
    /// `shard`.
    fn on_complete(self: Arc<Self>, token: u64, result: CallResult, shard: &mut ShardContext<'_>);

    /// A call for one tensor ended well. The frame that a tensor comes in decides which of the two
    /// methods gets it, so an implementation of this one handles both alike. Unless implemented, it
    /// hands the tensor to [`CompletionHandler::on_complete`] as a response, which costs some 30
    /// instructions of the 700 of a small call.
    fn on_tensor(self: Arc<Self>, token: u64, tensor: Tensor, shard: &mut ShardContext<'_>) {
        self.on_complete(token, Ok(Response::from(tensor)), shard);
    }

    /// Whether it may run on a thread that makes or waits for a call of its own, and turns the
    /// shard meanwhile: it then finds nothing of what [`local`](crate::local) offers, and takes no
    /// lock that somebody holds who makes a call. If not, as it is unless implemented, the shard of
    /// its calls stays on the engine's thread from the first one on.
    fn runs_anywhere(&self) -> bool {
        false
    }

    /// Whether [`CompletionHandler::allocate`] may bring memory. If not, many small tensors of one
    /// response may share a piece of the shard's arena, of up to a mebibyte, that stays as long as
    /// one of them does: faster, but a program that keeps one of them for long should copy it.
    /// Tensors of up to 512 bytes of different responses that arrive together share pieces of up to
    /// 2 KiB.
    fn allocates(&self, token: u64) -> bool {
        let _ = token;
        true
    }

    /// Memory for the data of tensor `index` of a response, `meta.data_bytes` long. `None` takes it
    /// from the shard's arena.
    fn allocate(
        &self,
        token: u64,
        index: usize,
        meta: &TensorMeta,
    ) -> Option<Result<BufferMut, Status>> {
        let _ = (token, index, meta);
        None
    }
}

/// A call under way: a future of its result, of the type that was asked for. Dropping it cancels
/// the call.
#[must_use = "dropping a call cancels it"]
#[derive(Debug)]
pub struct Call<T = Response> {
    receiver: oneshot::Receiver<CallResult>,
    cancel: Option<Cancel>,
    /// Takes the result out of the response.
    take: Take<T>,
    /// What goes back into a step of this task if nobody takes the result.
    taken: Option<Box<Taken>>,
    /// For programs that trace.
    span: CallSpan,
}

/// Takes a result out of a response.
pub(crate) type Take<T> = fn(Response) -> Result<T, Status>;

impl<T> Call<T> {
    pub(crate) fn new(
        receiver: oneshot::Receiver<CallResult>,
        cancel: Cancel,
        take: Take<T>,
    ) -> Self {
        Self {
            receiver,
            cancel: Some(cancel),
            take,
            taken: None,
            span: CallSpan::default(),
        }
    }

    /// A call that has ended before it began.
    pub(crate) fn failed(status: Status, take: Take<T>) -> Self {
        let (sender, receiver) = oneshot::channel();
        // The receiver is right here, so the result cannot be refused.
        let _ = sender.send(Err(status));
        Self {
            receiver,
            cancel: None,
            take,
            taken: None,
            span: CallSpan::default(),
        }
    }

    /// Puts tensors of a step of this task back if the call is dropped with them.
    pub(crate) fn taking(mut self, taken: Taken) -> Self {
        self.taken = Some(Box::new(taken));
        self
    }

    /// Lets the span last as long as the call.
    pub(crate) fn in_span(mut self, span: CallSpan) -> Self {
        self.span = span;
        self
    }

    /// Blocks the calling thread until the call has ended. Not for use on a shard.
    ///
    /// # Errors
    /// The status with which the call failed. `FAILED_PRECONDITION` if it is a call of a
    /// [`LocalEngine`](crate::LocalEngine), where nobody would carry it on.
    pub fn wait(self) -> Result<T, Status> {
        wait_beside(self.cancel(), self)?
    }

    /// What withdraws the call, until it has ended.
    pub(crate) fn cancel(&self) -> Option<Cancel> {
        self.cancel.clone()
    }
}

/// Blocks the calling thread until a future is ready that waits for a call, if that has not ended.
/// The thread turns the shard of the call meanwhile.
///
/// # Errors
/// `FAILED_PRECONDITION` if it is a call of a [`LocalEngine`](crate::LocalEngine), where nobody
/// would carry it on.
pub(crate) fn wait_beside<F: Future>(call: Option<Cancel>, future: F) -> Result<F::Output, Status> {
    if call.as_ref().is_some_and(|call| !call.have_threads()) {
        let text = "this engine has no threads; await the call in LocalEngine::block_on";
        return Err(Status::new(Code::FailedPrecondition, text));
    }
    let shard = call.as_ref().and_then(Cancel::turnable);
    match wait_for(shard, future, None) {
        Some(output) => Ok(output),
        None => unreachable!("it waits without a limit"),
    }
}

impl<T> Future for Call<T> {
    type Output = Result<T, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        let cancel = self.cancel.take();
        let result = result.unwrap_or_else(|oneshot::Canceled| {
            Err(cancel.map_or_else(stopped, |cancel| cancel.status_of_loss()))
        });
        if let Ok(response) = &result {
            response.expose();
        }
        let result = result.and_then(self.take);
        self.span.note_end(&result);
        Poll::Ready(result)
    }
}

impl<T> Drop for Call<T> {
    fn drop(&mut self) {
        let Some(cancel) = self.cancel.take() else {
            return;
        };
        // From here on the shard finds that nobody waits, or the result is here.
        self.receiver.close();
        match self.receiver.try_recv() {
            Ok(Some(Ok(Response::Tensors(tensors)))) => {
                if let Some(taken) = self.taken.take() {
                    cancel.restore(*taken, tensors);
                }
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(oneshot::Canceled) => cancel.send(),
        }
    }
}
