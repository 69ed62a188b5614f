//! The headers of an answer that are recorded for its replay.

use http::HeaderName;

/// The recorded headers: those that describe the answer, and those that the route adds.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplayHeaders {
    added: Vec<HeaderName>,
}

/// Headers that belong to one connection or are addressed to this layer.
const CONNECTION_HEADERS: [&str; 9] = [
    "connection",
    "idempotency-outcome",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "set-cookie",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Headers that are valid only once.
const TRANSIENT_HEADERS: [&str; 5] =
    ["date", "idempotency-guarded", "idempotent-replayed", "retry-after", "server"];

impl ReplayHeaders {
    pub(crate) fn new(names: impl IntoIterator<Item = HeaderName>) -> Self {
        Self { added: names.into_iter().filter(may_be_kept).collect() }
    }

    /// Whether a header of this name is recorded; `grpc` is whether the answer is gRPC.
    pub(crate) fn includes(&self, name: &HeaderName, grpc: bool) -> bool {
        let text = name.as_str();
        let described =
            matches!(text, "location" | "etag" | "last-modified" | "link" | "vary" | "trailer");
        described
            || matches!(text, "cache-control" | "idempotency-trace")
            || text.starts_with("content-")
            || text.starts_with("access-control-")
            || (grpc && text.starts_with("grpc-"))
            || self.added.contains(name)
    }
}

/// Whether a field may be recorded at all: not if it belongs to one connection, one moment or one
/// client, as `Transfer-Encoding`, `Date` and `Set-Cookie` do. All trailers that may be recorded
/// are.
#[must_use]
pub fn may_be_kept(name: &HeaderName) -> bool {
    is_shared(name) && !TRANSIENT_HEADERS.contains(&name.as_str())
}

/// Whether joined requests get a header of an answer that is not recorded: all headers of the
/// owner, except those for one client or one connection.
pub(crate) fn is_shared(name: &HeaderName) -> bool {
    !CONNECTION_HEADERS.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn includes(kept: &ReplayHeaders, name: &'static str) -> bool {
        kept.includes(&HeaderName::from_static(name), false)
    }

    #[test]
    fn only_headers_that_describe_the_answer_are_kept() {
        let kept = ReplayHeaders::default();
        for name in ["content-type", "content-language", "location", "etag", "link", "vary"] {
            assert!(includes(&kept, name), "{name}");
        }
        for name in ["date", "server", "set-cookie", "x-request-id", "retry-after", "grpc-status"] {
            assert!(!includes(&kept, name), "{name}");
        }
        assert!(kept.includes(&HeaderName::from_static("grpc-status"), true));
    }

    #[test]
    fn a_route_adds_headers_but_never_a_cookie() {
        let names = ["x-charge-id", "set-cookie", "transfer-encoding", "date"];
        let kept = ReplayHeaders::new(names.map(HeaderName::from_static));
        assert!(includes(&kept, "x-charge-id"));
        for name in ["set-cookie", "transfer-encoding", "date"] {
            assert!(!includes(&kept, name), "{name}");
        }
    }
}
