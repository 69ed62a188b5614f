//! The listener: accepts connections, and limits their number and time.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{HeaderName, HeaderValue, Request, Response, header},
    response::IntoResponse as _,
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tower_service::Service as _;

use super::{ApiState, access::AccessCheck, api_error::ApiError, router};

/// Maximum number of open connections. A new connection replaces another one, so that idle clients
/// cannot block health checks.
pub(super) const CONNECTIONS_MAX: usize = if cfg!(test) { 8 } else { 256 };

/// Timeout for a request head, and idle timeout of a connection.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum age of a connection: a client that never reads must not keep it open.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(600);

/// Grace period for requests on shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// This response header identifies an API listener.
pub const API_HEADER: HeaderName = HeaderName::from_static("semel-api");

/// Serves the API until `stop` resolves.
pub async fn serve(listener: TcpListener, state: ApiState, stop: impl Future<Output = ()>) {
    let gate = match listener.local_addr() {
        Ok(address) => AccessCheck::new(address, state.token.is_some()),
        Err(error) => return tracing::error!(%error, "the API listener has no address"),
    };
    if !gate.shows_records() {
        tracing::warn!(
            "the API listener is open to other machines without an operator token: it shows \
             health and metrics, but no records",
        );
    }
    let router = router(Arc::new(state));
    let (end, ended) = watch::channel(());
    let (mut connections, mut open) = (JoinSet::new(), VecDeque::new());
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, peer)) => {
                evict_if_full(&mut open);
                let busy = Arc::new(AtomicBool::new(false));
                let state =
                    ConnectionState { router: router.clone(), gate, peer, busy: Arc::clone(&busy) };
                let handle = connections.spawn(serve_connection(stream, state, ended.clone()));
                open.push_back(TrackedConnection { handle, busy });
            }
            Err(error) => {
                // Usually too many open files: an immediate retry would spin.
                tracing::warn!(%error, "the API listener cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop((listener, ended));
    let _ = end.send(());
    let _ =
        timeout(SHUTDOWN_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
}

/// An open connection.
struct TrackedConnection {
    handle: AbortHandle,
    /// Whether it processes a request.
    busy: Arc<AtomicBool>,
}

/// At the limit, closes the oldest connection that waits for its client, or else the oldest one. An
/// action that it started continues.
fn evict_if_full(open: &mut VecDeque<TrackedConnection>) {
    open.retain(|tracked| !tracked.handle.is_finished());
    if open.len() < CONNECTIONS_MAX {
        return;
    }
    let idle = open.iter().position(|tracked| !tracked.busy.load(Ordering::Relaxed));
    if let Some(tracked) = open.remove(idle.unwrap_or(0)) {
        tracked.handle.abort();
    }
}

/// The state that a connection is served with.
#[derive(Clone)]
struct ConnectionState {
    router: Router,
    gate: AccessCheck,
    peer: SocketAddr,
    busy: Arc<AtomicBool>,
}

async fn serve_connection(
    stream: TcpStream,
    state: ConnectionState,
    mut ended: watch::Receiver<()>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let state = state.clone();
        async move {
            state.busy.store(true, Ordering::Relaxed);
            let answer = respond(&state, request).await;
            state.busy.store(false, Ordering::Relaxed);
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // A client may disconnect at any time; that is not an error.
        _ = connection.as_mut() => return,
        _ = ended.changed() => {}
        () = sleep(CONNECTION_AGE_MAX) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(SHUTDOWN_TIMEOUT, connection).await;
}

async fn respond(state: &ConnectionState, request: Request<Incoming>) -> Response<Body> {
    let mut response = match state.gate.check(&request) {
        Ok(()) => call_router(state, request).await,
        Err(api_error) => api_error.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(API_HEADER, HeaderValue::from_static("1"));
    response
}

async fn call_router(state: &ConnectionState, request: Request<Incoming>) -> Response<Body> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(state.peer);
    match timeout(REQUEST_TIMEOUT, state.router.clone().call(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => ApiError::too_slow().into_response(),
    }
}
