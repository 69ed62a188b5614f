//! Serves one client connection.

use std::{
    future::{Future, pending, poll_fn},
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Either;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::body::ClientBody;
use crate::connections::{ActiveRequest, AwaitedBody, OpenStream};
use crate::forward::response_body::GatewayBody;
use crate::listen::accepted::Accepted;
use crate::listen::empty_body;
use crate::listen::http1_service::ClientRequests;
use crate::listen::stream_timeout::{StreamBody, StreamExecutor};
use crate::listen::worker_state::WorkerState;
use crate::peer::ClientPeer;
use crate::route::bad_request;
use crate::shutdown::{Shutdown, ShutdownListener, ShutdownPhase};
use semel_http1::Io;
use semel_http1::io::WriteTimeout;

/// Concurrent requests on one HTTP/2 connection of a client.
const CLIENT_STREAMS_MAX: u32 = 200;

/// Bytes of a request body that one HTTP/2 stream may send ahead of its reader. A window that grows
/// with the speed of a client would let a client that was fast hold megabytes. It is the default of
/// the protocol: a smaller one does not bind a client that never acknowledges it.
const STREAM_WINDOW: u32 = 65_535;

/// Bytes of a response that one HTTP/2 stream buffers for a client that does not read its socket,
/// whatever its window. A chunk of the upstream may exceed it.
const STREAM_SEND_BUFFER: usize = 32 << 10;

/// Interval of HTTP/2 pings to a client.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Idle time before the first TCP keepalive probe.
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves a connection until it ends. Its errors affect no other connection.
pub(crate) async fn serve(accepted: Accepted, worker: Arc<WorkerState>) {
    let Accepted { stream, address, tls, permit, count: _count } = accepted;
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    // Both are optional: without them a response is slower, or a dead client is detected later.
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE_IDLE);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
    let permit = Arc::new(permit);
    let (timeout, memory) = (worker.limits.tunnel_timeout, &worker.memory);
    let shutdown = worker.shutdown.clone();
    let peer = ClientPeer::new(address, tls.is_some(), shutdown, &permit, timeout, memory);
    let write_timeout = worker.limits.answer_timeout;
    let Some(tls) = tls else {
        if let Some(http2) = with_handshake_timeout(is_http2(&stream), &worker).await {
            let peer = Arc::new(peer);
            serve_http(Box::new(WriteTimeout::new(stream, write_timeout)), http2, &peer, &worker)
                .await;
        }
        return;
    };
    if let Some(stream) =
        with_handshake_timeout(tls.accept(WriteTimeout::new(stream, write_timeout)), &worker).await
    {
        let session = stream.get_ref().1;
        let http2 = session.alpn_protocol() == Some(b"h2");
        let Ok(certificate) = crate::tls::client_certificate(session) else {
            tracing::warn!("closed a connection whose client certificate cannot be read");
            return;
        };
        let peer = Arc::new(peer.with_certificate(certificate));
        serve_http(Box::new(stream), http2, &peer, &worker).await;
    }
}

/// Awaits a handshake. `None` if it takes too long or fails, or if the shutdown comes first.
async fn with_handshake_timeout<T>(
    handshake: impl Future<Output = io::Result<T>>,
    worker: &WorkerState,
) -> Option<T> {
    let mut shutdown = worker.shutdown.clone();
    tokio::select! {
        biased;
        done = timeout(worker.limits.header_timeout, handshake) => done.ok()?.ok(),
        () = shutdown.wait_for(ShutdownPhase::Closing) => None,
    }
}

