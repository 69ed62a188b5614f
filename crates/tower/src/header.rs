//! The headers of the protocol.

use std::time::{Duration, SystemTime};

use http::{HeaderName, HeaderValue};

/// `Idempotency-Key`: names one logical operation; sent by a client.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// `Idempotent-Replayed: true` marks an answer from the record of this layer, `redacted` one whose
/// body was redacted. The layer removes one that the service sends from the answer to a guarded
/// request.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// `Idempotency-Outcome`: the verdict of a service on its own answer: `completed`, `retry`,
/// `forget` or `unknown`. It is never sent to a client.
pub const IDEMPOTENCY_OUTCOME: HeaderName = HeaderName::from_static("idempotency-outcome");

/// `Idempotency-Tag`: what a service calls its answer, for [velocity
/// limits](crate::VelocityRule) that count by it. It is never sent to a client.
pub const IDEMPOTENCY_TAG: HeaderName = HeaderName::from_static("idempotency-tag");

/// `Idempotency-Duplicate`: `intended` from a client that means an operation a second time;
/// `possible` marks the answer of one that may be a duplicate.
pub const IDEMPOTENCY_DUPLICATE: HeaderName = HeaderName::from_static("idempotency-duplicate");

/// `Idempotency-Fence`: the fence, from a gateway to its upstream. One from a client is removed.
pub const IDEMPOTENCY_FENCE: HeaderName = HeaderName::from_static("idempotency-fence");

/// `Idempotency-Attempt`: the attempt, from a gateway to its upstream. One from a client is
/// removed.
pub const IDEMPOTENCY_ATTEMPT: HeaderName = HeaderName::from_static("idempotency-attempt");

/// `Idempotency-Problem`: the slug of a problem, beside its document or its gRPC status, so that
/// another layer or a gateway in front recognises it. It is trusted only if the rest of the answer
/// agrees: the status, the media type and the `type` of the document, or for gRPC a trailers-only
/// answer with the code of the problem. Otherwise it is removed.
pub const IDEMPOTENCY_PROBLEM: HeaderName = HeaderName::from_static("idempotency-problem");

/// `Idempotency-Guarded: false` marks the answer of an operation that ran although the store was
/// unavailable (`on_store_down = "pass"`): nothing is recorded, and a retry may run it again.
pub const IDEMPOTENCY_GUARDED: HeaderName = HeaderName::from_static("idempotency-guarded");

/// `Idempotency-Expires`: how long the record of the answer is kept, at least, as a
/// structured-field Date (`@1794902400`). Afterwards the key is free for another operation. It is
/// on completed answers and on replays, and not on an answer that is streamed. The layer removes
/// one that the service sends from the answer to a guarded request.
pub const IDEMPOTENCY_EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");

/// `Idempotency-Trace`: the trace context of the request that ran the operation, as in
/// `traceparent`. It is in the record, so that a replay can be linked to it, and on the response
/// of a layer whose request had a [`TraceParent`](crate::TraceParent). The layer removes one that
/// the service sends.
pub const IDEMPOTENCY_TRACE: HeaderName = HeaderName::from_static("idempotency-trace");

/// `x-should-retry: true` or `false`: whether a client should send the same request again. The SDKs
/// that Stainless generates obey it.
pub const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The same, by the name that the SDKs of Stripe obey.
pub const STRIPE_SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");

/// `Retry-After` in milliseconds, as the SDKs that Stainless generates read it.
pub const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// Integers of structured fields have at most 15 digits (RFC 9651).
const STRUCTURED_INTEGER_MAX: u64 = 1_000_000_000_000_000;

pub(crate) const DEPRECATION: HeaderName = HeaderName::from_static("deprecation");
pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(crate) const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
pub(crate) const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The message id of Standard Webhooks, which a retry keeps.
pub const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");

/// The message id of Svix.
pub const SVIX_ID: HeaderName = HeaderName::from_static("svix-id");

/// The delivery id of GitHub, which a redelivery keeps. No signature covers it.
pub const GITHUB_DELIVERY: HeaderName = HeaderName::from_static("x-github-delivery");

/// The structured-field Date `left` after `now`, rounded down to the second; `None` beyond what a
/// structured field can say.
pub(crate) fn date_after(now: SystemTime, left: Duration) -> Option<HeaderValue> {
    let at = now.checked_add(left)?.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    (at < STRUCTURED_INTEGER_MAX).then(|| HeaderValue::try_from(format!("@{at}")).ok()).flatten()
}

/// A duration as a header value in milliseconds.
pub(crate) fn milliseconds(duration: Duration) -> HeaderValue {
    HeaderValue::from(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_rounded_down_and_has_at_most_15_digits() {
        let date = |seconds, millis| {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            date_after(now, Duration::from_millis(millis))
        };
        assert_eq!(date(1_794_902_400, 999).unwrap(), "@1794902400");
        assert_eq!(date(1_794_902_400, 1000).unwrap(), "@1794902401");
        assert_eq!(date(999_999_999_999_999, 999).unwrap(), "@999999999999999");
        assert_eq!(date(999_999_999_999_999, 1000), None);
        assert_eq!(date_after(SystemTime::UNIX_EPOCH, Duration::MAX), None);
    }
}
