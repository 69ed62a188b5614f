//! The span of a request, and the fields of a response that are for the gateway alone.

use http::{Request, Response};
use semel_tower::{
    RequestOutcome, TraceParent,
    header::{IDEMPOTENCY_OUTCOME, IDEMPOTENCY_TAG, IDEMPOTENCY_TRACE},
};
use tracing::Span;

use semel_telemetry::{log::outcome_name, trace};

/// The span of one request, from its head to the head of its response.
#[derive(Debug)]
pub(super) struct RequestTrace(Span);

impl RequestTrace {
    /// Starts the span. If it is exported, the request takes it along, so that it is recorded with
    /// the answer.
    pub(super) fn start<B>(request: &mut Request<B>) -> Self {
        let span = trace::request_span(request.method(), request.uri().path(), request.headers());
        if let Some(parent) = trace::traceparent_of(&span) {
            request.extensions_mut().insert(TraceParent(parent));
        }
        Self(span)
    }

    pub(super) const fn span(&self) -> &Span {
        &self.0
    }

    /// Removes the fields that are not for the client, and notes what became of the request. What
    /// another request ran is linked to the trace of that one.
    pub(super) fn finish<B>(&self, mut response: Response<B>) -> Response<B> {
        response.headers_mut().remove(IDEMPOTENCY_OUTCOME);
        response.headers_mut().remove(IDEMPOTENCY_TAG);
        let original = response.headers_mut().remove(IDEMPOTENCY_TRACE);
        if self.0.is_disabled() {
            return response;
        }
        let status = response.status().as_u16();
        let served = response.extensions().get::<RequestOutcome>();
        let scope = served.and_then(|served| served.id.as_ref()).map(|id| id.scope.as_str());
        let outcome = served.map(|served| outcome_name(served.outcome));
        trace::finish(&self.0, status, scope, outcome, original.as_ref());
        response
    }
}
