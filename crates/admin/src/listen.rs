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
    claims::{WAITING_CLAIMS_MAX, claim_rules::WAIT_MAX},
    dashboard::{Dashboard, PageState, run_live_updates},
    router,
};

/// Maximum number of open connections. A new connection replaces one without a running call, so
/// that idle clients cannot block health checks.
pub(super) const CONNECTIONS_MAX: usize = if cfg!(test) { 8 } else { 1024 };

const _: () = assert!(WAITING_CLAIMS_MAX < CONNECTIONS_MAX);

/// Timeout for a request head, and idle timeout of a connection.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of a request below `/v1/claims`, which may wait for another owner.
const CLAIM_REQUEST_TIMEOUT: Duration = WAIT_MAX.saturating_add(REQUEST_TIMEOUT);

/// Path prefix of the requests that may wait.
const CLAIMS_PATH_PREFIX: &str = "/v1/claims";

/// Maximum age of a connection, beside its last call: a client that never reads must not keep it
/// open.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(600);

/// Grace period for requests on shutdown.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// This response header identifies an API listener.
pub const API_HEADER: HeaderName = HeaderName::from_static("semel-api");

/// Serves the API and the dashboard on this number of threads until `stop` resolves.
pub async fn serve(
    listener: TcpListener,
    state: ApiState,
    dashboard: Dashboard,
    threads: usize,
    stop: impl Future<Output = ()>,
) {
    let access_check = match listener.local_addr() {
        Ok(address) => AccessCheck::new(address, state.tokens.guards_records()),
        Err(error) => return tracing::error!(%error, "the API listener has no address"),
    };
    if !access_check.shows_records() {
        tracing::warn!(
            "the API listener is open to other machines without an operator token: it shows \
             health and metrics, but no records",
        );
    }
    let (shutdown_tx, shutdown) = watch::channel(());
    let (worker_alive, mut all_workers_ended) = mpsc::channel(1);
    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
    let state = Arc::new(state);
    let pages = Arc::new(PageState::new(Arc::clone(&state), dashboard));
    let live_updates = tokio::spawn(run_live_updates(Arc::clone(&pages)));
    let router = router(state, pages);
    let connection =
        ConnectionState { router, access_check, peer: unknown, is_busy: Arc::default() };
    let connections_max = CONNECTIONS_MAX.div_ceil(threads.max(1));
    let context = WorkerContext { connection, connections_max, shutdown, worker_alive };
    let start = |index| ApiWorker::start(index, context.clone());
    let workers: Vec<ApiWorker> = match (0..threads.max(1)).map(start).collect() {
        Ok(workers) => workers,
        Err(error) => return tracing::error!(%error, "the API listener cannot start a thread"),
    };
    drop(context);
    accept(&listener, &workers, stop).await;
    live_updates.abort();
    drop((listener, workers));
    let _ = shutdown_tx.send(());
    let _ = timeout(SHUTDOWN_TIMEOUT, all_workers_ended.recv()).await;
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
    pub(super) access_check: AccessCheck,
    pub(super) peer: SocketAddr,
    pub(super) is_busy: Arc<AtomicBool>,
}

pub(super) async fn serve_connection(
    stream: std::net::TcpStream,
    state: ConnectionState,
    mut shutdown: watch::Receiver<()>,
) {
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    // A reply is one small write: waiting for more would only delay it.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| {
        let state = state.clone();
        async move {
            state.is_busy.store(true, Ordering::Relaxed);
            let answer = respond(&state, request).await;
            state.is_busy.store(false, Ordering::Relaxed);
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
        _ = shutdown.changed() => SHUTDOWN_TIMEOUT,
        () = sleep(CONNECTION_AGE_MAX) => CLAIM_REQUEST_TIMEOUT,
    };
    connection.as_mut().graceful_shutdown();
    let _ = timeout(rest, connection).await;
}

async fn respond(state: &ConnectionState, request: Request<Incoming>) -> Response<Body> {
    let mut response = match state.access_check.check(&request) {
        Ok(()) => call_router(state, request).await,
        Err(api_error) => api_error.into_response(),
    };
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(API_HEADER, HeaderValue::from_static("1"));
    response
}

async fn call_router(state: &ConnectionState, request: Request<Incoming>) -> Response<Body> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(state.peer);
    request.extensions_mut().insert(state.access_check);
    let may_wait = request.uri().path().starts_with(CLAIMS_PATH_PREFIX);
    let limit = if may_wait { CLAIM_REQUEST_TIMEOUT } else { REQUEST_TIMEOUT };
    match timeout(limit, state.router.clone().call(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => ApiError::request_timeout().into_response(),
    }
}
