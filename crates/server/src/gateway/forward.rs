//! The service behind every route: makes of a request what the upstream is to get, and of its
//! answer what the client is to get.

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

use super::{
    body::{Inbound, Outbound, Progress, Source},
    error::ForwardError,
    headers,
    http1::Exchange,
    peer::Peer,
    pool::Pool,
    send::{answer, exchange, send},
    upgrade::Upgrade,
};
use crate::ops::metrics::{Metrics, UpstreamOutcome};

/// The service behind every route: forwards to one upstream.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    route: Arc<Route>,
    /// Whose request it is.
    peer: Option<Arc<Peer>>,
    progress: Option<Progress>,
}

#[derive(Debug)]
struct Route {
    pool: Arc<Pool>,
    metrics: Arc<Metrics>,
    /// The family of operations that it forwards, if they are guarded.
    scope: Option<Scope>,
    trust_forwarded: bool,
    /// The headers that may hold the key of what is guarded.
    keys: Vec<HeaderName>,
}

impl Forward {
    pub(crate) fn new(
        pool: Arc<Pool>,
        metrics: Arc<Metrics>,
        scope: Option<Scope>,
        trust_forwarded: bool,
        keys: Vec<HeaderName>,
    ) -> Self {
        let route = Arc::new(Route { pool, metrics, scope, trust_forwarded, keys });
        Self { route, peer: None, progress: None }
    }

    /// Says whose request comes next, and how much of its body has been taken.
    pub(crate) fn expect(&mut self, peer: &Arc<Peer>, progress: &Progress) {
        self.peer = Some(Arc::clone(peer));
        self.progress = Some(progress.clone());
    }
}

impl Service<Request<Body<Inbound>>> for Forward {
    type Response = Response<Outbound>;
    /// A [`ForwardError`], boxed: so the layer can look for its cause and still pass it on.
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body<Inbound>>) -> Self::Future {
        let route = Arc::clone(&self.route);
        let peer = self.peer.take();
        match prepare(request, &route, peer.as_ref()) {
            Ok((request, errand)) => {
                let errand = Errand { progress: self.progress.take(), ..errand };
                match route.pool.idle() {
                    // The usual way: what the future keeps of the request is what is to be written.
                    Some(lent) => {
                        let exchange = exchange(lent, request, &errand);
                        Box::pin(ask(route, exchange, errand))
                    }
                    None => Box::pin(run(route, request, errand)),
                }
            }
            Err(error) => Box::pin(ready(Err(error.into()))),
        }
    }
}

/// What is remembered of a request while its answer is awaited.
pub(crate) struct Errand {
    /// With the upstream's prefix.
    pub(crate) path: PathAndQuery,
    pub(crate) host: Option<HeaderValue>,
    /// Whether the client takes trailers.
    pub(crate) trailers: bool,
    pub(crate) guarded: bool,
    /// What a guarded request must still have when its first byte goes out.
    pub(crate) lease: Option<Lease>,
    /// How much of a body has been taken that is passed on as it comes.
    pub(crate) progress: Option<Progress>,
    // Rare, and large.
    pub(crate) upgrade: Option<Box<Upgrade>>,
}

impl Errand {
    /// Fails if the lease has ended: another owner may run the operation by now. Call it right
    /// before the first byte goes out.
    pub(crate) fn may_begin(&self) -> Result<(), ForwardError> {
        if self.lease.as_ref().is_none_or(Lease::may_begin) {
            return Ok(());
        }
        Err(ForwardError::unreachable("nothing was sent: the lease ended first"))
    }

    /// How much of the body has been taken so far.
    pub(crate) fn taken(&self) -> u64 {
        self.progress.as_ref().map_or(0, Progress::frames)
    }
}

#[expect(clippy::manual_async_fn, reason = "an async fn would keep its arguments twice")]
fn run(
    route: Arc<Route>,
    request: Request<Body<Inbound>>,
    errand: Errand,
) -> impl Future<Output = Result<Response<Outbound>, BoxError>> + Send {
    async move {
        let begun = Instant::now();
        let sent = send(&route.pool, request, &errand).await;
        route.conclude(sent, errand, begun)
    }
}

