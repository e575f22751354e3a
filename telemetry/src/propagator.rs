use grpcxx_rpc::TraceContext;
use grpcxx_runtime::trace::Propagator;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Finds the contexts of spans that `tracing-opentelemetry` exports.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenTelemetry;

impl Propagator for OpenTelemetry {
    fn context(&self, span: &Span) -> Option<TraceContext> {
        let context = span.context();
        let span = context.span();
        let found = span.span_context();
        TraceContext::new(
            u128::from_be_bytes(found.trace_id().to_bytes()),
            u64::from_be_bytes(found.span_id().to_bytes()),
            found.is_sampled(),
        )
    }

    fn set_parent(&self, span: &Span, parent: TraceContext) {
        let flags = match parent.is_sampled() {
            true => TraceFlags::SAMPLED,
            false => TraceFlags::NOT_SAMPLED,
        };
        let context = SpanContext::new(
            TraceId::from(parent.trace_id()),
            SpanId::from(parent.span_id()),
            flags,
            true,
            TraceState::NONE,
        );
        let parent = opentelemetry::Context::new().with_remote_span_context(context);
        // It fails where nobody exports this span.
        let _ = span.set_parent(parent);
    }
}
