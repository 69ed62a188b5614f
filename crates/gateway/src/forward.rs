//! The service behind every route: rewrites a request for the upstream, sends it, and rewrites the
//! response for the client.

pub(crate) mod response_body;
pub(crate) mod send;
pub(crate) mod upgrade;

use std::{
    future::{Future, ready},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{
    HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header, uri::PathAndQuery,
};
use semel::{Lease, core::Scope};
use semel_tower::{Body, BoxError};
use tokio::time::Instant;
use tower_service::Service;
use tracing::Span;

use crate::body::{FrameCount, RequestBody};
use crate::error::ForwardError;
use crate::forward::response_body::{ResponseBody, UpstreamBody};
use crate::forward::send::{PooledExchange, await_response, send, start_exchange};
use crate::forward::upgrade::Upgrade;
use crate::headers;
use crate::peer::ClientPeer;
use crate::upstream::pool::Pool;
use semel_telemetry::metrics::{Metrics, UpstreamOutcome};
use semel_telemetry::trace;

/// The service behind every route: forwards to one upstream.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    route: Arc<ForwardTarget>,
    /// The client that sent the request.
    peer: Option<Arc<ClientPeer>>,
    frame_count: Option<FrameCount>,
}

#[derive(Debug)]
struct ForwardTarget {
    pool: Arc<Pool>,
    metrics: Arc<Metrics>,
    /// Scope of the operations that it forwards, if they are guarded.
    scope: Option<Scope>,
    trust_forwarded: bool,
    /// Headers that the guard of the route reads.
    read: Vec<HeaderName>,
}

impl Forward {
    pub(crate) fn new(
        pool: Arc<Pool>,
        metrics: Arc<Metrics>,
        scope: Option<Scope>,
        trust_forwarded: bool,
        read: Vec<HeaderName>,
    ) -> Self {
        let route = Arc::new(ForwardTarget { pool, metrics, scope, trust_forwarded, read });
        Self { route, peer: None, frame_count: None }
    }

    /// Whether its upstream may use HTTP/2.
    pub(crate) fn may_use_http2(&self) -> bool {
        self.route.pool.may_use_http2()
    }

    /// Sets the client of the next request, and the counter of its body frames.
    pub(crate) fn set_peer(&mut self, peer: &Arc<ClientPeer>, frame_count: &FrameCount) {
        self.peer = Some(Arc::clone(peer));
        self.frame_count = Some(frame_count.clone());
    }
}

impl Service<Request<Body<RequestBody>>> for Forward {
    type Response = Response<ResponseBody>;
    /// A boxed [`ForwardError`]: the layer inspects its sources and passes it on.
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body<RequestBody>>) -> Self::Future {
        let route = Arc::clone(&self.route);
        let peer = self.peer.take();
        match prepare(request, &route, peer.as_ref()) {
            Ok((request, forward_context)) => {
                let forward_context =
                    ForwardContext { frame_count: self.frame_count.take(), ..forward_context };
                match route.pool.checkout_idle() {
                    // The usual case. The future keeps only the encoded request.
                    Some(pooled) => {
                        let exchange = start_exchange(pooled, request, &forward_context);
                        Box::pin(send_on_idle(route, exchange, forward_context))
                    }
                    None => Box::pin(send_with_retry(route, request, forward_context)),
                }
            }
            Err(error) => Box::pin(ready(Err(error.into()))),
        }
    }
}

/// Context of a request that is being forwarded.
pub(crate) struct ForwardContext {
    /// Request path, with the prefix of the upstream.
    pub path: PathAndQuery,
    pub host: Option<HeaderValue>,
    /// Whether the client accepts trailers.
    pub trailers: bool,
    pub guarded: bool,
    /// The lease that a guarded request must still hold when its first byte is sent.
    pub lease: Option<Lease>,
    /// Number of frames read from a streamed body.
    pub frame_count: Option<FrameCount>,
    /// Covers the request until the head of its response.
    pub span: Span,
    // Boxed because it is rare and large.
    pub upgrade: Option<Box<Upgrade>>,
}

impl ForwardContext {
    /// Fails if the lease has ended: another owner may run the operation by now. Call it right
    /// before the first byte is sent.
    pub(crate) fn check_lease(&self) -> Result<(), ForwardError> {
        if self.lease.as_ref().is_none_or(Lease::can_begin) {
            return Ok(());
        }
        Err(ForwardError::unreachable("nothing was sent: the lease ended first"))
    }

    /// Number of body frames read so far.
    pub(crate) fn frames_read(&self) -> u64 {
        self.frame_count.as_ref().map_or(0, FrameCount::frames)
    }
}

#[expect(clippy::manual_async_fn, reason = "an async fn would keep its arguments twice")]
fn send_with_retry(
    route: Arc<ForwardTarget>,
    request: Request<Body<RequestBody>>,
    forward_context: ForwardContext,
) -> impl Future<Output = Result<Response<ResponseBody>, BoxError>> + Send {
    async move {
        let begun = Instant::now();
        let sent = send(&route.pool, request, &forward_context).await;
        route.finish_response(sent, forward_context, begun)
    }
}

#[expect(clippy::manual_async_fn, reason = "an async fn would keep its arguments twice")]
fn send_on_idle(
    route: Arc<ForwardTarget>,
    exchange: PooledExchange,
    forward_context: ForwardContext,
) -> impl Future<Output = Result<Response<ResponseBody>, BoxError>> + Send {
    async move {
        let begun = Instant::now();
        let sent = await_response(exchange, &forward_context, &route.pool).await;
        route.finish_response(sent, forward_context, begun)
    }
}

