//! The listener itself: accepts connections, and bounds what they may take.

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

use super::{ApiState, gate::Gate, refusal::Refusal, router};

/// How many connections are open at once. For the next one another is closed, so that nobody can
/// keep the listener from saying that it is healthy.
pub(super) const CONNECTIONS_MAX: usize = if cfg!(test) { 8 } else { 256 };

/// How long the head of a request may take to arrive, and how long a connection may be idle.
const HEAD_PATIENCE: Duration = Duration::from_secs(15);

/// How long a request may take.
const REQUEST_PATIENCE: Duration = Duration::from_secs(30);

/// How long a connection may be used: one that is never read from must not stay for ever.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(600);

/// How long requests may go on after the end was ordered.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// By this header of an answer a client knows that it speaks to an API listener.
pub(crate) const API_HEADER: HeaderName = HeaderName::from_static("semel-api");

/// Answers operators until `stop` comes.
pub(crate) async fn serve(listener: TcpListener, state: ApiState, stop: impl Future<Output = ()>) {
    let gate = match listener.local_addr() {
        Ok(address) => Gate::new(address, state.token.is_some()),
        Err(error) => return tracing::error!(%error, "the operators' listener has no address"),
    };
    if !gate.shows_records() {
        tracing::warn!(
            "the operators' listener is open to other machines without an operator's token: it \
             shows health and metrics, but no records",
        );
    }
    let router = router(Arc::new(state));
    let (end, ended) = watch::channel(());
    let (mut connections, mut places) = (JoinSet::new(), VecDeque::new());
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, peer)) => {
                make_room(&mut places);
                let busy = Arc::new(AtomicBool::new(false));
                let desk = Desk { router: router.clone(), gate, peer, busy: Arc::clone(&busy) };
                let handle = connections.spawn(connection(stream, desk, ended.clone()));
                places.push_back(Place { handle, busy });
            }
            Err(error) => {
                // Too many open files, usually: trying again at once would only spin.
                tracing::warn!(%error, "the operators' listener cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop((listener, ended));
    let _ = end.send(());
    let _ = timeout(END_PATIENCE, async { while connections.join_next().await.is_some() {} }).await;
}

/// A connection that is open.
struct Place {
    handle: AbortHandle,
    /// Whether a request is being worked on there.
    busy: Arc<AtomicBool>,
}

/// Closes the oldest connection that waits for its client, to send or to read; or if there is none
/// the oldest of all. An act that was begun there goes on.
fn make_room(places: &mut VecDeque<Place>) {
    places.retain(|place| !place.handle.is_finished());
    if places.len() < CONNECTIONS_MAX {
        return;
    }
    let idle = places.iter().position(|place| !place.busy.load(Ordering::Relaxed));
    if let Some(place) = places.remove(idle.unwrap_or(0)) {
        place.handle.abort();
    }
}

/// What a connection needs to be served.
#[derive(Clone)]
struct Desk {
    router: Router,
    gate: Gate,
    peer: SocketAddr,
    busy: Arc<AtomicBool>,
}

async fn connection(stream: TcpStream, desk: Desk, mut ended: watch::Receiver<()>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let desk = desk.clone();
        async move {
            desk.busy.store(true, Ordering::Relaxed);
            let answer = answer(&desk, request).await;
            desk.busy.store(false, Ordering::Relaxed);
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // A client that breaks off is nobody's concern.
        _ = connection.as_mut() => return,
        _ = ended.changed() => {}
        () = sleep(CONNECTION_PATIENCE) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(END_PATIENCE, connection).await;
}

async fn answer(desk: &Desk, request: Request<Incoming>) -> Response<Body> {
    let mut response = match desk.gate.check(&request) {
        Ok(()) => routed(desk, request).await,
        Err(refusal) => refusal.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(API_HEADER, HeaderValue::from_static("1"));
    response
}

async fn routed(desk: &Desk, request: Request<Incoming>) -> Response<Body> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(desk.peer);
    match timeout(REQUEST_PATIENCE, desk.router.clone().call(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => Refusal::too_slow().into_response(),
    }
}
