//! One read: a GET of the upstream, through the same connections as a forwarded request.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, header, uri::PathAndQuery};
use http_body_util::{BodyExt as _, Limited};
use semel::core::Fence;
use semel_config::{ReadHeader, ReconcileRule};
use semel_telemetry::trace;
use semel_tower::{
    Body,
    header::{IDEMPOTENCY_FENCE, IDEMPOTENCY_KEY},
};
use tokio::time::timeout;

use crate::forward::{ForwardContext, response_body::ResponseBody, send::send};
use crate::upstream::pool::Pool;

/// Maximum size of an answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Longest time of a read, if the timeout of the upstream is longer.
const READ_TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// An answer of the upstream.
pub(super) struct UpstreamAnswer {
    pub(super) status: u16,
    pub(super) content_type: Option<Bytes>,
    pub(super) body: Bytes,
}

/// The timeout of a read.
pub(super) fn read_timeout(pool: &Pool) -> Duration {
    pool.upstream().timeout.min(READ_TIMEOUT_MAX)
}

/// The request for a record.
pub(super) struct ReadRequest {
    target: String,
    headers: HeaderMap,
}

impl ReadRequest {
    /// The request with these values, or what is missing. With a `fence` the service is asked to
    /// refuse every lower one under this key.
    pub(super) fn new(
        rule: &ReconcileRule,
        values: &[(String, String)],
        fence: Option<(Fence, &str)>,
    ) -> Result<Self, String> {
        let missing = || "a value of the request was not captured".to_owned();
        let target = rule.get.url(values).ok_or_else(missing)?;
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        // A cache would repeat that the operation is absent, and never see the fence.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        for (name, value) in &rule.headers {
            let text = match value {
                ReadHeader::Text(template) => template.text(values).ok_or_else(missing)?,
                ReadHeader::Env(_, secret) => secret.0.clone(),
                ReadHeader::File(path) => std::fs::read_to_string(path)
                    .map_err(|error| format!("{}: {error}", path.display()))?,
            };
            insert(&mut headers, name, text.trim())?;
        }
        if let Some((fence, key)) = fence {
            headers.insert(IDEMPOTENCY_FENCE, HeaderValue::from(fence.get()));
            insert(&mut headers, &IDEMPOTENCY_KEY, key)?;
        }
        Ok(Self { target, headers })
    }

    /// Sends it and reads the answer.
    pub(super) async fn send(self, pool: Arc<Pool>) -> Result<UpstreamAnswer, String> {
        let limit = read_timeout(&pool);
        let answer = timeout(limit, self.exchange(&pool)).await;
        answer.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
    }

    async fn exchange(self, pool: &Arc<Pool>) -> Result<UpstreamAnswer, String> {
        let target = [&*pool.upstream().prefix, &*self.target].concat();
        let path = target.parse::<PathAndQuery>().map_err(|error| error.to_string())?;
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = path.clone().into();
        *request.headers_mut() = self.headers;
        let span = trace::upstream_span(request.method(), path.path());
        trace::inject(&span, request.headers_mut());
        let context = ForwardContext {
            path,
            host: None,
            trailers: false,
            guarded: true,
            lease: None,
            frame_count: None,
            span,
            upgrade: None,
        };
        let response = send(pool, request, &context).await.map_err(|error| error.to_string())?;
        trace::finish_upstream(&context.span, Some(response.status().as_u16()));
        let (parts, body) = response.into_parts();
        let body = ResponseBody::new(body, Some(pool.upstream().timeout));
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| format!("the answer cannot be read: {error}"))?.to_bytes();
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.map(|value| Bytes::copy_from_slice(value.as_bytes()));
        Ok(UpstreamAnswer { status: parts.status.as_u16(), content_type, body })
    }
}

fn insert(headers: &mut HeaderMap, name: &HeaderName, text: &str) -> Result<(), String> {
    let value = HeaderValue::try_from(text);
    let value = value.map_err(|_| format!("the value of {name} is not that of a header"))?;
    headers.insert(name.clone(), value);
    Ok(())
}
