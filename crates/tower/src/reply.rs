//! From the engine's reply to an HTTP response.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use semel::core::{Answer, Content, Dialect, Field, Problem, RetryContext, StoredResponse};

use crate::{
    body::Body,
    buffered_body::BufferedBody,
    grpc,
    header::{
        GRPC_MESSAGE, GRPC_PUSHBACK, GRPC_STATUS, IDEMPOTENCY_PROBLEM, IDEMPOTENT_REPLAYED,
        RETRY_AFTER_MS, SHOULD_RETRY, STRIPE_SHOULD_RETRY, milliseconds,
    },
    memory::{MemoryUse, PeerMemory},
    refusal::RequestRefusal,
    request,
};

/// Builds responses for one client of a route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Responder<'a> {
    pub(crate) docs: Option<&'a Docs>,
    pub(crate) dialect: &'a Dialect,
    /// Whether the request is gRPC.
    pub(crate) grpc: bool,
    /// Whether it is a webhook, whose sender needs only the status.
    pub(crate) is_webhook: bool,
    /// What a retry of the request would meet.
    pub(crate) retry: RetryContext,
}

/// The origin of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// An execution in this process.
    Execution,
    /// The record.
    Record,
}

/// The `Link` header values that lead to the documentation.
#[derive(Clone, Debug)]
pub(crate) struct Docs {
    pub(crate) described_by: HeaderValue,
    pub(crate) deprecation: HeaderValue,
}

impl Responder<'_> {
    /// The same for a held record that is read next after this time.
    pub(crate) fn with_next_read(mut self, next_read: Option<Duration>) -> Self {
        self.retry = self.retry.with_next_read(next_read);
        self
    }

    /// A refusal as a problem document, or as a trailers-only gRPC response.
    pub(crate) fn refuse<B>(self, refusal: &RequestRefusal) -> Response<Body<B>> {
        let RequestRefusal { problem, detail, challenge, .. } = refusal;
        if self.grpc {
            return self.grpc_status(*problem, detail.as_deref());
        }
        let document = self.dialect.document(*problem, detail.as_deref());
        let mut response = Response::new(Body::buffered(BufferedBody::new(document.into(), None)));
        *response.status_mut() = status(self.dialect.status(*problem));
        let headers = response.headers_mut();
        let content_type = HeaderValue::from_static(self.dialect.media_type());
        headers.insert(header::CONTENT_TYPE, content_type);
        headers.insert(IDEMPOTENCY_PROBLEM, HeaderValue::from_static(problem.slug()));
        if let Some(challenge) = challenge {
            headers.insert(header::WWW_AUTHENTICATE, challenge.clone());
        }
        let retry_after = problem.retry_after(self.retry);
        add_retry_advice(headers, retry_after);
        if let Some(name) = self.dialect.retry_header() {
            headers.insert(HeaderName::from_static(name), yes_or_no(retry_after.is_some()));
        }
        self.describe(headers);
        response
    }

    fn grpc_status<B>(self, problem: Problem, detail: Option<&str>) -> Response<Body<B>> {
        let mut response = Response::new(Body::buffered(BufferedBody::default()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from(grpc::code(problem)));
        headers.insert(GRPC_MESSAGE, grpc::message(detail.unwrap_or(problem.detail())));
        headers.insert(IDEMPOTENCY_PROBLEM, HeaderValue::from_static(problem.slug()));
        headers.insert(GRPC_PUSHBACK, grpc::pushback(problem, self.retry));
        self.describe(headers);
        response
    }

    fn describe(self, headers: &mut HeaderMap) {
        if let Some(docs) = self.docs {
            headers.append(header::LINK, docs.described_by.clone());
        }
    }

    /// The problem that this client gets instead of a recorded answer. The sender of a webhook gets
    /// the status alone.
    pub(crate) fn replay_problem(self, answer: &Answer) -> Option<Problem> {
        let wants_status_only = self.is_webhook && !self.grpc;
        answer
            .problem()
            .filter(|problem| !(wants_status_only && *problem == Problem::ResponseNotRetained))
    }

    /// The answer of another execution; refused if there is no memory for it.
    pub(crate) fn answer<B>(
        self,
        answer: &Answer,
        origin: Origin,
        memory: Option<&PeerMemory>,
    ) -> Result<Response<Body<B>>, RequestRefusal> {
        let mut response = match (self.replay_problem(answer), answer.read()) {
            (Some(problem), _) => self.refuse(&problem.into()),
            (None, Ok(Content::Response(stored))) => match read_problem_answer(&stored, origin) {
                Some(problem) => self.refuse(&problem.into()),
                None => restore(stored, memory)?,
            },
            (None, Ok(Content::NotRetained { status: recorded })) => {
                let mut response = Response::new(Body::buffered(BufferedBody::default()));
                *response.status_mut() = status(recorded);
                response
            }
            (None, Ok(Content::Failed)) => self.refuse(&Problem::OperationFailed.into()),
            (None, Err(error)) => {
                let detail = format!("the recorded answer cannot be read: {error}");
                self.refuse(&RequestRefusal::detailed(Problem::OutcomeUnknown, detail))
            }
        };
        // A redacted answer already has the header.
        if origin == Origin::Record {
            let replayed = response.headers_mut().entry(IDEMPOTENT_REPLAYED);
            replayed.or_insert(HeaderValue::from_static("true"));
        }
        Ok(response)
    }
}

