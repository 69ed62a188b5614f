//! Recognizes the problem of another Semel in the answer of the service.
//!
//! A Semel behind this layer names the problem of a refusal in `Idempotency-Problem`, and most
//! problems mean that nothing was done. The header alone proves nothing: a service that calls
//! another one through Semel and copies its response headers sends the problem of that call on an
//! answer of its own. So the header counts only if the whole answer is the problem: the media type,
//! and the `type` and the `status` of the document. A success or a redirect is never a problem. The
//! status itself may be any error: the other Semel may speak another dialect. For gRPC the answer
//! has to be trailers-only, with the code of the problem.

use http::{HeaderMap, HeaderValue, StatusCode, header, response::Parts};
use semel::core::{Dialect, Problem, Verdict};

use crate::{buffered_body::BufferedBody, grpc, header::IDEMPOTENCY_PROBLEM};

/// Maximum size of a problem document. Those of Semel have about one kilobyte.
pub(crate) const DOCUMENT_BYTES_MAX: usize = 16 << 10;

/// A problem that the headers of an answer declare. The body must confirm it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeclaredProblem {
    problem: Problem,
    /// `None` for gRPC.
    status: Option<u16>,
}

impl DeclaredProblem {
    /// The problem that the headers declare, if they agree with each other.
    pub(crate) fn of(parts: &Parts) -> Option<Self> {
        let mut lines = parts.headers.get_all(IDEMPOTENCY_PROBLEM).iter();
        let (Some(slug), None) = (lines.next(), lines.next()) else { return None };
        let slug = slug.to_str().ok()?;
        if grpc::has_grpc_type(&parts.headers) {
            let code = grpc::status(&parts.headers)?;
            let is_declared =
                |problem: &&Problem| problem.slug() == slug && grpc::code(**problem) == code;
            let problem = *Problem::ALL.iter().find(is_declared)?;
            return (parts.status == StatusCode::OK).then_some(Self { problem, status: None });
        }
        let problem = Problem::with_slug(slug)?;
        let is_error = parts.status.is_client_error() || parts.status.is_server_error();
        let status = Some(parts.status.as_u16());
        (is_error && is_problem_document(&parts.headers)).then_some(Self { problem, status })
    }

    /// The verdict on the answer, if its body agrees with its headers.
    pub(crate) fn verdict(self, buffered: &BufferedBody) -> Option<Verdict> {
        let data = buffered.data();
        let agrees = match self.status {
            None => data.is_empty() && buffered.trailers().is_none(),
            Some(status) => {
                data.len() <= DOCUMENT_BYTES_MAX && self.problem.is_document(status, data)
            }
        };
        agrees.then(|| self.problem.verdict())
    }
}