#[expect(clippy::manual_async_fn, reason = "an async fn would keep its arguments twice")]
fn ask(
    route: Arc<Route>,
    exchange: Exchange,
    errand: Errand,
) -> impl Future<Output = Result<Response<Outbound>, BoxError>> + Send {
    async move {
        let begun = Instant::now();
        let sent = answer(exchange, &errand, &route.pool).await;
        route.conclude(sent, errand, begun)
    }
}

impl Route {
    fn conclude(
        &self,
        sent: Result<Response<Source>, ForwardError>,
        errand: Errand,
        begun: Instant,
    ) -> Result<Response<Outbound>, BoxError> {
        if let Some(outcome) = outcome_of(&sent) {
            self.metrics.upstream(self.scope.as_ref(), outcome, begun.elapsed());
        }
        Ok(conclude(sent?, errand, self.pool.upstream().timeout)?)
    }
}

fn outcome_of<T>(sent: &Result<T, ForwardError>) -> Option<UpstreamOutcome> {
    Some(match sent {
        Ok(_) => UpstreamOutcome::Answered,
        Err(ForwardError::Unreachable(_)) => UpstreamOutcome::Unreachable,
        Err(ForwardError::Broken(_)) => UpstreamOutcome::Broken,
        Err(ForwardError::Timeout(_)) => UpstreamOutcome::Timeout,
        // That is not the upstream's doing.
        Err(ForwardError::Sender(_)) => return None,
    })
}

/// Makes of an answer what the client is to get.
fn conclude(
    mut response: Response<Source>,
    errand: Errand,
    timeout: Duration,
) -> Result<Response<Outbound>, ForwardError> {
    let upgraded = errand.upgrade.is_some_and(|upgrade| upgrade.join(&mut response));
    if response.status() == StatusCode::SWITCHING_PROTOCOLS && !upgraded {
        return Err(ForwardError::Broken("it speaks another protocol now, unasked".into()));
    }
    let upgrade = upgraded.then(|| response.headers().get(header::UPGRADE).cloned()).flatten();
    // The version is each connection's own: an upstream's HTTP/1.0 is none of the client's.
    let version = mem::take(response.version_mut());
    let answer = response.headers_mut();
    if answer.contains_key(header::TRANSFER_ENCODING) {
        // Both would be two opinions of where the answer ends (RFC 9112, section 6.3).
        answer.remove(header::CONTENT_LENGTH);
    }
    headers::end_hop(answer, &[]);
    headers::add_via(answer, version);
    if let Some(upgrade) = upgrade {
        answer.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        answer.insert(header::UPGRADE, upgrade);
    }
    // An answer that nobody records may be a stream that is silent for hours.
    let silence = errand.guarded.then_some(timeout);
    Ok(response.map(|source| Outbound::new(source, silence)))
}

/// Makes of a request what the upstream is to get.
fn prepare(
    request: Request<Body<Inbound>>,
    route: &Route,
    peer: Option<&Arc<Peer>>,
) -> Result<(Request<Body<Inbound>>, Errand), ForwardError> {
    let (mut parts, body) = request.into_parts();
    let path = path_of(&parts.uri, &route.pool.upstream().prefix)?;
    let lease = parts.extensions.remove::<Lease>();
    let upgrade = match (&lease, peer) {
        (None, Some(peer)) => Upgrade::asked(&mut parts, peer).map(Box::new),
        _ => None,
    };
    parts.extensions.clear();
    let asked = parts.uri.authority().and_then(headers::host_value);
    let host = asked.or_else(|| parts.headers.get(header::HOST).cloned());
    let trailers = headers::takes_trailers(&parts.headers);
    let headers = &mut parts.headers;
    // What was taken for the key goes on with it.
    headers::end_hop(headers, if lease.is_some() { &route.keys } else { &[] });
    headers.remove(header::EXPECT);
    headers::strip_private(headers);
    if let Some(peer) = peer {
        headers::tell_way(headers, peer, host.as_ref(), parts.version, route.trust_forwarded);
    }
    if let Some(lease) = &lease {
        headers::tell_lease(headers, lease);
    }
    if let Some(upgrade) = &upgrade {
        upgrade.ask(headers);
    }
    let guarded = lease.is_some();
    let errand = Errand { path, host, trailers, guarded, lease, progress: None, upgrade };
    Ok((Request::from_parts(parts, body), errand))
}

fn path_of(uri: &Uri, prefix: &str) -> Result<PathAndQuery, ForwardError> {
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    // `http://api?page=2` asks for the root, and says so on its way.
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