/// Adds the retry advice in every header that an SDK is known to obey: without it the SDKs of
/// Stripe and those that Stainless generates retry each 409 and each 5xx.
pub fn add_retry_advice(headers: &mut HeaderMap, retry_after: Option<Duration>) {
    let should_retry = yes_or_no(retry_after.is_some());
    headers.insert(SHOULD_RETRY, should_retry.clone());
    headers.insert(STRIPE_SHOULD_RETRY, should_retry);
    if let Some(after) = retry_after {
        // Whole seconds, rounded up.
        let seconds = after.as_millis().div_ceil(1000);
        let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        headers.insert(RETRY_AFTER_MS, milliseconds(after));
    }
}

const fn yes_or_no(yes: bool) -> HeaderValue {
    HeaderValue::from_static(if yes { "true" } else { "false" })
}

/// A problem as a response in the default dialect: a document, or for gRPC a trailers-only
/// response.
///
/// For code around the layer that answers with a problem in the same form: the layer passes on the
/// errors of unguarded requests. `context` is what a retry of the request would meet.
pub fn refusal<B>(problem: Problem, grpc: bool, context: RetryContext) -> Response<Body<B>> {
    refusal_in(&Dialect::IETF, problem, grpc, context)
}

/// As [`refusal`], in this dialect.
pub fn refusal_in<B>(
    dialect: &Dialect,
    problem: Problem,
    grpc: bool,
    context: RetryContext,
) -> Response<Body<B>> {
    Responder { docs: None, dialect, grpc, is_webhook: false, retry: context }
        .refuse(&problem.into())
}

/// Reads the problem of a placeholder that the capture encoded.
fn read_problem_answer(stored: &StoredResponse, origin: Origin) -> Option<Problem> {
    let [Field { name, value }] = &stored.headers[..] else { return None };
    let ours = origin == Origin::Execution && stored.body.is_empty();
    if !ours || *name != IDEMPOTENCY_PROBLEM.as_str() {
        return None;
    }
    Problem::with_slug(str::from_utf8(value).ok()?)
}

fn restore<B>(
    stored: StoredResponse,
    memory: Option<&PeerMemory>,
) -> Result<Response<Body<B>>, RequestRefusal> {
    let reserve = |memory: &PeerMemory| {
        let reservation = memory.reserve(MemoryUse::Replays, stored.body.len());
        reservation.ok_or_else(request::out_of_memory)
    };
    let reservation = memory.map(reserve).transpose()?;
    let trailers = (!stored.trailers.is_empty()).then(|| restore_fields(stored.trailers, 0));
    let mut buffered = BufferedBody::new(stored.body, trailers);
    buffered.hold(reservation);
    let mut response = Response::new(Body::buffered(buffered));
    *response.status_mut() = status(stored.status);
    // One more, for the header that marks a replay.
    *response.headers_mut() = restore_fields(stored.headers, 1);
    Ok(response)
}

/// Recorded fields are valid headers; invalid ones that an operator wrote are left out.
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
