//! Sends a request to the upstream and takes its answer. The one question that it must answer
//! rightly when something breaks: had a byte of the request gone out?

use std::{
    future::{Future, ready},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{
    HeaderValue, Request, Response, Uri, Version, header,
    uri::{Parts as UriParts, PathAndQuery, Scheme},
};
use hyper::body::Incoming;
use semel::{Lease, core::Scope};
use semel_tower::Body;
use tokio::time::{Instant, timeout};
use tower_service::Service;

use super::{
    body::{Inbound, Outbound},
    error::ForwardError,
    headers,
    peer::Peer,
    pool::{Lent, Pool, Shared, Way},
    upgrade::Upgrade,
    wire::Meter,
};
use crate::{
    config::Upstream,
    ops::metrics::{Metrics, UpstreamOutcome},
};

/// How many pooled connections are tried before a new one is made: each may have been closed by the
/// upstream just now.
const POOLED_TRIES: u32 = 3;

/// The service behind every route: forwards to one upstream.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    route: Arc<Route>,
    /// Whose request it is.
    peer: Option<Arc<Peer>>,
}

#[derive(Debug)]
struct Route {
    pool: Arc<Pool>,
    metrics: Arc<Metrics>,
    /// The family of operations that it forwards, if they are guarded.
    scope: Option<Scope>,
    trust_forwarded: bool,
}

impl Forward {
    pub(crate) fn new(
        pool: Arc<Pool>,
        metrics: Arc<Metrics>,
        scope: Option<Scope>,
        trust_forwarded: bool,
    ) -> Self {
        let route = Arc::new(Route { pool, metrics, scope, trust_forwarded });
        Self { route, peer: None }
    }

    /// Says whose request comes next.
    pub(crate) fn set_peer(&mut self, peer: &Arc<Peer>) {
        self.peer = Some(Arc::clone(peer));
    }
}

impl Service<Request<Body<Inbound>>> for Forward {
    type Response = Response<Outbound>;
    type Error = ForwardError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ForwardError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ForwardError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body<Inbound>>) -> Self::Future {
        let route = Arc::clone(&self.route);
        let peer = self.peer.take();
        let prefix = &route.pool.upstream().prefix;
        match prepare(request, prefix, peer.as_ref(), route.trust_forwarded) {
            Ok((request, errand)) => Box::pin(run(route, request, errand)),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }
}

/// What is remembered of a request while its answer is awaited.
struct Errand {
    /// With the upstream's prefix.
    path: PathAndQuery,
    host: Option<HeaderValue>,
    trailers: bool,
    guarded: bool,
    // Rare, and large.
    upgrade: Option<Box<Upgrade>>,
}

/// Not an `async fn`, which would keep its arguments twice.
fn run(
    route: Arc<Route>,
    request: Request<Body<Inbound>>,
    errand: Errand,
) -> impl Future<Output = Result<Response<Outbound>, ForwardError>> + Send {
    async move {
        let begun = Instant::now();
        let sent = send(&route.pool, request, &errand).await;
        let outcome = match &sent {
            Ok(_) => UpstreamOutcome::Answered,
            Err(ForwardError::Unreachable(_)) => UpstreamOutcome::Unreachable,
            Err(ForwardError::Broken(_)) => UpstreamOutcome::Broken,
            Err(ForwardError::Timeout(_)) => UpstreamOutcome::Timeout,
        };
        route.metrics.upstream(route.scope.as_ref(), outcome, begun.elapsed());
        let (response, lent) = sent?;
        Ok(conclude(response, lent, errand, route.pool.upstream().timeout))
    }
}

/// Makes of an answer what the client is to get.
fn conclude(
    mut response: Response<Incoming>,
    mut lent: Option<Lent>,
    errand: Errand,
    timeout: Duration,
) -> Response<Outbound> {
    let upgraded = errand.upgrade.is_some_and(|upgrade| upgrade.join(&mut response));
    let upgrade = upgraded.then(|| response.headers().get(header::UPGRADE).cloned()).flatten();
    let version = response.version();
    let answer = response.headers_mut();
    if let Some(lent) = &mut lent {
        lent.heed(answer);
    }
    headers::end_hop(answer);
    headers::add_via(answer, version);
    if let Some(upgrade) = upgrade {
        answer.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        answer.insert(header::UPGRADE, upgrade);
    }
    // An answer that nobody records may be a stream that is silent for hours.
    let silence = errand.guarded.then_some(timeout);
    response.map(|body| Outbound::new(body, silence, lent))
}

/// Makes of a request what the upstream is to get.
fn prepare(
    request: Request<Body<Inbound>>,
    prefix: &str,
    peer: Option<&Arc<Peer>>,
    trust: bool,
) -> Result<(Request<Body<Inbound>>, Errand), ForwardError> {
    let (mut parts, body) = request.into_parts();
    let path = path_of(&parts.uri, prefix)?;
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
    headers::end_hop(headers);
    headers.remove(header::EXPECT);
    headers::strip_private(headers);
    if let Some(peer) = peer {
        headers::tell_way(headers, peer, host.as_ref(), parts.version, trust);
    }
    if let Some(lease) = &lease {
        headers::tell_lease(headers, lease);
    }
    if let Some(upgrade) = &upgrade {
        upgrade.ask(headers);
    }
    let guarded = lease.is_some();
    let errand = Errand { path, host, trailers, guarded, upgrade };
    Ok((Request::from_parts(parts, body), errand))
}

