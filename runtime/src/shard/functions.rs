//! Calls of functions and of methods of services: where the code of each runs.

use std::sync::Arc;
use std::time::Instant;

use grpcxx_rpc::{Code, Envelope, GraphCall, Response, Status, home_shard};

use crate::caller::Caller;
use crate::client::Mailboxes;
use crate::command::{Command, GraphDone, Origin};
use crate::compute::{Job, Pace, ShortCall};
use crate::function::{Function, Responder, WaitingCall, caught};
use crate::registry::{Entry, PULL_ON_SHARD_MAX};
use crate::service::{Begun, Registered, graph_door, run_on_pool};
use crate::shard::core::Core;
use crate::shard::shares::StreamShare;
use crate::trace::{self, CallSpan};

/// A function, and who runs it.
struct Runs {
    function: Arc<dyn Function>,
    /// How long it took so far; none if that does not count.
    pace: Option<Arc<Pace>>,
    /// Whether it is the engine's, and runs also while functions of the program hold the pool.
    is_own: bool,
}

impl Runs {
    fn own(function: Arc<dyn Function>, pace: Option<Arc<Pace>>) -> Self {
        Self {
            function,
            pace,
            is_own: true,
        }
    }

    fn of_program(function: Arc<dyn Function>, pace: Arc<Pace>) -> Self {
        Self {
            function,
            pace: Some(pace),
            is_own: false,
        }
    }
}

/// The door through which a call of a method came: how it is answered.
pub(super) struct Door {
    respond: fn(Envelope) -> Response,
    graph_done: Option<GraphDone>,
    span: CallSpan,
}

impl Door {
    pub(super) fn service() -> Self {
        Self {
            respond: Response::Unary,
            graph_done: None,
            span: CallSpan::default(),
        }
    }

    fn graph(graph_done: Option<GraphDone>, span: CallSpan) -> Self {
        Self {
            respond: graph_door::response,
            graph_done,
            span,
        }
    }

    /// Answers the call when its method has ended.
    fn answerer(
        self,
        mailboxes: &Arc<Mailboxes>,
        origin: Origin,
    ) -> impl FnOnce(Result<Envelope, Status>) + Send + use<> {
        let responder = Responder::of_graph(Arc::clone(mailboxes), origin, self.graph_done);
        let responder = responder.in_span(self.span);
        move |answer| responder.answer(answer.map(self.respond))
    }
}

impl<A> Core<A> {
    pub(super) fn serve_graph(&mut self, origin: Origin, call: Box<GraphCall>) {
        if call.ps_graph_count < 0 {
            let text = format!(
                "ps_graph_count is {}; send the number of graph calls of the step on this task, or 0",
                call.ps_graph_count
            );
            return self.answer(origin, Err(Status::new(Code::InvalidArgument, text)), None);
        }
        let functions = self.shared.functions.load();
        let graph_done = GraphDone::of(&call, self.account_of(origin))
            .filter(|done| self.counts_down(origin, done.step_id));
        match functions.find(&call.graph_handle) {
            Some(Entry::Pull(_)) if call.fetches.len() <= PULL_ON_SHARD_MAX => {
                let span = trace::of_served(&call.graph_handle, call.trace);
                let result = crate::registry::pull(&self.shared.store.load(), &call.fetches);
                span.note_end(&result);
                self.answer_graph(origin, graph_done, result);
            }
            Some(Entry::Pull(function)) => {
                let runs = Runs::own(function.clone(), None);
                self.start_function(origin, graph_done, runs, call);
            }
            Some(Entry::Push(function, pace)) => {
                let runs = Runs::own(function.clone(), Some(pace.clone()));
                self.start_function(origin, graph_done, runs, call);
            }
            Some(Entry::Function(function, pace)) => {
                let runs = Runs::of_program(function.clone(), pace.clone());
                self.start_function(origin, graph_done, runs, call);
            }
            Some(Entry::Method(method)) => {
                let method = Arc::clone(method);
                self.serve_method(origin, graph_done, &method, call);
            }
            Some(Entry::List(lister)) => {
                let runs = Runs::own(lister.for_peer(self.account_of(origin)), None);
                self.start_function(origin, graph_done, runs, call);
            }
            Some(&Entry::Staging(act)) => match self.staging_function(origin, act) {
                Ok(function) => {
                    self.start_function(origin, graph_done, Runs::own(function, None), call);
                }
                Err(status) => self.answer_graph(origin, graph_done, Err(status)),
            },
            None => {
                let text = functions.unknown(&call.graph_handle);
                let unknown = Err(Status::new(Code::NotFound, text));
                self.answer_graph(origin, graph_done, unknown);
            }
        }
    }

    /// Lets a function run: at once, unless it may block.
    fn start_function(
        &mut self,
        origin: Origin,
        graph_done: Option<GraphDone>,
        runs: Runs,
        call: Box<GraphCall>,
    ) {
        call.expose();
        let function = &runs.function;
        if function.answers_at_once() {
            let span = trace::of_served(&call.graph_handle, call.trace);
            let call = self.unboxed(origin, call);
            let result = span.in_scope(|| caught(|| function.call(call)));
            span.note_end(&result);
            return self.answer_graph(origin, graph_done, result);
        }
        let mailboxes = self.shared.mailboxes.clone();
        let span = trace::of_served(&call.graph_handle, call.trace);
        let responder = Responder::of_graph(mailboxes, origin, graph_done);
        let responder = responder.in_span(span.clone());
        if function.may_block() {
            self.run_function(origin, runs, (call, responder, span));
        } else {
            span.in_scope(|| function.start(*call, responder));
        }
    }

