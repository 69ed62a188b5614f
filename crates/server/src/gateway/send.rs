//! Sends a request on one of the pool's connections and awaits the head of its answer. The one
//! question that must be answered rightly when something breaks: had a byte of it gone out?

use std::{
    error::Error,
    future::{Future, poll_fn},
    iter,
    pin::{Pin, pin},
    sync::Arc,
    task::{Poll, ready},
};

use http::{
    HeaderValue, Request, Response, Uri, Version, header,
    uri::{Parts as UriParts, Scheme},
};
use hyper::{body::Incoming, client::conn::TrySendError};
use semel_tower::Body;
use tokio::time::{Instant, timeout};

use super::{
    body::{BodyError, Inbound, Source},
    error::ForwardError,
    forward::Errand,
    headers,
    http1::{Ask, Exchange, Fault, Head},
    pool::{Lent, Pool, Way},
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
) -> impl Future<Output = Result<Response<Source>, ForwardError>> + Send + 'a {
    async move {
        let upstream = pool.upstream();
        let mut tries = 0;
        loop {
            let way = if tries < POOLED_TRIES { pool.way().await? } else { pool.connect().await? };
            tries += 1;
            let sent = match way {
                Way::Http1(lent) => {
                    let exchange = exchange(lent, request, errand);
                    return answer(exchange, errand, pool).await;
                }
                Way::Http2(mut shared, stream) => {
                    address(&mut request, upstream, errand)?;
                    errand.may_begin()?;
                    let count = Count::of(shared.socket.meter());
                    let sending = shared.sender.try_send_request(request);
                    let head = await_head(sending, count, errand, upstream).await;
                    head.map(|response| {
                        response.map(|incoming| Source::Http2(incoming, Some(stream)))
                    })
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

/// A request on its way on a connection over HTTP/1.1.
pub(crate) fn exchange(lent: Lent, request: Request<Body<Inbound>>, errand: &Errand) -> Exchange {
    let host = host(lent.upstream(), errand);
    let (path, host, upgrade) = (&errand.path, host.as_ref(), errand.upgrade.is_some());
    Exchange::new(lent, request, &Ask { path, host, trailers: errand.trailers, upgrade })
}

/// Awaits the head of an answer by HTTP/1.1, on another connection if nothing could be sent on this
/// one.
#[expect(clippy::manual_async_fn, reason = "an async fn would keep its arguments twice")]
pub(crate) fn answer<'a>(
    mut exchange: Exchange,
    errand: &'a Errand,
    pool: &'a Arc<Pool>,
) -> impl Future<Output = Result<Response<Source>, ForwardError>> + Send + 'a {
    async move {
        let mut tries = 1;
        let head = loop {
            errand.may_begin()?;
            let head = head_of(&mut exchange, errand, pool.upstream()).await;
            let of_body = matches!(head, Some(Err(Fault::Body(_))));
            let is_lost = matches!(head, Some(Err(_))) && !of_body && exchange.can_move();
            if !is_lost || tries > POOLED_TRIES {
                break head;
            }
            drop(head);
            exchange.move_to(another(pool, tries).await?);
            tries += 1;
        };
        let after = pool.upstream().timeout;
        Err(match head {
            Some(Ok(head)) => return Ok(exchange.answer(head).map(Source::Http1)),
            Some(Err(Fault::Body(error))) if !errand.guarded => ForwardError::Sender(error),
            Some(Err(fault)) if exchange.is_unsent() => {
                ForwardError::unreachable(format!("nothing was sent: {fault}"))
            }
            Some(Err(fault)) => ForwardError::Broken(fault.into()),
            None if exchange.is_unsent() => {
                ForwardError::unreachable(format!("nothing could be sent within {after:?}"))
            }
            None => ForwardError::timeout(after),
        })
    }
}

/// The head of an answer by HTTP/1.1. `None` if it does not come in time.
fn head_of(
    exchange: &mut Exchange,
    errand: &Errand,
    upstream: &Upstream,
) -> impl Future<Output = Option<Result<Head, Fault>>> + Send {
    let mut deadline = Instant::now() + upstream.timeout;
    let mut seen = errand.taken();
    poll_fn(move |context| {
        loop {
            if let Poll::Ready(head) = exchange.poll_head(context) {
                return Poll::Ready(Some(head));
            }
            ready!(exchange.poll_alarm(deadline, context));
            // A long upload is not an upstream that does not answer.
            if errand.guarded || errand.taken() == seen {
                return Poll::Ready(None);
            }
            seen = errand.taken();
            deadline = Instant::now() + upstream.timeout;
        }
    })
}

/// Another connection over HTTP/1.1, after so many. Boxed: it is rare, and its future is large.
fn another(
    pool: &Arc<Pool>,
    tries: u32,
) -> Pin<Box<dyn Future<Output = Result<Lent, ForwardError>> + Send + '_>> {
    Box::pin(async move {
        let way = if tries < POOLED_TRIES { pool.way().await? } else { pool.connect().await? };
        match way {
            Way::Http1(lent) => Ok(lent),
            Way::Http2(..) => Err(ForwardError::unreachable("its protocol has changed")),
        }
    })
}

/// The host that the upstream is told.
fn host(upstream: &Upstream, errand: &Errand) -> Option<HeaderValue> {
    let own = || headers::host_value(&upstream.authority);
    if upstream.own_host { own() } else { errand.host.clone().or_else(own) }
}

/// What had gone out on a connection over HTTP/2 before a request.
struct Count {
    meter: Meter,
    before: u64,
}

impl Count {
    fn of(meter: &Meter) -> Self {
        Self { meter: meter.clone(), before: meter.bytes() }
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
    let mut seen = errand.taken();
    let mut error = loop {
        match timeout(upstream.timeout, sending.as_mut()).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(error)) => break error,
            // A long upload is not an upstream that does not answer.
            Err(_) if !errand.guarded && errand.taken() > seen => seen = errand.taken(),
            // A request that HTTP/2 was given may wait there for its turn and still go out,
            // whatever becomes of us.
            Err(_) => return Err(Unsent::Failed(ForwardError::timeout(upstream.timeout))),
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

/// Writes down where a request goes by HTTP/2.
fn address(
    request: &mut Request<Body<Inbound>>,
    upstream: &Upstream,
    errand: &Errand,
) -> Result<(), ForwardError> {
    let host = host(upstream, errand);
    let authority = host.as_ref().and_then(|host| host.as_bytes().try_into().ok());
    let mut parts = UriParts::default();
    parts.path_and_query = Some(errand.path.clone());
    parts.scheme = Some(if upstream.tls { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = Some(authority.unwrap_or_else(|| upstream.authority.clone()));
    *request.uri_mut() = Uri::from_parts(parts).map_err(ForwardError::unreachable)?;
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    headers.remove(header::HOST);
    if errand.trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
