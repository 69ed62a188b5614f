//! What a handler says about its answer beside the head: markers on the response, and errors.

use std::{error, fmt};

use http::{header, response::Parts};
use http_body::Body;
use semel::core::{ExecutionResult, Reason};

use crate::BoxError;

/// Marks an answer as a stream: a response extension for handlers.
///
/// Such an answer is streamed through, whatever its size. It cannot be replayed, so a repeat gets
/// 410 `response-not-retained`. `text/event-stream` and answers larger than `response_bytes_max`
/// are treated like this without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streaming;

/// Marks an answer that only the end of its connection ends, without a `Connection: close`: a
/// response extension for inner services that forward requests.
///
/// A truncated answer cannot be recognised then, so it is streamed through and not retained: a
/// repeat gets 410 `response-not-retained`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndsWithConnection;

/// The request did not reach the service: an error for inner services that forward requests.
///
/// When the inner service fails with this error, or with one that has it among its
/// [sources](error::Error::source), nothing was done: the key is released, and the client gets 502
/// `upstream-unreachable`. After any other error the outcome is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeverReached;

impl fmt::Display for NeverReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request did not reach the service")
    }
}

impl error::Error for NeverReached {}

/// How a call failed after the request was sent: an error for inner services that forward requests.
///
/// When the inner service or the body of its answer fails with this error, or with one that has it
/// among its [sources](error::Error::source), the record gives this reason for its unknown outcome.
/// Otherwise the reason is that the operation returned an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallBroken(pub Reason);

impl fmt::Display for CallBroken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl error::Error for CallBroken {}

/// An error and its sources.
fn chain<'a>(
    error: &'a (dyn error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// The reason that an error carries, if any.
pub(crate) fn reason_of(error: &(dyn error::Error + 'static)) -> Option<Reason> {
    let broken = chain(error).find_map(|error| error.downcast_ref::<CallBroken>());
    broken.map(|CallBroken(reason)| reason.clone())
}

/// The result of an execution whose service failed with this error.
pub(crate) fn failed(error: &(dyn error::Error + 'static)) -> ExecutionResult {
    if chain(error).any(|error| error.is::<NeverReached>()) {
        return ExecutionResult::NeverReached;
    }
    ExecutionResult::Broken(reason_of(error).unwrap_or(Reason::OperationError))
}

/// Why the end of an answer could not be read after this many bytes.
pub(crate) fn lost_after(bytes: usize, error: &BoxError) -> Reason {
    let lost = || Reason::ConnectionLost(u64::try_from(bytes).unwrap_or(u64::MAX));
    reason_of(&**error).unwrap_or_else(lost)
}

/// Whether an answer is streamed through. One that has already ended is not.
pub(crate) fn is_stream<B: Body>(parts: &Parts, body: &B, max: usize) -> bool {
    let events = || {
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let essence = content_type.and_then(|value| value.as_bytes().get(..17));
        essence.is_some_and(|essence| essence.eq_ignore_ascii_case(b"text/event-stream"))
    };
    let large = || body.size_hint().lower() > u64::try_from(max).unwrap_or(u64::MAX);
    let marked = || {
        parts.extensions.get::<Streaming>().is_some()
            || parts.extensions.get::<EndsWithConnection>().is_some()
    };
    !body.is_end_stream() && (large() || events() || marked())
}
