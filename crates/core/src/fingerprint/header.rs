//! Headers that count in a fingerprint, and those that never may.

use std::fmt;

/// The name of a header that counts in a fingerprint, in lower case.
///
/// Whatever differs between two attempts of one client would make its retry another request, so the
/// names of such headers are refused.
///
/// ```
/// use semel_core::FingerprintHeader;
///
/// assert_eq!(FingerprintHeader::new("Stripe-Account")?.as_str(), "stripe-account");
/// let error = FingerprintHeader::new("X-Request-Id").unwrap_err();
/// assert!(error.to_string().contains("every attempt"));
/// # Ok::<(), semel_core::fingerprint::FingerprintHeaderError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FingerprintHeader(Box<str>);

/// Why a header cannot count in a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FingerprintHeaderError {
    /// The text is not the name of a header.
    #[error("this cannot be the name of a header")]
    Name,
    /// Every attempt has a new value.
    #[error("this header differs for every attempt, so a retry would be taken for another request")]
    PerAttempt,
    /// A library or a browser sets it by itself.
    #[error(
        "client libraries set this header by themselves and change it, so a retry could be taken \
         for another request"
    )]
    Automatic,
    /// It proves or says who sent the request.
    #[error(
        "this header says who sends a request and may be renewed between two attempts; who the \
         caller is belongs in the caller rule"
    )]
    Credential,
    /// It describes the body, which counts already.
    #[error("this header describes the body, which counts already by what it means")]
    Body,
    /// It describes the connection or the path of the request through proxies.
    #[error("this header describes the hops of a request, and a retry may take others")]
    Hop,
    /// The host has a rule of its own.
    #[error("the host counts by a rule of its own")]
    Host,
    /// It is part of this protocol.
    #[error("this header is part of the idempotency protocol itself")]
    Own,
}

impl FingerprintHeader {
    /// The header of this name.
    ///
    /// # Errors
    ///
    /// If the text is not the name of a header, or the header may differ between two attempts.
    pub fn new(name: &str) -> Result<Self, FingerprintHeaderError> {
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(FingerprintHeaderError::Name);
        }
        let name = name.to_ascii_lowercase();
        match unfit(&name) {
            Some(error) => Err(error),
            None => Ok(Self(name.into())),
        }
    }

    /// The name in lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why a header of this name, in lower case, cannot count.
fn unfit(name: &str) -> Option<FingerprintHeaderError> {
    use FingerprintHeaderError as Error;

    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
    if begins(&["idempotency-", "idempotent-"]) || name == "x-idempotency-key" {
        return Some(Error::Own);
    }
    if name == "host" {
        return Some(Error::Host);
    }
    if PER_ATTEMPT.contains(&name)
        || begins(&["x-b3-", "x-datadog-", "x-ot-", "ot-tracer-", "x-instana-", "x-envoy-"])
        || ends(&["request-id", "correlation-id", "trace-id", "span-id", "-retry-count"])
    {
        return Some(Error::PerAttempt);
    }
    if AUTOMATIC.contains(&name) || begins(&["accept-", "sec-", "x-stainless-"]) {
        return Some(Error::Automatic);
    }
    if CREDENTIALS.contains(&name) || ends(&["-signature", "authorization"]) {
        return Some(Error::Credential);
    }
    if BODY.contains(&name) || begins(&["content-"]) {
        return Some(Error::Body);
    }
    if WAY.contains(&name) || begins(&["x-forwarded-", "cf-", "proxy-"]) {
        return Some(Error::Hop);
    }
    None
}

const PER_ATTEMPT: [&str; 23] = [
    "age",
    "b3",
    "baggage",
    "date",
    "grpc-previous-rpc-attempts",
    "grpc-timeout",
    "grpc-trace-bin",
    "newrelic",
    "nonce",
    "request-deadline",
    "request-timeout",
    "sentry-trace",
    "stripe-client-telemetry",
    "timestamp",
    "traceparent",
    "tracestate",
    "uber-trace-id",
    "x-amz-date",
    "x-amzn-trace-id",
    "x-cloud-trace-context",
    "x-request-start",
    "x-request-timeout-ms",
    "x-timestamp",
];

const AUTOMATIC: [&str; 16] = [
    "accept",
    "cache-control",
    "dnt",
    "from",
    "pragma",
    "priority",
    "referer",
    "save-data",
    "upgrade-insecure-requests",
    "user-agent",
    "x-amz-user-agent",
    "x-goog-api-client",
    "x-requested-with",
    "x-stripe-client-user-agent",
    "x-user-agent",
    "grpc-accept-encoding",
];

const CREDENTIALS: [&str; 8] = [
    "authentication",
    "cookie",
    "dpop",
    "signature",
    "signature-input",
    "x-amz-security-token",
    "x-csrf-token",
    "x-xsrf-token",
];

const BODY: [&str; 8] = [
    "digest",
    "expect",
    "grpc-encoding",
    "mime-version",
    "repr-digest",
    "trailer",
    "transfer-encoding",
    "want-digest",
];

const WAY: [&str; 13] = [
    "connection",
    "fly-client-ip",
    "forwarded",
    "http2-settings",
    "keep-alive",
    "max-forwards",
    "te",
    "true-client-ip",
    "upgrade",
    "via",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-real-ip",
];

impl fmt::Display for FingerprintHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FingerprintHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FingerprintHeader").field(&self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_says_for_whom_or_how_may_count() {
        for name in [
            "Stripe-Account",
            "Stripe-Version",
            "X-Tenant-Id",
            "X-Merchant-Id",
            "X-Account",
            "Prefer",
            "If-Match",
            "If-Unmodified-Since",
            "Origin",
            "X-Test-Mode",
        ] {
            assert_eq!(FingerprintHeader::new(name).unwrap().as_str(), name.to_ascii_lowercase());
        }
    }

    #[test]
    fn a_header_that_changes_between_attempts_is_refused_with_the_reason() {
        use FingerprintHeaderError as Error;

        for (error, names) in [
            (Error::PerAttempt, &["Date", "traceparent", "tracestate", "X-Request-Id"][..]),
            (Error::PerAttempt, &["X-Correlation-Id", "Request-Id", "X-B3-SpanId", "b3"]),
            (Error::PerAttempt, &["grpc-timeout", "Request-Deadline", "X-Stainless-Retry-Count"]),
            (Error::Automatic, &["User-Agent", "Accept", "Accept-Encoding", "Sec-Fetch-Mode"]),
            (Error::Credential, &["Authorization", "Proxy-Authorization", "Cookie", "DPoP"]),
            (Error::Credential, &["Stripe-Signature", "Signature-Input"]),
            (Error::Body, &["Content-Length", "Content-Type", "Content-Encoding", "Digest"]),
            (Error::Hop, &["X-Forwarded-For", "Via", "Forwarded", "Connection", "X-Real-IP"]),
            (Error::Own, &["Idempotency-Key", "Idempotency-Fence", "Idempotent-Replayed"]),
            (Error::Host, &["Host"]),
            (Error::Name, &["", "a b", "a:", "é"]),
        ] {
            for name in names {
                assert_eq!(FingerprintHeader::new(name), Err(error), "{name}");
            }
        }
    }
}
