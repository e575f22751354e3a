//! Spans of calls for programs that trace: one at the caller and one at whoever serves, joined by
//! the [`TraceContext`] that travels with the call.
//!
//! A program that traces sets a [`Propagator`]. Without one no span is made, and a call costs one
//! look at that.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;

use grpcxx_rpc::{Envelope, Metadata, Request, Status, Text, TraceContext};
use thiserror::Error;
use tracing::field::Empty;
use tracing::{Instrument, Span};

/// Knows which context a span of `tracing` has, for the way that the program exports spans.
pub trait Propagator: Send + Sync {
    /// The context of `span`, which travels with a call that is made in it. `None` lets the call
    /// travel without one.
    fn context(&self, span: &Span) -> Option<TraceContext>;

    /// Makes `span`, which has just begun, a child of the span at the caller.
    fn set_parent(&self, span: &Span, parent: TraceContext);
}

/// The process has a propagator already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the process has a propagator already; set it once, before the first engine starts")]
pub struct PropagatorIsSet;

/// The target of the spans, for filters of `tracing`. Their level is `INFO`.
pub const TARGET: &str = "grpcxx::trace";

/// Lets calls of functions and of methods that begin from here on have spans, in this process.
///
/// # Errors
/// There is a propagator.
pub fn set_propagator(propagator: impl Propagator + 'static) -> Result<(), PropagatorIsSet> {
    PROPAGATOR
        .set(Box::new(propagator))
        .map_err(|_| PropagatorIsSet)
}

/// The span of one end of a call. It takes no room where nobody traces.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallSpan(Option<Box<Span>>);

/// The span of a call that is about to begin, and which the request carries from here on. None if
/// nobody traces, or the request is no call of a function.
pub(crate) fn of_request(request: &mut Request, address: &str) -> CallSpan {
    let Some(propagator) = PROPAGATOR.get() else {
        return CallSpan::default();
    };
    let Request::StarRunGraph(call) = request else {
        return CallSpan::default();
    };
    let span = client_span(call.graph_handle.as_str(), address);
    call.trace = propagator.context(&span).or(call.trace);
    CallSpan::new(span)
}

/// The span of a call of the method at `path` that is about to begin, and which its metadata carry
/// from here on. None if nobody traces.
pub(crate) fn of_method(path: &str, address: &str, metadata: &mut Metadata) -> CallSpan {
    let Some(propagator) = PROPAGATOR.get() else {
        return CallSpan::default();
    };
    let span = client_span(path, address);
    carry(&**propagator, &span, metadata);
    CallSpan::new(span)
}

/// The metadata of a call that streams, with the span that it is made in, if somebody traces.
pub(crate) fn with_current(metadata: &Metadata) -> Cow<'_, Metadata> {
    let Some(propagator) = PROPAGATOR.get() else {
        return Cow::Borrowed(metadata);
    };
    let mut metadata = metadata.clone();
    carry(&**propagator, &Span::current(), &mut metadata);
    Cow::Owned(metadata)
}

/// The span of a call of a method that is about to be served. None if nobody traces.
pub(crate) fn of_served_method(envelope: &Envelope) -> CallSpan {
    let Some(propagator) = PROPAGATOR.get() else {
        return CallSpan::default();
    };
    let metadata = envelope.request_metadata();
    let parent = metadata.get_bin(TraceContext::METADATA);
    let parent = parent.and_then(TraceContext::parse);
    serving(&**propagator, envelope.path(), parent)
}

fn carry(propagator: &dyn Propagator, span: &Span, metadata: &mut Metadata) {
    if let Some(context) = propagator.context(span) {
        // Where metadata have no room for it, the call goes without.
        let _ = metadata.insert(TraceContext::METADATA, context.to_string());
    }
}

/// The span of a call that is about to be served. None if nobody traces.
#[inline]
pub(crate) fn of_served(name: &Text, parent: Option<TraceContext>) -> CallSpan {
    match PROPAGATOR.get() {
        Some(propagator) => serving(&**propagator, name.as_str(), parent),
        None => CallSpan::default(),
    }
}

fn serving(propagator: &dyn Propagator, name: &str, parent: Option<TraceContext>) -> CallSpan {
    let span = tracing::info_span!(
        target: TARGET,
        "serve",
        otel.name = name,
        otel.kind = "server",
        otel.status_code = Empty,
        otel.status_description = Empty,
        rpc.system = SYSTEM,
        rpc.method = name,
        rpc.grpc.status_code = Empty,
    );
    if let Some(parent) = parent {
        propagator.set_parent(&span, parent);
    }
    CallSpan::new(span)
}

impl CallSpan {
    fn new(span: Span) -> Self {
        Self(Some(Box::new(span)))
    }

    /// Runs code in the span.
    pub(crate) fn in_scope<T>(&self, code: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(span) => span.in_scope(code),
            None => code(),
        }
    }

    /// The span, for a future to run in.
    pub(crate) fn to_span(&self) -> Span {
        self.0.as_deref().cloned().unwrap_or_else(Span::none)
    }

    /// Runs a future in the span, and notes how it has ended. Without a span it stays what it is.
    pub(crate) fn instrument<T>(
        &self,
        future: Pin<Box<dyn Future<Output = Result<T, Status>>>>,
    ) -> Pin<Box<dyn Future<Output = Result<T, Status>>>>
    where
        T: 'static,
    {
        let Some(span) = self.0.as_deref() else {
            return future;
        };
        let (noted, span) = (self.clone(), span.clone());
        Box::pin(async move {
            let result = future.instrument(span).await;
            noted.note_end(&result);
            result
        })
    }

    /// Notes how the call has ended.
    pub(crate) fn note_end<T>(&self, result: &Result<T, Status>) {
        if let (Some(span), Err(status)) = (&self.0, result) {
            span.record("otel.status_code", "ERROR");
            span.record("otel.status_description", status.message.as_ref());
            span.record("rpc.grpc.status_code", status.code as i64);
        }
    }
}

fn client_span(name: &str, address: &str) -> Span {
    tracing::info_span!(
        target: TARGET,
        "call",
        otel.name = name,
        otel.kind = "client",
        otel.status_code = Empty,
        otel.status_description = Empty,
        rpc.system = SYSTEM,
        rpc.method = name,
        rpc.grpc.status_code = Empty,
        server.address = address,
    )
}

const SYSTEM: &str = "grpcxx";

static PROPAGATOR: OnceLock<Box<dyn Propagator>> = OnceLock::new();
