//! The listener: accepts connections, and limits their number and time.

mod worker;

use std::{
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
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tower_service::Service as _;

use self::worker::{ApiWorker, WorkerContext};
use super::{
    ApiState,
    access::AccessCheck,
    api_error::ApiError,
    claims::{WAITS_MAX, claim_rules::WAIT_MAX},
    router,
};

/// Maximum number of open connections. A new connection replaces one without a running call, so
/// that idle clients cannot block health checks. Claims that wait take half of them at most: other
/// calls need connections too.
pub(super) const CONNECTIONS_MAX: usize = 2 * WAITS_MAX;

/// Timeout for a request head, and idle timeout of a connection.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of a call of the service API, which may wait for another owner.
const CALL_TIMEOUT: Duration = WAIT_MAX.saturating_add(REQUEST_TIMEOUT);

/// What the paths of calls that may wait begin with.
const CALL_PATH: &str = "/v1/claims";

/// Maximum age of a connection, beside its last call: a client that never reads must not keep it
/// open.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(600);

/// Grace period for requests on shutdown.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// This response header identifies an API listener.
pub const API_HEADER: HeaderName = HeaderName::from_static("semel-api");

/// Serves the API on this number of threads until `stop` resolves.
pub async fn serve(
    listener: TcpListener,
    state: ApiState,
    threads: usize,
    stop: impl Future<Output = ()>,
) {
    let gate = match listener.local_addr() {
        Ok(address) => AccessCheck::new(address, !state.tokens.is_empty()),
        Err(error) => return tracing::error!(%error, "the API listener has no address"),
    };
    if !gate.shows_records() {
        tracing::warn!(
            "the API listener is open to other machines without an operator token: it shows \
             health and metrics, but no records",
        );
    }
    let (end, ended) = watch::channel(());
    let (running, mut all_ended) = mpsc::channel(1);
    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
    let router = router(Arc::new(state));
    let connection = ConnectionState { router, gate, peer: unknown, busy: Arc::default() };
    let connections_max = CONNECTIONS_MAX.div_ceil(threads.max(1));
    let context = WorkerContext { connection, connections_max, ended, running };
    let start = |index| ApiWorker::start(index, context.clone());
    let workers: Vec<ApiWorker> = match (0..threads.max(1)).map(start).collect() {
        Ok(workers) => workers,
        Err(error) => return tracing::error!(%error, "the API listener cannot start a thread"),
    };
    drop(context);
    accept(&listener, &workers, stop).await;
    drop((listener, workers));
    let _ = end.send(());
    let _ = timeout(SHUTDOWN_TIMEOUT, all_ended.recv()).await;
}

/// Accepts connections and assigns each to the worker with the fewest.
async fn accept(listener: &TcpListener, workers: &[ApiWorker], stop: impl Future<Output = ()>) {
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => return,
        };
        let detached = accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer)));
        match detached {
            Ok((stream, peer)) => {
                let least = workers.iter().min_by_key(|worker| worker.connections());
                if let Some(worker) = least {
                    worker.send(stream, peer);
                }
            }
            Err(error) => {
                // Usually too many open files: an immediate retry would spin.
                tracing::warn!(%error, "the API listener cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The state that a connection is served with.
#[derive(Clone)]
pub(super) struct ConnectionState {
    pub(super) router: Router,
    pub(super) gate: AccessCheck,
    pub(super) peer: SocketAddr,
    pub(super) busy: Arc<AtomicBool>,
}

pub(super) async fn serve_connection(
    stream: std::net::TcpStream,
    state: ConnectionState,
    mut ended: watch::Receiver<()>,
) {
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    // A reply is one small write: waiting for more would only delay it.
    let _ = stream.set_nodelay(true);
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
    let rest = tokio::select! {
        // A client may disconnect at any time; that is not an error.
        _ = connection.as_mut() => return,
        _ = ended.changed() => SHUTDOWN_TIMEOUT,
        () = sleep(CONNECTION_AGE_MAX) => CALL_TIMEOUT,
    };
    connection.as_mut().graceful_shutdown();
    let _ = timeout(rest, connection).await;
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
    let may_wait = request.uri().path().starts_with(CALL_PATH);
    let limit = if may_wait { CALL_TIMEOUT } else { REQUEST_TIMEOUT };
    match timeout(limit, state.router.clone().call(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => ApiError::too_slow().into_response(),
    }
}
