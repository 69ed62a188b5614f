//! From the engine's reply to an HTTP response.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use semel::core::{Answer, Content, Field, Problem, StoredResponse};

use crate::{
    body::{Body, Whole},
    config::Docs,
    grpc,
    header::{GRPC_MESSAGE, GRPC_PUSHBACK, GRPC_STATUS, IDEMPOTENCY_PROBLEM, IDEMPOTENT_REPLAYED},
    refusal::Refusal,
};

/// How a route speaks to one client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Voice<'a> {
    pub(crate) docs: Option<&'a Docs>,
    /// Whether the request is gRPC.
    pub(crate) grpc: bool,
    /// Whether it is a webhook, whose sender wants to know no more than that it arrived.
    pub(crate) inbox: bool,
}

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// An execution in this process.
    Execution,
    /// The record.
    Record,
}

impl Voice<'_> {
    /// A refusal as a problem document, or as a gRPC answer that is trailers only.
    pub(crate) fn refuse<B>(self, refusal: &Refusal) -> Response<Body<B>> {
        let Refusal { problem, detail } = refusal;
        if self.grpc {
            return self.grpc_status(*problem, detail.as_deref());
        }
        let document = problem.document(detail.as_deref());
        let mut response = Response::new(Body::whole(Whole::new(document.into(), None)));
        *response.status_mut() = status(problem.status());
        let headers = response.headers_mut();
        let content_type = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, content_type);
        headers.insert(IDEMPOTENCY_PROBLEM, HeaderValue::from_static(problem.slug()));
        if problem.retry_later() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        self.describe(headers);
        response
    }

    fn grpc_status<B>(self, problem: Problem, detail: Option<&str>) -> Response<Body<B>> {
        let mut response = Response::new(Body::whole(Whole::default()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from(grpc::code(problem)));
        headers.insert(GRPC_MESSAGE, grpc::message(detail.unwrap_or(problem.detail())));
        headers.insert(IDEMPOTENCY_PROBLEM, HeaderValue::from_static(problem.slug()));
        if let Some(pushback) = grpc::pushback(problem) {
            headers.insert(GRPC_PUSHBACK, pushback);
        }
        self.describe(headers);
        response
    }

    fn describe(self, headers: &mut HeaderMap) {
        if let Some(docs) = self.docs {
            headers.append(header::LINK, docs.described_by.clone());
        }
    }

    /// An answer that this client did not run for itself.
    pub(crate) fn answer<B>(self, answer: &Answer, origin: Origin) -> Response<Body<B>> {
        let mut response = match answer.read() {
            Ok(Content::Response(stored)) => match said_instead(&stored, origin) {
                Some(problem) => self.refuse(&problem.into()),
                None => restore(stored),
            },
            Ok(Content::NotRetained { status: recorded }) if self.inbox && !self.grpc => {
                let mut response = Response::new(Body::whole(Whole::default()));
                *response.status_mut() = status(recorded);
                response
            }
            Ok(Content::NotRetained { .. }) => self.refuse(&Problem::ResponseNotRetained.into()),
            Ok(Content::Failed) => self.refuse(&Problem::OperationFailed.into()),
            Err(error) => {
                let detail = format!("the recorded answer cannot be read: {error}");
                self.refuse(&Refusal::detailed(Problem::OutcomeUnknown, detail))
            }
        };
        // A stored answer that was redacted says so itself.
        if origin == Origin::Record {
            let replayed = response.headers_mut().entry(IDEMPOTENT_REPLAYED);
            replayed.or_insert(HeaderValue::from_static("true"));
        }
        response
    }
}

/// A problem as an answer: a document, or for gRPC an answer that is trailers only.
///
/// For whoever stands around the layer and has to say so itself, in the same words: the layer
/// passes on the errors of requests that it does not guard.
pub fn refusal<B>(problem: Problem, grpc: bool) -> Response<Body<B>> {
    Voice { docs: None, grpc, inbox: false }.refuse(&problem.into())
}

/// What those who joined an execution get if its answer was passed on and is not recorded either:
/// it must not be said that the operation ran for good.
pub(crate) fn instead(problem: Problem) -> Answer {
    let name = IDEMPOTENCY_PROBLEM;
    let header = (name.as_str().as_bytes(), problem.slug().as_bytes());
    Answer::encode(problem.status(), &[header], &[], &Bytes::new())
}

/// Reads what [`instead`] wrote.
fn said_instead(stored: &StoredResponse, origin: Origin) -> Option<Problem> {
    let [Field { name, value }] = &stored.headers[..] else { return None };
    let ours = origin == Origin::Execution && stored.body.is_empty();
    if !ours || *name != IDEMPOTENCY_PROBLEM.as_str() {
        return None;
    }
    Problem::from_slug(str::from_utf8(value).ok()?, stored.status)
}

fn restore<B>(stored: StoredResponse) -> Response<Body<B>> {
    let trailers = (!stored.trailers.is_empty()).then(|| restore_fields(stored.trailers, 0));
    let mut response = Response::new(Body::whole(Whole::new(stored.body, trailers)));
    *response.status_mut() = status(stored.status);
    // One more, for the header that says that this is a replay.
    *response.headers_mut() = restore_fields(stored.headers, 1);
    response
}

/// What was recorded came from headers; what an operator wrote may be none, and is left out.
fn restore_fields(fields: Vec<Field>, room: usize) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(fields.len().saturating_add(room));
    for Field { name, value } in fields {
        let name = HeaderName::from_bytes(&name);
        let value = HeaderValue::from_maybe_shared::<Bytes>(value);
        if let (Ok(name), Ok(value)) = (name, value) {
            map.append(name, value);
        }
    }
    map
}

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

#[cfg(test)]
mod tests;
