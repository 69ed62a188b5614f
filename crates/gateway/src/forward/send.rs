//! Sends a request on a pooled connection and awaits the response head. On a failure the essential
//! question is whether a byte of the request was sent.

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
use semel_tower::{Body, EndsWithConnection};
use tokio::time::{Instant, timeout};

use crate::body::{BodyReadError, RequestBody};
use crate::error::ForwardError;
use crate::forward::ForwardContext;
use crate::forward::response_body::UpstreamBody;
use crate::headers;
use crate::upstream::pool::{Checkout, Pool, PooledConnection};
use semel_config::Upstream;
use semel_http1::io::ByteCounter;
use semel_http1::{Exchange, Http1Error, Http1ResponseBody, RequestTarget, ResponseHead};

/// An HTTP/1.1 request on a pooled connection.
pub(crate) type PooledExchange = Exchange<PooledConnection, Body<RequestBody>>;

/// Attempts on pooled connections before a new one is opened: the upstream may have closed each of
/// them just now.
const POOLED_ATTEMPTS_MAX: u32 = 3;

/// Sends a request and awaits the response head. If a connection turns out to be closed before a
/// byte was sent, another one is used.
#[expect(clippy::manual_async_fn, reason = "an async fn would keep its arguments twice")]
pub(crate) fn send<'a>(
    pool: &'a Arc<Pool>,
    mut request: Request<Body<RequestBody>>,
    forward_context: &'a ForwardContext,
) -> impl Future<Output = Result<Response<UpstreamBody>, ForwardError>> + Send + 'a {
    async move {
        let upstream = pool.upstream();
        let mut attempts = 0;
        loop {
            let checkout = if attempts < POOLED_ATTEMPTS_MAX {
                pool.checkout().await?
            } else {
                pool.connect().await?
            };
            attempts += 1;
            let sent = match checkout {
                Checkout::Http1(pooled) => {
                    let exchange = start_exchange(pooled, request, forward_context);
                    return await_response(exchange, forward_context, pool).await;
                }
                Checkout::Http2(mut shared, stream) => {
                    set_h2_target(&mut request, upstream, forward_context)?;
                    forward_context.check_lease()?;
                    let count = SentBytes::start(shared.socket.byte_counter());
                    let sending = shared.sender.try_send_request(request);
                    let head = await_h2_head(sending, count, forward_context, upstream).await;
                    head.map(|response| {
                        response.map(|incoming| UpstreamBody::Http2(incoming, Some(stream)))
                    })
                }
            };
            match sent {
                Ok(sent) => return Ok(sent),
                Err(NotSent::Returned(returned)) if attempts <= POOLED_ATTEMPTS_MAX => {
                    request = *returned
                }
                Err(NotSent::Returned(_)) => {
                    return Err(ForwardError::unreachable(
                        "every connection was closed immediately",
                    ));
                }
                Err(NotSent::Failed(error)) => return Err(error),
            }
        }
    }
}

/// Starts a request on an HTTP/1.1 connection.
pub(crate) fn start_exchange(
    pooled: PooledConnection,
    request: Request<Body<RequestBody>>,
    forward_context: &ForwardContext,
) -> PooledExchange {
    let host = upstream_host(pooled.upstream(), forward_context);
    let (path, host, upgrade) =
        (&forward_context.path, host.as_ref(), forward_context.upgrade.is_some());
    Exchange::new(
        pooled,
        request,
        &RequestTarget { path, host, trailers: forward_context.trailers, upgrade },
    )
}

/// Awaits an HTTP/1.1 response head. Retries on another connection if nothing could be sent on this
/// one.
#[expect(clippy::manual_async_fn, reason = "an async fn would keep its arguments twice")]
pub(crate) fn await_response<'a>(
    mut exchange: PooledExchange,
    forward_context: &'a ForwardContext,
    pool: &'a Arc<Pool>,
) -> impl Future<Output = Result<Response<UpstreamBody>, ForwardError>> + Send + 'a {
    async move {
        let mut attempts = 1;
        let head = loop {
            forward_context.check_lease()?;
            let head = await_http1_head(&mut exchange, forward_context, pool.upstream()).await;
            let of_body = matches!(head, Some(Err(Http1Error::Body(_))));
            let is_lost = matches!(head, Some(Err(_))) && !of_body && exchange.can_retry();
            if !is_lost || attempts > POOLED_ATTEMPTS_MAX {
                break head;
            }
            drop(head);
            exchange.retry_on(next_connection(pool, attempts).await?);
            attempts += 1;
        };
        let after = pool.upstream().timeout;
        Err(match head {
            Some(Ok(head)) => {
                let ends_with_connection = head.ends_with_connection();
                let mut response =
                    Http1ResponseBody::response(exchange, head).map(UpstreamBody::Http1);
                if ends_with_connection {
                    response.extensions_mut().insert(EndsWithConnection);
                }
                return Ok(response);
            }
            Some(Err(Http1Error::Body(error))) if !forward_context.guarded => {
                ForwardError::Sender(error)
            }
            Some(Err(error)) if exchange.is_unsent() => {
                ForwardError::unreachable(format!("nothing was sent: {error}"))
            }
            Some(Err(error)) => ForwardError::Broken(error.into()),
            None if exchange.is_unsent() => {
                ForwardError::unreachable(format!("nothing could be sent within {after:?}"))
            }
            None => ForwardError::timeout(after),
        })
    }
}

