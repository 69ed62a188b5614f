//! Which headers of an answer are kept for its replay.

use http::HeaderName;

/// Which headers are kept: those that say what the answer is, and what the route adds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    added: Vec<HeaderName>,
}

/// Headers that belong to one connection or are meant for us.
const HOP: [&str; 9] = [
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

/// Headers that belong to one moment.
const MOMENT: [&str; 5] =
    ["date", "idempotency-guarded", "idempotent-replayed", "retry-after", "server"];

impl Kept {
    pub(crate) fn new(names: impl IntoIterator<Item = HeaderName>) -> Self {
        Self { added: names.into_iter().filter(may_be_kept).collect() }
    }

    /// Whether a header of this name is kept; `grpc` is whether the answer is gRPC.
    pub(crate) fn keeps(&self, name: &HeaderName, grpc: bool) -> bool {
        let text = name.as_str();
        let described =
            matches!(text, "location" | "etag" | "last-modified" | "link" | "vary" | "trailer");
        described
            || text == "cache-control"
            || text.starts_with("content-")
            || text.starts_with("access-control-")
            || (grpc && text.starts_with("grpc-"))
            || self.added.contains(name)
    }
}

/// Whether a field may be in a record at all: not if it belongs to one connection, one moment or
/// one client, as `Transfer-Encoding`, `Date` and `Set-Cookie` do. All trailers that may be are.
#[must_use]
pub fn may_be_kept(name: &HeaderName) -> bool {
    is_shared(name) && !MOMENT.contains(&name.as_str())
}

/// Whether those who joined get a header of an answer that is not recorded: what its owner gets,
/// but
/// for what is meant for one client or one connection.
pub(crate) fn is_shared(name: &HeaderName) -> bool {
    !HOP.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps(kept: &Kept, name: &'static str) -> bool {
        kept.keeps(&HeaderName::from_static(name), false)
    }

    #[test]
    fn what_describes_the_answer_is_kept_and_nothing_else() {
        let kept = Kept::default();
        for name in ["content-type", "content-language", "location", "etag", "link", "vary"] {
            assert!(keeps(&kept, name), "{name}");
        }
        for name in ["date", "server", "set-cookie", "x-request-id", "retry-after", "grpc-status"] {
            assert!(!keeps(&kept, name), "{name}");
        }
        assert!(kept.keeps(&HeaderName::from_static("grpc-status"), true));
    }

    #[test]
    fn a_route_adds_what_it_likes_but_never_a_cookie() {
        let names = ["x-charge-id", "set-cookie", "transfer-encoding", "date"];
        let kept = Kept::new(names.map(HeaderName::from_static));
        assert!(keeps(&kept, "x-charge-id"));
        for name in ["set-cookie", "transfer-encoding", "date"] {
            assert!(!keeps(&kept, name), "{name}");
        }
    }
}
