//! Export of spans by OTLP over HTTP, and the trace context in headers.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::{
    Context,
    propagation::{Extractor, TextMapPropagator as _},
    trace::{SpanContext, TraceContextExt as _, TracerProvider as _},
};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tracing::{Span, level_filters::LevelFilter};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{Layer, Registry, filter::Targets};

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// Exports spans until it is dropped, which sends those that are left.
#[derive(Debug)]
pub(crate) struct SpanExport(SdkTracerProvider);

impl SpanExport {
    /// Starts the thread that exports. Must not be called in a runtime.
    pub(crate) fn start(service_name: String) -> anyhow::Result<Self> {
        let exporter = SpanExporter::builder().with_http().build()?;
        let resource = Resource::builder().with_service_name(service_name).build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource)
            .build();
        Ok(Self(provider))
    }

    /// Receives the spans of this target.
    pub(crate) fn layer(&self, target: &str) -> Box<dyn Layer<Registry> + Send + Sync> {
        let spans = tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("semel"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false);
        let filter = Targets::new().with_target(target, LevelFilter::INFO);
        Box::new(spans.with_filter(filter))
    }
}

impl Drop for SpanExport {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last spans may not have been exported");
        }
    }
}

/// The headers of a request.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT, TRACESTATE]
    }
}

/// Makes a span the child of what a client names.
pub(crate) fn set_parent(span: &Span, headers: &HeaderMap) {
    if headers.contains_key(TRACEPARENT) {
        let propagator = TraceContextPropagator::new();
        let parent = propagator.extract_with_context(&Context::new(), &Headers(headers));
        // Fails only if no layer receives spans.
        let _ = span.set_parent(parent);
    }
}

/// Links a span to another, which this `traceparent` names. The owner of an execution has its own.
pub(crate) fn link(span: &Span, traceparent: &HeaderValue) {
    let traceparent = (HeaderName::from_static(TRACEPARENT), traceparent.clone());
    let headers = HeaderMap::from_iter([traceparent]);
    let propagator = TraceContextPropagator::new();
    let context = propagator.extract_with_context(&Context::new(), &Headers(&headers));
    let original = context.span().span_context().clone();
    if original.span_id() != context_of(span).span_id() {
        span.add_link(original);
    }
}

/// The `traceparent` of a span that is exported.
pub(crate) fn traceparent_of(span: &Span) -> Option<HeaderValue> {
    let context = context_of(span);
    (context.is_valid() && context.is_sampled()).then(|| traceparent(&context)).flatten()
}

/// Names a span as the parent of a request.
pub(crate) fn inject(span: &Span, headers: &mut HeaderMap) {
    let context = context_of(span);
    let Some(value) = context.is_valid().then(|| traceparent(&context)).flatten() else { return };
    headers.insert(TRACEPARENT, value);
    match HeaderValue::try_from(context.trace_state().header()) {
        Ok(state) if !state.is_empty() => drop(headers.insert(TRACESTATE, state)),
        _ => drop(headers.remove(TRACESTATE)),
    }
}

fn context_of(span: &Span) -> SpanContext {
    span.context().span().span_context().clone()
}

fn traceparent(context: &SpanContext) -> Option<HeaderValue> {
    let (trace, span) = (context.trace_id(), context.span_id());
    let flags = context.trace_flags().to_u8();
    HeaderValue::try_from(format!("00-{trace}-{span}-{flags:02x}")).ok()
}