impl ForwardTarget {
    fn finish_response(
        &self,
        sent: Result<Response<UpstreamBody>, ForwardError>,
        forward_context: ForwardContext,
        begun: Instant,
    ) -> Result<Response<ResponseBody>, BoxError> {
        let status = sent.as_ref().ok().map(|response| response.status().as_u16());
        trace::finish_upstream(&forward_context.span, status);
        if let Some(outcome) = outcome_of(&sent) {
            self.metrics.upstream(self.scope.as_ref(), outcome, begun.elapsed());
        }
        Ok(finish_response(sent?, forward_context, self.pool.upstream().timeout)?)
    }
}

fn outcome_of<T>(sent: &Result<T, ForwardError>) -> Option<UpstreamOutcome> {
    Some(match sent {
        Ok(_) => UpstreamOutcome::Answered,
        Err(ForwardError::Unreachable(_)) => UpstreamOutcome::Unreachable,
        Err(ForwardError::Broken(_)) => UpstreamOutcome::Broken,
        Err(ForwardError::Timeout(_)) => UpstreamOutcome::Timeout,
        // The client caused it, not the upstream.
        Err(ForwardError::Sender(_)) => return None,
    })
}

/// Rewrites a response for the client.
fn finish_response(
    mut response: Response<UpstreamBody>,
    forward_context: ForwardContext,
    timeout: Duration,
) -> Result<Response<ResponseBody>, ForwardError> {
    let upgraded =
        forward_context.upgrade.is_some_and(|upgrade| upgrade.start_tunnel(&mut response));
    if response.status() == StatusCode::SWITCHING_PROTOCOLS && !upgraded {
        return Err(ForwardError::Broken(
            "it switched protocols without a request to do so".into(),
        ));
    }
    let upgrade = upgraded.then(|| response.headers().get(header::UPGRADE).cloned()).flatten();
    // The version belongs to a connection, so the upstream's HTTP/1.0 is not passed on.
    let version = mem::take(response.version_mut());
    let headers = response.headers_mut();
    if headers.contains_key(header::TRANSFER_ENCODING) {
        // With both, the end of the response would be ambiguous (RFC 9112, section 6.3).
        headers.remove(header::CONTENT_LENGTH);
    }
    headers::remove_hop_by_hop(headers);
    headers::add_via(headers, version);
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, upgrade);
    }
    // A response that is not recorded may be a stream that is silent for hours.
    let idle_timeout = forward_context.guarded.then_some(timeout);
    Ok(response.map(|source| ResponseBody::new(source, idle_timeout)))
}

/// Rewrites a request for the upstream.
fn prepare(
    request: Request<Body<RequestBody>>,
    route: &ForwardTarget,
    peer: Option<&Arc<ClientPeer>>,
) -> Result<(Request<Body<RequestBody>>, ForwardContext), ForwardError> {
    let (mut parts, body) = request.into_parts();
    let path = path_of(&parts.uri, &route.pool.upstream().prefix)?;
    let lease = parts.extensions.remove::<Lease>();
    let upgrade = match (&lease, peer) {
        (None, Some(peer)) => Upgrade::from_request(&mut parts, peer).map(Box::new),
        _ => None,
    };
    parts.extensions.clear();
    let authority = parts.uri.authority().and_then(headers::host_value);
    let host = authority.or_else(|| parts.headers.get(header::HOST).cloned());
    let trailers = headers::accepts_trailers(&parts.headers);
    let headers = &mut parts.headers;
    if !headers::passes_trailers(parts.version, headers) {
        headers.remove(header::TRAILER);
    }
    headers::remove_hop_by_hop(headers);
    headers.remove(header::EXPECT);
    headers::strip_internal(headers, &route.read);
    if let Some(peer) = peer {
        headers::add_forwarded(headers, peer, host.as_ref(), parts.version, route.trust_forwarded);
    }
    if let Some(lease) = &lease {
        headers::add_lease(headers, lease);
    }
    if let Some(upgrade) = &upgrade {
        upgrade.add_headers(headers);
    }
    let guarded = lease.is_some();
    let span = trace::upstream_span(&parts.method, path.path());
    trace::inject(&span, &mut parts.headers);
    let forward_context =
        ForwardContext { path, host, trailers, guarded, lease, frame_count: None, span, upgrade };
    Ok((Request::from_parts(parts, body), forward_context))
}

fn path_of(uri: &Uri, prefix: &str) -> Result<PathAndQuery, ForwardError> {
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    // `http://api?page=2` means the root path, which is made explicit.
    let root = if path.as_str().starts_with('?') { "/" } else { "" };
    if (prefix.is_empty() && root.is_empty()) || path.as_str() == "*" {
        return Ok(path);
    }
    let joined = [prefix, root, path.as_str()].concat();
    PathAndQuery::from_maybe_shared(bytes::Bytes::from(joined)).map_err(ForwardError::unreachable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_keeps_its_path_and_query_and_begins_with_a_slash() {
        for (target, prefix, expected) in [
            ("/a?b=c", "", "/a?b=c"),
            ("http://api/a?b=c", "", "/a?b=c"),
            ("http://api", "", "/"),
            ("http://api?b=c", "", "/?b=c"),
            ("http://api?b=c", "/v1", "/v1/?b=c"),
            ("/a?b=c", "/v1", "/v1/a?b=c"),
            ("*", "/v1", "*"),
        ] {
            let path = path_of(&target.parse().unwrap(), prefix).unwrap();
            assert_eq!(path.as_str(), expected, "{target} after {prefix:?}");
        }
    }
}