    /// Runs a function: on the thread of the shard if it was short so far, else on a pool, unless
    /// it is withdrawn before.
    fn run_function(
        &mut self,
        origin: Origin,
        runs: Runs,
        (call, responder, span): (Box<GraphCall>, Responder, CallSpan),
    ) {
        let peer = self.account_of(origin);
        let (function, is_own) = (runs.function, runs.is_own);
        let start = move |call: Box<GraphCall>, responder| {
            span.in_scope(|| function.start(*call, responder));
        };
        let pace = runs.pace.filter(|_| self.shared.runs_short_calls);
        if let Some(pace) = pace.as_ref().filter(|pace| pace.is_short()) {
            if self.may_run_short_calls() {
                self.counters().short_calls.add(1);
                return self.short_calls.push(ShortCall {
                    peer,
                    pace: pace.clone(),
                    is_own,
                    job: Job::new(move || start(call, responder)),
                });
            }
            self.pass_on_short_call();
        }
        let waiting = WaitingCall::new(call, responder);
        let job = waiting.job(move |call, responder| {
            let begin = Instant::now();
            start(call, responder);
            if let Some(pace) = pace {
                pace.note(begin.elapsed());
            }
        });
        self.watch(origin, waiting);
        self.shared.pool(is_own).spawn(peer, job);
    }

    /// A short call goes to a pool. After many, the thread of a shard for which no thread comes
    /// that waits keeps it, so that it can run them.
    fn pass_on_short_call(&mut self) {
        let mailboxes = &self.shared.mailboxes;
        if self.is_borrowed() || mailboxes.are_bound() {
            return;
        }
        if let Some(lender) = mailboxes.lender(self.index)
            && self.short_calls.pass_on(lender.comings())
        {
            lender.bind();
        }
    }

    /// Whether nothing relies on the shard's own thread, which turns the shard.
    fn may_run_short_calls(&self) -> bool {
        self.short_calls.are_run() && !self.is_borrowed() && !self.mailboxes().are_bound()
    }

    /// Serves a call of a method by a peer that knows no services.
    fn serve_method(
        &mut self,
        origin: Origin,
        graph_done: Option<GraphDone>,
        method: &Arc<Registered>,
        call: Box<GraphCall>,
    ) {
        call.expose();
        let caller = self.caller_of(origin, None);
        let span = trace::of_served(&call.graph_handle, call.trace);
        let begun = graph_door::envelope(method, *call)
            .map(|envelope| span.in_scope(|| method.begin(envelope, &caller, self.index)));
        let begun = begun.unwrap_or_else(|status| Begun::Ended(Err(status)));
        self.carry_on(origin, begun, None, Door::graph(graph_done, span));
    }

    pub(super) fn serve_unary(
        &mut self,
        origin: Origin,
        caller: &Caller,
        mut boxed: Box<Envelope>,
    ) {
        if self.is_stopping() {
            return self.answer(origin, Err(self.stopping()), None);
        }
        let functions = self.shared.functions.load();
        let envelope = std::mem::take(&mut *boxed);
        if let Some(connection) = self.connection_of(origin) {
            connection.reuse_envelope(boxed);
        }
        let Some(method) = functions.method(envelope.path()) else {
            let text = functions.unknown_path(envelope.path());
            let unknown = Status::new(Code::Unimplemented, text);
            return self.answer(origin, Err(unknown), None);
        };
        envelope.expose();
        let begun = method.begin(envelope, caller, self.index);
        self.carry_on(origin, begun, None, Door::service());
    }

    /// Answers a call of a method, or lets it go on. `share` is let go of when the call has ended,
    /// and all that it has sent has left.
    pub(super) fn carry_on(
        &mut self,
        origin: Origin,
        begun: Begun,
        share: Option<Arc<StreamShare>>,
        door: Door,
    ) {
        let mailboxes = &self.shared.mailboxes;
        let withdrawal = match begun {
            Begun::Ended(answer) => {
                if let Some(share) = share {
                    self.watch(origin, share);
                }
                let result = answer.map(door.respond);
                door.span.note_end(&result);
                return self.answer_graph(origin, door.graph_done, result);
            }
            Begun::Waits(waits) => Registered::run(waits, door.answerer(mailboxes, origin)),
            Begun::ForPool(runs) => {
                let (peer, done) = (self.account_of(origin), door.answerer(mailboxes, origin));
                run_on_pool(&self.shared.compute, peer, runs, done)
            }
        };
        self.watch(origin, Arc::new(withdrawal.with(share)));
    }

    fn answer_graph(
        &mut self,
        origin: Origin,
        graph_done: Option<GraphDone>,
        result: Result<Response, Status>,
    ) {
        self.answer(origin, result, None);
        if let Some(graph_done) = graph_done {
            let home = home_shard(graph_done.step_id, self.shared.loads.len());
            self.route(home, Command::GraphDone(graph_done));
        }
    }
}