/// Whether a client sends the HTTP/2 preface first. Waits for a preface that comes in pieces.
async fn is_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; PREFACE.len()];
    loop {
        let count = stream.peek(&mut first).await?;
        let seen = first.get(..count).unwrap_or_default();
        if count == PREFACE.len() || count == 0 || !PREFACE.starts_with(seen) {
            return Ok(seen == PREFACE);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn serve_http(
    io: Box<dyn Io>,
    http2: bool,
    peer: &Arc<ClientPeer>,
    worker: &Arc<WorkerState>,
) {
    if !http2 {
        let mut closing = ShutdownListener::new(&worker.shutdown, ShutdownPhase::Closing);
        let requests = ClientRequests::new(peer, worker);
        return semel_http1::serve(io, requests, |context| closing.poll(context)).await;
    }
    let service = service_fn({
        let (peer, worker) = (Arc::clone(peer), Arc::clone(worker));
        move |request: Request<Incoming>| respond(&worker, &peer, request)
    });
    let connection = http2_builder(worker).serve_connection(TokioIo::new(io), service);
    until_shutdown(connection, http2::Connection::graceful_shutdown, &worker.shutdown).await;
}

/// Drives a connection. On shutdown it finishes the requests that it has started.
async fn until_shutdown<C: Future>(
    connection: C,
    finish: impl FnOnce(Pin<&mut C>),
    shutdown: &Shutdown,
) {
    let mut connection = pin!(connection);
    let mut shutdown_listener = ShutdownListener::new(shutdown, ShutdownPhase::Closing);
    let is_shut_down = poll_fn(|context| {
        if connection.as_mut().poll(context).is_ready() {
            return Poll::Ready(false);
        }
        shutdown_listener.poll(context).map(|()| true)
    });
    if is_shut_down.await {
        finish(connection.as_mut());
        connection.await;
    }
}

fn respond(
    worker: &Arc<WorkerState>,
    peer: &Arc<ClientPeer>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<StreamBody<TrackedBody>>, h2::Error>> + Send + use<> {
    let stream = peer.connection().open_stream();
    let begin = || stream.is_some().then(|| peer.connection().begin()).flatten();
    let begun = match begin() {
        Some(begun) if empty_body::is_unconfirmed(&request) => {
            let response = respond_after_end(Arc::clone(worker), Arc::clone(peer), request);
            // Boxed because it is rare and large.
            Ok((begun, Err(Box::pin(response))))
        }
        Some(begun) => {
            let response = worker.route_table.load().respond(request.map(ClientBody::Http2), peer);
            Ok((begun, Ok(response)))
        }
        None if peer.connection().is_evicted() => Err(None),
        None => Err(Some(Box::new(bad_request::over_share(request.version(), request.headers())))),
    };
    async move {
        // The client may retry it, and it leaves no state here as a response would.
        let stream = stream.ok_or(h2::Error::from(h2::Reason::REFUSED_STREAM))?;
        let (request, response) = match begun {
            Ok((request, response)) => (request, response),
            Err(Some(refusal)) => {
                return Ok(
                    refusal.map(|body| StreamBody::new(TrackedBody::new(body, None, stream)))
                );
            }
            // The connection was evicted and is about to be dropped.
            Err(None) => return pending().await,
        };
        let response = match response {
            Ok(response) => response.await,
            Err(response) => response.await,
        };
        Ok(response.map(|body| StreamBody::new(TrackedBody::new(body, Some(request), stream))))
    }
}

/// Responds to a request whose body is announced as empty, after the client has ended its stream.
async fn respond_after_end(
    worker: Arc<WorkerState>,
    peer: Arc<ClientPeer>,
    mut request: Request<Incoming>,
) -> Response<GatewayBody> {
    // The request has no effect until then, so its connection may be evicted.
    let mut awaited = AwaitedBody::new(Arc::clone(peer.connection()));
    awaited.start_waiting();
    let ended = empty_body::ends_empty(request.body_mut());
    let ended = timeout(worker.limits.body_timeout, ended).await;
    drop(awaited);
    if ended != Ok(true) {
        worker.route_table.load().count_malformed();
        return empty_body::length_mismatch().map(Either::Right);
    }
    let response = worker.route_table.load().respond(request.map(ClientBody::Http2), &peer);
    response.await
}

/// The body of an HTTP/2 response. Its request ends when it is dropped.
#[derive(Debug)]
pub(crate) struct TrackedBody {
    body: GatewayBody,
    _request: Option<ActiveRequest>,
    _stream: OpenStream,
}

impl TrackedBody {
    const fn new(body: GatewayBody, request: Option<ActiveRequest>, stream: OpenStream) -> Self {
        Self { body, _request: request, _stream: stream }
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = <GatewayBody as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn http2_builder(worker: &WorkerState) -> http2::Builder<StreamExecutor> {
    let WorkerState { limits, metrics, .. } = worker;
    let (timeout, metrics) = (limits.answer_timeout, Arc::clone(metrics));
    let mut builder = http2::Builder::new(StreamExecutor { timeout, metrics });
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        // Streams whose bodies are not taken leave the others their windows: the connection may be
        // that of a proxy with many clients.
        .initial_connection_window_size(STREAM_WINDOW * CLIENT_STREAMS_MAX)
        .keep_alive_interval(PING_INTERVAL)
        .max_concurrent_streams(CLIENT_STREAMS_MAX)
        .max_send_buf_size(STREAM_SEND_BUFFER)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX));
    builder
}

#[cfg(test)]
mod tests {
    use tokio::task::{
        coop::{consume_budget, has_budget_remaining},
        yield_now,
    };

    use super::*;
    use crate::shutdown::ShutdownTrigger;

    /// A connection that uses up the whole budget of its task.
    struct Greedy {
        is_shut_down: bool,
    }

    impl Future for Greedy {
        type Output = ();

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            while has_budget_remaining() {
                let _ = pin!(consume_budget()).poll(context);
            }
            if self.is_shut_down { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    #[tokio::test]
    async fn a_busy_connection_is_notified_of_the_shutdown() {
        for phases in
            [&[ShutdownPhase::Closing][..], &[ShutdownPhase::Draining, ShutdownPhase::Closing]]
        {
            let (shutdown_trigger, shutdown) = ShutdownTrigger::new();
            let greedy = Greedy { is_shut_down: false };
            let finish = |greedy: Pin<&mut Greedy>| greedy.get_mut().is_shut_down = true;
            let serving =
                tokio::spawn(async move { until_shutdown(greedy, finish, &shutdown).await });
            for phase in phases {
                for _ in 0..10 {
                    yield_now().await;
                }
                shutdown_trigger.enter(*phase);
            }
            timeout(Duration::from_secs(30), serving).await.expect("it was not notified").unwrap();
        }
    }
}
