use std::fmt;
use std::sync::Arc;

use grpcxx_rpc::{GraphCall, Request, Response, Status, Tensor, Text};

use crate::call::CallResult;
use crate::client::Mailboxes;
use crate::command::{Command, Origin};

/// Code that peers call by name with tensors in and tensors out.
///
/// A call arrives as StarRunGraph whose graph handle is the function's name. It runs on a thread of the compute
/// pool, so it may block, and several calls may run at once.
pub trait Function: Send + Sync {
    /// Runs the function. The answer must hold exactly the tensors named in `call.fetches`, in any order.
    ///
    /// # Errors
    /// The status that the caller gets.
    fn call(&self, call: GraphCall) -> Result<Vec<(Text, Tensor)>, Status>;
}

impl<F> Function for F
where
    F: Fn(GraphCall) -> Result<Vec<(Text, Tensor)>, Status> + Send + Sync,
{
    fn call(&self, call: GraphCall) -> Result<Vec<(Text, Tensor)>, Status> {
        self(call)
    }
}

/// Sees each request from a peer before the built-in services do.
///
/// Runs on the shard's thread and must not block.
pub trait Service: Send + Sync {
    /// Takes a request, or gives it back for the built-in services.
    fn serve(&self, request: Request, later: Later<'_>) -> Served;
}

/// What a [`Service`] did with a request.
#[derive(Debug)]
pub enum Served {
    /// Here is the answer.
    Now(CallResult),
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

/// Proof that somebody holds the responder.
#[derive(Debug)]
pub struct Promise(());

impl<'a> Later<'a> {
    pub(crate) fn new(mailboxes: &'a Arc<Mailboxes>, origin: Origin) -> Self {
        Self { mailboxes, origin }
    }

    /// The responder, which may go to any thread, and what to return meanwhile.
    pub fn promise(self) -> (Responder, Served) {
        let responder = Responder::new(Arc::clone(self.mailboxes), self.origin);
        (responder, Served::Later(Promise(())))
    }
}

/// The right, and the duty, to answer one request. Dropping it answers with `INTERNAL`.
pub struct Responder {
    mailboxes: Arc<Mailboxes>,
    origin: Option<Origin>,
}

impl Responder {
    pub(crate) fn new(mailboxes: Arc<Mailboxes>, origin: Origin) -> Self {
        Self {
            mailboxes,
            origin: Some(origin),
        }
    }

    /// Answers the request.
    pub fn answer(mut self, result: CallResult) {
        self.send(result);
    }

    fn send(&mut self, result: CallResult) {
        if let Some(origin) = self.origin.take() {
            self.mailboxes.deliver(
                origin.shard(),
                Command::Answer {
                    origin,
                    result,
                    taken: None,
                },
            );
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.send(Err(Status::new(
            grpcxx_rpc::Code::Internal,
            "the service dropped the request without an answer",
        )));
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Responder").field(&self.origin).finish()
    }
}

/// Runs `function` on `call` and shapes its result into an answer.
pub(crate) fn run(function: &dyn Function, call: GraphCall) -> CallResult {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| function.call(call)));
    match outcome {
        Ok(result) => result.map(Response::Fetched),
        Err(panic) => Err(Status::new(
            grpcxx_rpc::Code::Internal,
            format!("the function panicked: {}", panic_text(&*panic)),
        )),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "no message"
    }
}
