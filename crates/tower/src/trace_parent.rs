//! The trace of a request, for its record.

use http::HeaderValue;

/// The trace context of a request, as the value of a `traceparent`. An outer service puts it into
/// the extensions of a request. If that request runs the operation, it is recorded, and every
/// answer has it as
/// [`Idempotency-Trace`](crate::header::IDEMPOTENCY_TRACE) for the outer service to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceParent(pub HeaderValue);
