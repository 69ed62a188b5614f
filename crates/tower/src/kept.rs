//! Which headers of an answer are kept for its replay.

use http::HeaderName;

/// Which headers are kept: those that say what the answer is, and what the route adds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    added: Vec<HeaderName>,
}

/// Headers that belong to one connection, one moment or one client, and are kept by no route.
const NEVER: [&str; 14] = [
    "connection",
    "date",
    "idempotency-outcome",
    "idempotent-replayed",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "retry-after",
    "server",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

impl Kept {
    pub(crate) fn new(names: impl IntoIterator<Item = HeaderName>) -> Self {
        let may_be = |name: &HeaderName| !NEVER.contains(&name.as_str());
        Self { added: names.into_iter().filter(may_be).collect() }
    }

    /// Whether a header of this name is kept; `grpc` is whether the answer is gRPC.
    pub(crate) fn keeps(&self, name: &HeaderName, grpc: bool) -> bool {
        let text = name.as_str();
        matches!(text, "location" | "etag" | "last-modified" | "link" | "vary" | "cache-control")
            || text.starts_with("content-")
            || text.starts_with("access-control-")
            || (grpc && text.starts_with("grpc-"))
            || self.added.contains(name)
    }
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
