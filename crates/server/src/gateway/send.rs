//! Sends a request on one of the pool's connections and awaits the head of its answer. The one
//! question that must be answered rightly when something breaks: had a byte of it gone out?

use std::{error::Error, future::Future, iter, pin::pin, sync::Arc};

use http::{
    HeaderValue, Request, Response, Uri, Version, header,
    uri::{Parts as UriParts, Scheme},
};
use http_body::Body as _;
use hyper::{body::Incoming, client::conn::TrySendError};
use semel_tower::Body;
use tokio::time::timeout;

use super::{
    body::{BodyError, Inbound},
    error::ForwardError,
    forward::Errand,
    headers,
    pool::{Hold, Pool, Way},
    wire::Meter,
};
use crate::config::Upstream;

/// How many pooled connections are tried before a new one is made: each may have been closed by the
/// upstream just now.
const POOLED_TRIES: u32 = 3;

/// Sends a request and awaits the head of its answer. A connection that turns out to be closed
/// before a byte went out is no failure: another one is taken.
#[expect(clippy::manual_async_fn, reason = "an async fn would keep its arguments twice")]
pub(crate) fn send<'a>(
    pool: &'a Arc<Pool>,
    mut request: Request<Body<Inbound>>,
    errand: &'a Errand,
) -> impl Future<Output = Result<(Response<Incoming>, Hold), ForwardError>> + Send + 'a {
    async move {
        let upstream = pool.upstream();
        let mut tries = 0;
        loop {
            let way = if tries < POOLED_TRIES { pool.way().await? } else { pool.connect().await? };
            tries += 1;
            address(&mut request, upstream, errand, matches!(way, Way::Http2(..)))?;
            let sent = match way {
                Way::Http1(mut lent) => {
                    let count = Count::of(lent.connection.socket.meter(), false);
                    let sending = lent.connection.sender.try_send_request(request);
                    let head = await_head(sending, count, errand, upstream).await;
                    head.map(|response| (response, Hold::Http1(lent)))
                }
                Way::Http2(mut shared, stream) => {
                    let count = Count::of(shared.socket.meter(), true);
                    let sending = shared.sender.try_send_request(request);
                    let head = await_head(sending, count, errand, upstream).await;
                    head.map(|response| (response, Hold::Http2(stream)))
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

/// What had gone out on a connection before a request.
struct Count {
    meter: Meter,
    before: u64,
    http2: bool,
}

impl Count {
    fn of(meter: &Meter, http2: bool) -> Self {
        Self { meter: meter.clone(), before: meter.bytes(), http2 }
    }

    /// Whether nothing has gone out since.
    fn is_nothing(&self) -> bool {
        self.meter.bytes() == self.before
    }
}

/// Why there is no answer.
enum Unsent {
    /// The connection was closed and gave the request back untouched.
    Given(Box<Request<Body<Inbound>>>),
    Failed(ForwardError),
}

type Sent = Result<Response<Incoming>, TrySendError<Request<Body<Inbound>>>>;

async fn await_head(
    sending: impl Future<Output = Sent>,
    count: Count,
    errand: &Errand,
    upstream: &Upstream,
) -> Result<Response<Incoming>, Unsent> {
    let mut sending = pin!(sending);
    let taken = || errand.progress.as_ref().map_or(0, super::body::Progress::frames);
    let mut seen = taken();
    let mut error = loop {
        match timeout(upstream.timeout, sending.as_mut()).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(error)) => break error,
            // A long upload is not an upstream that does not answer.
            Err(_) if !errand.guarded && taken() > seen => seen = taken(),
            Err(_) => return Err(Unsent::Failed(given_up(upstream, &count))),
        }
    };
    if let Some(request) = error.take_message() {
        return Err(Unsent::Given(Box::new(request)));
    }
    let error = error.into_error();
    Err(Unsent::Failed(if !errand.guarded && sources(&error).any(|one| one.is::<BodyError>()) {
        ForwardError::Sender(error.into())
    } else if count.is_nothing() || was_refused(&error) {
        ForwardError::unreachable(format!("nothing was sent: {error}"))
    } else {
        ForwardError::Broken(error.into())
    }))
}

/// What it means that no answer has come. A request that HTTP/2 was given may wait there for its
/// turn and still go out, whatever becomes of us: only of HTTP/1 is it known that it will not.
fn given_up(upstream: &Upstream, count: &Count) -> ForwardError {
    let after = upstream.timeout;
    if count.is_nothing() && !count.http2 {
        ForwardError::unreachable(format!("nothing could be sent within {after:?}"))
    } else {
        ForwardError::Timeout(after)
    }
}

/// Whether an HTTP/2 upstream says that it has not looked at the request: `REFUSED_STREAM`, or
/// `GOAWAY` with a lower stream than ours.
fn was_refused(error: &hyper::Error) -> bool {
    sources(error).find_map(|source| source.downcast_ref::<h2::Error>()).is_some_and(|h2| {
        let refused = h2.is_reset() && h2.reason() == Some(h2::Reason::REFUSED_STREAM);
        h2.is_remote() && (refused || h2.is_go_away())
    })
}

/// What lies behind an error, the nearest first.
fn sources(error: &hyper::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    iter::successors(error.source(), |&error| error.source())
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
    let body = request.body();
    let unknown = !body.is_end_stream() && body.size_hint().exact().is_none();
    let headers = request.headers_mut();
    headers.remove(header::HOST);
    if errand.trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if !http2 {
        if errand.trailers && errand.upgrade.is_none() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("te"));
        }
        if let Some(host) = host {
            headers.insert(header::HOST, host);
        }
        if unknown {
            // hyper takes a GET of unknown length for one without a body.
            headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        headers::join_cookies(headers);
    }
    Ok(())
}
