//! What a program does for its peers: functions by name, and services that see each request.

mod asynchronous;
mod held;
mod waiting;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use grpcxx_rpc::{
    Fetched, GraphCall, NamedTensors, Reason, Request, Response, Status, Tensor, Text, home_shard,
};
use tracing::Span;

pub(crate) use self::asynchronous::AsyncFunction;
pub use self::held::HoldWatch;
pub(crate) use self::waiting::WaitingCall;
use crate::blame::panic_text;
use crate::call::CallResult;
use crate::client::Mailboxes;
use crate::command::{Command, GraphDone, Origin};
use crate::trace::CallSpan;
use crate::watch::RequestWatch;

/// Code that peers call by name with tensors in and tensors out.
///
/// A call arrives as StarRunGraph whose graph handle is the function's name. It runs on a thread of
/// the compute pool, or on that of a shard once the function proved to be short. There another
/// thread takes the shard over if a call takes long. So it may block, and several calls may run at
/// once.
pub trait Function: Send + Sync {
    /// Runs the function. The answer must hold exactly the tensors named in `call.fetches`, in any
    /// order.
    ///
    /// # Errors
    /// The status that the caller gets.
    fn call(&self, call: GraphCall) -> Result<NamedTensors, Status>;

    /// Runs the function, which answers through `responder`, from here or later from any thread.
    fn start(&self, call: GraphCall, responder: Responder) {
        responder.answer(caught(|| self.call(call)));
    }

    /// Whether [`Function::start`] may block. One that never does is started on the shard itself.
    fn may_block(&self) -> bool {
        true
    }

    /// Whether one that never blocks may start on a thread that makes or waits for a call, as a
    /// [`CompletionHandler`](crate::CompletionHandler) that says so may run there. If not, the
    /// shards stay on the engine's threads from its registration on.
    fn runs_anywhere(&self) -> bool {
        false
    }

    /// Whether [`Function::call`] is all that [`Function::start`] does, and never blocks. The shard
    /// calls it and answers without a responder then.
    fn answers_at_once(&self) -> bool {
        false
    }
}

impl<F, R> Function for F
where
    F: Fn(GraphCall) -> Result<R, Status> + Send + Sync,
    R: Into<Fetched>,
{
    fn call(&self, call: GraphCall) -> Result<NamedTensors, Status> {
        self(call).map(|results| results.into().into())
    }
}

/// A function that is started on the shard, and ends there.
pub(crate) struct ShortFunction<F> {
    pub(crate) code: F,
    pub(crate) watch: HoldWatch,
}

impl<F> Function for ShortFunction<F>
where
    F: Fn(GraphCall) -> Result<NamedTensors, Status> + Send + Sync,
{
    fn call(&self, call: GraphCall) -> Result<NamedTensors, Status> {
        self.watch.run(|| (self.code)(call))
    }

    fn may_block(&self) -> bool {
        false
    }

    fn answers_at_once(&self) -> bool {
        true
    }
}

/// Sees each request from a peer before the built-in services do.
///
/// Runs on the shard's thread and must not block.
pub trait Service: Send + Sync {
    /// Takes a request, or gives it back for the built-in services.
    fn serve(&self, request: Request, later: Later<'_>) -> Served;

    /// What becomes of a small RecvTensor request, if that can be said at once: then nothing is
    /// kept of the request, and [`Service::serve`] does not see it. Such an answer costs a third of
    /// one that goes the long way.
    fn at_once(&self, _step_id: i64, _key: &Text) -> AtOnce {
        AtOnce::Ask
    }
}

/// What a [`Service`] says of a request before it is one.
#[derive(Debug)]
pub enum AtOnce {
    /// [`Service::serve`] shall have it.
    Ask,
    /// Not mine: its tensor is in a step, or will be.
    Declined,
    /// The answer. The service keeps its tensor: if it does not reach the peer, it is not put into
    /// a step.
    Tensor(Tensor),
}

/// What a [`Service`] did with a request.
#[derive(Debug)]
pub enum Served {
    /// Here is the answer.
    Now(CallResult),
    /// The tensors of the keys, in their order, which the service keeps: if they do not reach the
    /// peer, they are not put into a step. Lists that are asked for again and again are answered
    /// without a look at the reference counts of their tensors; for one small tensor
    /// [`Service::at_once`] is faster.
    Kept(Arc<[Tensor]>),
    /// The answer comes through the responder.
    Later(Promise),
    /// Not mine.
    Declined(Request),
}

/// The way to answer a request after [`Service::serve`] has returned.
#[derive(Debug)]
pub struct Later<'a> {
    mailboxes: &'a Arc<Mailboxes>,
    origin: Origin,
}

/// Proof that somebody holds the responder, or has answered.
pub struct Promise {
    pub(crate) watch: Option<Arc<dyn RequestWatch>>,
    pub(crate) answer: Option<CallResult>,
}

impl<'a> Later<'a> {
    pub(crate) fn new(mailboxes: &'a Arc<Mailboxes>, origin: Origin) -> Self {
        Self { mailboxes, origin }
    }