fn is_problem_document(headers: &HeaderMap) -> bool {
    let essence = |value: &HeaderValue| {
        let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        let essence = essence.trim_ascii();
        let is_of =
            |dialect: Dialect| dialect.media_type().as_bytes().eq_ignore_ascii_case(essence);
        Dialect::ALL.into_iter().any(is_of)
    };
    headers.get(header::CONTENT_TYPE).is_some_and(essence)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt;
    use semel::core::{OnUnknown, RetryContext};

    use super::*;
    use crate::reply;

    const HOLD: RetryContext = RetryContext::guarded(OnUnknown::Hold);

    /// The response of the layer itself for a problem.
    async fn sent(problem: Problem, grpc: bool) -> (Parts, Bytes) {
        sent_in(&Dialect::IETF, problem, grpc).await
    }

    async fn sent_in(dialect: &Dialect, problem: Problem, grpc: bool) -> (Parts, Bytes) {
        type Body = http_body_util::Full<Bytes>;
        let response = reply::refusal_in::<Body>(dialect, problem, grpc, HOLD);
        let (parts, body) = response.into_parts();
        (parts, body.collect().await.unwrap().to_bytes())
    }

    fn verdict(parts: &Parts, body: &[u8]) -> Option<Verdict> {
        let buffered = BufferedBody::new(Bytes::copy_from_slice(body), None);
        DeclaredProblem::of(parts)?.verdict(&buffered)
    }

    #[tokio::test]
    async fn every_problem_of_a_layer_is_recognized_by_a_layer_in_front() {
        let other_status = Dialect::STRIPE.with_status(Problem::KeyReused, 409).unwrap();
        for dialect in Dialect::ALL.into_iter().chain([other_status]) {
            for problem in Problem::ALL {
                for grpc in [false, true] {
                    let (parts, body) = sent_in(&dialect, *problem, grpc).await;
                    let found = verdict(&parts, &body);
                    assert_eq!(found, Some(problem.verdict()), "{dialect:?} {problem:?} {grpc}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_header_that_the_rest_of_the_answer_contradicts_does_not_count() {
        let (parts, body) = sent(Problem::InProgress, false).await;
        for status in [200, 201, 302, 400, 502, 503] {
            let mut other = parts.clone();
            other.status = StatusCode::from_u16(status).unwrap();
            assert_eq!(verdict(&other, &body), None, "{status}");
        }
        for media_type in ["application/jsonx", "application/problem+jsonx", "text/html"] {
            let mut other = parts.clone();
            let value = HeaderValue::from_static(media_type);
            other.headers.insert(header::CONTENT_TYPE, value);
            assert_eq!(verdict(&other, &body), None, "{media_type}");
        }
        let foreign = Dialect::IETF.document(Problem::KeyReused, None);
        for body in ["", "{}", "busy", r#"{"type":"about:blank"}"#, &foreign] {
            assert_eq!(verdict(&parts, body.as_bytes()), None, "{body}");
        }
        let long =
            Dialect::IETF.document(Problem::InProgress, Some(&"x".repeat(DOCUMENT_BYTES_MAX)));
        assert_eq!(verdict(&parts, long.as_bytes()), None);
        for slug in ["key-reused", "no-such", "", "in-progress, in-progress"] {
            let mut other = parts.clone();
            let value = HeaderValue::from_static(slug);
            other.headers.insert(IDEMPOTENCY_PROBLEM, value);
            assert_eq!(verdict(&other, &body), None, "{slug}");
        }
        let mut twice = parts.clone();
        twice.headers.append(IDEMPOTENCY_PROBLEM, HeaderValue::from_static("in-progress"));
        assert_eq!(verdict(&twice, &body), None);
        let mut unnamed = parts;
        unnamed.headers.remove(IDEMPOTENCY_PROBLEM);
        assert_eq!(verdict(&unnamed, &body), None);
    }

    #[tokio::test]
    async fn a_grpc_problem_needs_a_trailers_only_answer_with_its_code() {
        let (parts, _) = sent(Problem::InProgress, true).await;
        let stated = DeclaredProblem::of(&parts).unwrap();
        let data = BufferedBody::new(Bytes::from_static(b"\0\0\0\0\0"), None);
        assert_eq!(stated.verdict(&data), None);
        let trailers = BufferedBody::new(Bytes::new(), Some(HeaderMap::new()));
        assert_eq!(stated.verdict(&trailers), None);
        for code in ["0", "9", "what"] {
            let mut other = parts.clone();
            other.headers.insert("grpc-status", HeaderValue::from_static(code));
            assert_eq!(DeclaredProblem::of(&other), None, "{code}");
        }
        let mut other = parts;
        other.headers.remove("grpc-status");
        assert_eq!(DeclaredProblem::of(&other), None);
    }

    #[tokio::test]
    async fn parameters_of_the_media_type_are_ignored() {
        let (mut parts, body) = sent(Problem::StoreUnavailable, false).await;
        let value = HeaderValue::from_static("Application/Problem+JSON; charset=utf-8");
        parts.headers.insert(header::CONTENT_TYPE, value);
        assert_eq!(verdict(&parts, &body), Some(Verdict::Retry));
    }
}