/// Awaits an HTTP/1.1 response head. `None` on a timeout.
fn await_http1_head(
    exchange: &mut PooledExchange,
    forward_context: &ForwardContext,
    upstream: &Upstream,
) -> impl Future<Output = Option<Result<ResponseHead, Http1Error>>> + Send {
    let mut deadline = Instant::now() + upstream.timeout;
    let mut seen = forward_context.frames_read();
    poll_fn(move |context| {
        loop {
            if let Poll::Ready(head) = exchange.poll_head(context) {
                return Poll::Ready(Some(head));
            }
            ready!(exchange.poll_timer(deadline, context));
            // A long upload must not count as an upstream that does not respond.
            if forward_context.guarded || forward_context.frames_read() == seen {
                return Poll::Ready(None);
            }
            seen = forward_context.frames_read();
            deadline = Instant::now() + upstream.timeout;
        }
    })
}

/// Checks out another HTTP/1.1 connection. Boxed because it is rare and its future is large.
fn next_connection(
    pool: &Arc<Pool>,
    attempts: u32,
) -> Pin<Box<dyn Future<Output = Result<PooledConnection, ForwardError>> + Send + '_>> {
    Box::pin(async move {
        let checkout = if attempts < POOLED_ATTEMPTS_MAX {
            pool.checkout().await?
        } else {
            pool.connect().await?
        };
        match checkout {
            Checkout::Http1(pooled) => Ok(pooled),
            Checkout::Http2(..) => {
                Err(ForwardError::unreachable("the protocol of the upstream has changed"))
            }
        }
    })
}

/// The `Host` sent to the upstream.
fn upstream_host(upstream: &Upstream, forward_context: &ForwardContext) -> Option<HeaderValue> {
    let own = || headers::host_value(&upstream.authority);
    if upstream.sends_upstream_host { own() } else { forward_context.host.clone().or_else(own) }
}

/// Counts the bytes sent on an HTTP/2 connection since a request.
struct SentBytes {
    byte_counter: ByteCounter,
    before: u64,
}

impl SentBytes {
    fn start(byte_counter: &ByteCounter) -> Self {
        Self { byte_counter: byte_counter.clone(), before: byte_counter.bytes() }
    }

    /// Whether nothing was sent since.
    fn is_zero(&self) -> bool {
        self.byte_counter.bytes() == self.before
    }
}

/// Why a request got no response.
enum NotSent {
    /// The connection was closed and returned the request unsent.
    Returned(Box<Request<Body<RequestBody>>>),
    Failed(ForwardError),
}

type H2SendResult = Result<Response<Incoming>, TrySendError<Request<Body<RequestBody>>>>;

async fn await_h2_head(
    sending: impl Future<Output = H2SendResult>,
    count: SentBytes,
    forward_context: &ForwardContext,
    upstream: &Upstream,
) -> Result<Response<Incoming>, NotSent> {
    let mut sending = pin!(sending);
    let mut seen = forward_context.frames_read();
    let mut error = loop {
        match timeout(upstream.timeout, sending.as_mut()).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(error)) => break error,
            // A long upload must not count as an upstream that does not respond.
            Err(_) if !forward_context.guarded && forward_context.frames_read() > seen => {
                seen = forward_context.frames_read()
            }
            // A request that hyper has taken may be queued and still be sent after this returns.
            Err(_) => return Err(NotSent::Failed(ForwardError::timeout(upstream.timeout))),
        }
    };
    if let Some(request) = error.take_message() {
        return Err(NotSent::Returned(Box::new(request)));
    }
    let error = error.into_error();
    Err(NotSent::Failed(
        if !forward_context.guarded && sources(&error).any(|one| one.is::<BodyReadError>()) {
            ForwardError::Sender(error.into())
        } else if count.is_zero() || was_refused(&error) {
            ForwardError::unreachable(format!("nothing was sent: {error}"))
        } else {
            ForwardError::Broken(error.into())
        },
    ))
}

/// Whether an HTTP/2 upstream states that it did not process the request: `REFUSED_STREAM`, or
/// `GOAWAY` with a lower stream id.
fn was_refused(error: &hyper::Error) -> bool {
    sources(error).find_map(|source| source.downcast_ref::<h2::Error>()).is_some_and(|h2| {
        let refused = h2.is_reset() && h2.reason() == Some(h2::Reason::REFUSED_STREAM);
        h2.is_remote() && (refused || h2.is_go_away())
    })
}

/// The sources of an error, the nearest first.
fn sources(error: &hyper::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    iter::successors(error.source(), |&error| error.source())
}

/// Sets the target of an HTTP/2 request.
fn set_h2_target(
    request: &mut Request<Body<RequestBody>>,
    upstream: &Upstream,
    forward_context: &ForwardContext,
) -> Result<(), ForwardError> {
    let host = upstream_host(upstream, forward_context);
    let authority = host.as_ref().and_then(|host| host.as_bytes().try_into().ok());
    let mut parts = UriParts::default();
    parts.path_and_query = Some(forward_context.path.clone());
    parts.scheme = Some(if upstream.tls { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = Some(authority.unwrap_or_else(|| upstream.authority.clone()));
    *request.uri_mut() = Uri::from_parts(parts).map_err(ForwardError::unreachable)?;
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    headers.remove(header::HOST);
    if forward_context.trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