/// Sends a request and awaits the head of its answer. A connection that turns out to be closed
/// before a byte went out is no failure: another one is taken.
fn send<'a>(
    pool: &'a Arc<Pool>,
    mut request: Request<Body<Inbound>>,
    errand: &'a Errand,
) -> impl Future<Output = Result<(Response<Incoming>, Option<Lent>), ForwardError>> + Send + 'a {
    async move {
        let upstream = pool.upstream();
        let mut tries = 0;
        loop {
            let way = if tries < POOLED_TRIES { pool.way().await? } else { pool.connect().await? };
            tries += 1;
            address(&mut request, upstream, errand, matches!(way, Way::Http2(_)))?;
            let sent = match way {
                Way::Http1(mut lent) => {
                    let meter = lent.connection.meter.clone();
                    let before = meter.bytes();
                    let sending = lent.connection.sender.try_send_request(request);
                    let head = await_head(sending, &meter, before, errand, upstream).await;
                    head.map(|response| (response, Some(lent)))
                }
                Way::Http2(Shared { mut sender, meter }) => {
                    let before = meter.bytes();
                    let sending = sender.try_send_request(request);
                    let head = await_head(sending, &meter, before, errand, upstream).await;
                    head.map(|response| (response, None))
                }
            };
            match sent {
                Ok(sent) => return Ok(sent),
                Err(Unsent::Given(returned)) if tries <= POOLED_TRIES => request = *returned,
                Err(Unsent::Given(_)) => {
                    return Err(ForwardError::unreachable("every connection was closed at once"));
                }
                Err(Unsent::Failed(error)) => return Err(error),
            }
        }
    }
}

/// Why there is no answer.
enum Unsent {
    /// The connection was closed and gave the request back untouched.
    Given(Box<Request<Body<Inbound>>>),
    Failed(ForwardError),
}

impl From<ForwardError> for Unsent {
    fn from(error: ForwardError) -> Self {
        Self::Failed(error)
    }
}

type Sent = Result<Response<Incoming>, hyper::client::conn::TrySendError<Request<Body<Inbound>>>>;

async fn await_head(
    sending: impl Future<Output = Sent>,
    meter: &Meter,
    before: u64,
    errand: &Errand,
    upstream: &Upstream,
) -> Result<Response<Incoming>, Unsent> {
    let mut sending = pin!(sending);
    let mut seen = before;
    let mut error = loop {
        match timeout(upstream.timeout, sending.as_mut()).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(error)) => break error,
            // A long upload is not an upstream that does not answer.
            Err(_) if !errand.guarded && meter.bytes() > seen => seen = meter.bytes(),
            Err(_) => return Err(given_up(upstream.timeout, meter.bytes() > before).into()),
        }
    };
    if let Some(request) = error.take_message() {
        return Err(Unsent::Given(Box::new(request)));
    }
    let error = error.into_error();
    if meter.bytes() == before || was_refused(&error) {
        return Err(ForwardError::unreachable(format!("nothing was sent: {error}")).into());
    }
    Err(ForwardError::Broken(error.into()).into())
}

fn given_up(after: Duration, sent: bool) -> ForwardError {
    if sent {
        ForwardError::Timeout(after)
    } else {
        ForwardError::unreachable(format!("nothing could be sent within {after:?}"))
    }
}

/// Whether an HTTP/2 upstream says that it has not looked at the request: `REFUSED_STREAM`, or
/// `GOAWAY` with a lower stream than ours.
fn was_refused(error: &hyper::Error) -> bool {
    let mut next = std::error::Error::source(error);
    while let Some(error) = next {
        if let Some(h2) = error.downcast_ref::<h2::Error>() {
            let refused = h2.is_reset() && h2.reason() == Some(h2::Reason::REFUSED_STREAM);
            return h2.is_remote() && (refused || h2.is_go_away());
        }
        next = error.source();
    }
    false
}

/// Writes down where a request goes, in the form of the protocol.
fn address(
    request: &mut Request<Body<Inbound>>,
    upstream: &Upstream,
    errand: &Errand,
    http2: bool,
) -> Result<(), ForwardError> {
    let own = || headers::host_value(&upstream.authority);
    let host = if upstream.own_host { own() } else { errand.host.clone().or_else(own) };
    let mut parts = UriParts::default();
    parts.path_and_query = Some(errand.path.clone());
    if http2 {
        parts.scheme = Some(if upstream.tls { Scheme::HTTPS } else { Scheme::HTTP });
        let authority = host.as_ref().and_then(|host| host.as_bytes().try_into().ok());
        parts.authority = Some(authority.unwrap_or_else(|| upstream.authority.clone()));
    }
    *request.uri_mut() = Uri::from_parts(parts).map_err(ForwardError::unreachable)?;
    *request.version_mut() = if http2 { Version::HTTP_2 } else { Version::HTTP_11 };
    let headers = request.headers_mut();
    headers.remove(header::HOST);
    if http2 {
        if errand.trailers {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
    } else if let Some(host) = host {
        headers.insert(header::HOST, host);
    }
    Ok(())
}

fn path_of(uri: &Uri, prefix: &str) -> Result<PathAndQuery, ForwardError> {
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    if prefix.is_empty() || path.as_str() == "*" {
        return Ok(path);
    }
    let joined = [prefix, path.as_str()].concat();
    PathAndQuery::from_maybe_shared(bytes::Bytes::from(joined)).map_err(ForwardError::unreachable)
}