    /// The responder, which may go to any thread, and what to return meanwhile.
    pub fn promise(self) -> (Responder, Served) {
        let responder = Responder::new(Arc::clone(self.mailboxes), self.origin);
        let promise = Promise {
            watch: None,
            answer: None,
        };
        (responder, Served::Later(promise))
    }

    /// The same for a service that wants to know what becomes of the request. Tensors in its answer
    /// that do not reach the peer are dropped, and not put into the step of their key.
    pub fn watched(self, watch: Arc<dyn RequestWatch>) -> (Responder, Promise) {
        let responder = Responder::new(Arc::clone(self.mailboxes), self.origin);
        let promise = Promise {
            watch: Some(watch),
            answer: None,
        };
        (responder, promise)
    }
}

impl Promise {
    /// Keeps the promise at once, in place of the responder, which is abandoned.
    pub fn keep(self, responder: Responder, result: CallResult) -> Served {
        responder.abandon();
        Served::Later(Self {
            answer: Some(result),
            ..self
        })
    }
}

impl fmt::Debug for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Promise")
            .field("is_watched", &self.watch.is_some())
            .field("answer", &self.answer)
            .finish()
    }
}

/// The right, and the duty, to answer one request. Dropping it answers with `INTERNAL`.
pub struct Responder {
    mailboxes: Arc<Mailboxes>,
    origin: Option<Origin>,
    graph_done: Option<GraphDone>,
    /// What serves the request, for programs that trace.
    span: CallSpan,
}

impl Responder {
    pub(crate) fn new(mailboxes: Arc<Mailboxes>, origin: Origin) -> Self {
        Self {
            mailboxes,
            origin: Some(origin),
            graph_done: None,
            span: CallSpan::default(),
        }
    }

    /// The responder of a graph call, which counts towards the end of its step when it is answered.
    pub(crate) fn of_graph(
        mailboxes: Arc<Mailboxes>,
        origin: Origin,
        graph_done: Option<GraphDone>,
    ) -> Self {
        Self {
            mailboxes,
            origin: Some(origin),
            graph_done,
            span: CallSpan::default(),
        }
    }

    /// Lets the span last until the request is answered.
    pub(crate) fn in_span(mut self, span: CallSpan) -> Self {
        self.span = span;
        self
    }

    /// The span in which the request is served.
    pub(crate) fn span(&self) -> Span {
        self.span.to_span()
    }

    /// Lets `watch` hear what becomes of the request, in place of who watched it before. Of a
    /// request that is over by now it hears that it was withdrawn.
    pub fn watch(&self, watch: Arc<dyn RequestWatch>) {
        self.watching(watch)();
    }

    /// What does as [`watch`](Self::watch) does, for who holds a lock now: at the end of an engine
    /// calls of others may end there, and run their code.
    pub fn watching(&self, watch: Arc<dyn RequestWatch>) -> impl FnOnce() + use<> {
        let (mailboxes, origin) = (Arc::clone(&self.mailboxes), self.origin);
        move || {
            if let Some(origin) = origin {
                let command = Command::Watch { origin, watch };
                mailboxes.deliver(origin.shard(), command);
            }
        }
    }

    /// Lets go of a request that its service declines after all, or has answered in another way.
    pub fn abandon(mut self) {
        self.origin = None;
        self.graph_done = None;
    }

    /// Answers the request.
    pub fn answer(mut self, result: CallResult) {
        self.send(result);
    }

    fn send(&mut self, result: CallResult) {
        if let Some(origin) = self.origin.take() {
            self.span.note_end(&result);
            self.mailboxes.deliver(
                origin.shard(),
                Command::Answer {
                    origin,
                    result,
                    taken: None,
                },
            );
        }
        if let Some(graph_done) = self.graph_done.take() {
            let home = home_shard(graph_done.step_id, self.mailboxes.len());
            self.mailboxes.deliver(home, Command::GraphDone(graph_done));
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let (text, reason) = if std::thread::panicking() {
            ("the function panicked", Reason::Panicked)
        } else {
            let text = "the service dropped the request without an answer";
            (text, Reason::Unanswered)
        };
        self.send(Err(
            Status::new(grpcxx_rpc::Code::Internal, text).because(reason)
        ));
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Responder").field(&self.origin).finish()
    }
}

/// Runs the code of a function and shapes its result into an answer.
pub(crate) fn caught(code: impl FnOnce() -> Result<NamedTensors, Status>) -> CallResult {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(code));
    match outcome {
        Ok(result) => result.map(Response::Fetched),
        Err(panic) => Err(panicked(&*panic)),
    }
}

/// Answers a call, unless that was done before: what may be dropped before it runs shares its
/// responder with who hands it over.
pub(crate) fn answer_once(responder: &Mutex<Option<Responder>>, result: CallResult) {
    let mut place = responder.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(responder) = place.take() {
        drop(place);
        responder.answer(result);
    }
}

/// How a call ends whose function panicked.
pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> Status {
    Status::new(
        grpcxx_rpc::Code::Internal,
        format!("the function panicked: {}", panic_text(panic)),
    )
    .because(Reason::Panicked)
}
