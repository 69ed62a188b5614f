//! The spans of a request: itself, its request to the upstream, and those of the engine.
//!
//! They are spans of the crate `tracing` with the target [`SPAN_TARGET`](crate::log::SPAN_TARGET).
//! Without a receiver they are disabled, and everything here returns at once. With the feature
//! `otlp` and [`TraceExport`] they are exported, and the trace context comes in and goes out as W3C
//! Trace Context says.
//!
//! Nothing here asks by `span_enabled!`: after that, a layer with a filter drops the next event.

use http::{HeaderMap, HeaderValue, Method};
use tracing::{Span, field::Empty};

#[cfg(feature = "otlp")]
use crate::otlp;

/// Where traces are exported to: what `OTEL_EXPORTER_OTLP_ENDPOINT` and its siblings say, which the
/// exporter reads itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceExport {
    /// The name of this service.
    pub service_name: String,
}

/// The span of a request, a child of the span that the client names in `traceparent`.
pub fn request_span(method: &Method, path: &str, headers: &HeaderMap) -> Span {
    let span = tracing::info_span!(
        target: "semel::span",
        "request",
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method.as_str(),
        url.path = path,
        http.response.status_code = Empty,
        semel.scope = Empty,
        semel.outcome = Empty,
    );
    #[cfg(feature = "otlp")]
    if !span.is_disabled() {
        otlp::set_parent(&span, headers);
    }
    #[cfg(not(feature = "otlp"))]
    let _ = headers;
    span
}

/// Notes what became of a request. `original` is the trace context of the request that ran the
/// operation, to which the span of any other request is linked.
pub fn finish(
    span: &Span,
    status: u16,
    scope: Option<&str>,
    outcome: Option<&str>,
    original: Option<&HeaderValue>,
) {
    span.record("http.response.status_code", status);
    span.record("semel.scope", scope);
    span.record("semel.outcome", outcome);
    if status >= 500 {
        span.record("otel.status_code", "ERROR");
    }
    #[cfg(feature = "otlp")]
    if let Some(original) = original {
        otlp::link(span, original);
    }
    #[cfg(not(feature = "otlp"))]
    let _ = original;
}

/// The span of a request to the upstream, a child of the current one.
pub fn upstream_span(method: &Method, path: &str) -> Span {
    tracing::info_span!(
        target: "semel::span",
        "upstream",
        otel.kind = "client",
        otel.status_code = Empty,
        http.request.method = method.as_str(),
        url.path = path,
        http.response.status_code = Empty,
    )
}

/// Notes how a request to the upstream was answered; without a status it failed.
pub fn finish_upstream(span: &Span, status: Option<u16>) {
    span.record("http.response.status_code", status);
    if status.is_none_or(|status| status >= 500) {
        span.record("otel.status_code", "ERROR");
    }
}

/// The context of a span as a `traceparent`, if the span is exported.
pub fn traceparent_of(span: &Span) -> Option<HeaderValue> {
    #[cfg(feature = "otlp")]
    return (!span.is_disabled()).then(|| otlp::traceparent_of(span)).flatten();
    #[cfg(not(feature = "otlp"))]
    {
        let _ = span;
        None
    }
}

/// Names a span as the parent in the headers of a request. A span that is not exported leaves them
/// as the client sent them.
pub fn inject(span: &Span, headers: &mut HeaderMap) {
    #[cfg(feature = "otlp")]
    if !span.is_disabled() {
        otlp::inject(span, headers);
    }
    #[cfg(not(feature = "otlp"))]
    let _ = (span, headers);
}
