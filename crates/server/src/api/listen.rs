//! The listener itself: accepts connections, and bounds what they may take.

use std::{convert::Infallible, future::Future, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request, Response, header},
    response::IntoResponse as _,
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_service::Service as _;

use super::{ApiState, refusal::Refusal, router};

/// How many connections are open at once; the next one waits.
const CONNECTIONS_MAX: usize = 256;

/// How long the head of a request may take to arrive, and how long a connection may be idle.
const HEAD_PATIENCE: Duration = Duration::from_secs(15);

/// How long a request may take.
const REQUEST_PATIENCE: Duration = Duration::from_secs(30);

/// How long a connection may be used: one that is never read from must not keep its place.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(600);

/// How long requests may go on after the end was ordered.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Answers operators until `stop` comes.
pub(crate) async fn serve(listener: TcpListener, state: ApiState, stop: impl Future<Output = ()>) {
    let router = router(Arc::new(state));
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (end, ended) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accept = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accept => accepted,
            () = &mut stop => break,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, peer)) => {
                let (router, ended) = (router.clone(), ended.clone());
                connections.spawn(async move {
                    let _place = place;
                    connection(stream, peer, router, ended).await;
                });
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

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    mut ended: watch::Receiver<()>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let router = router.clone();
        async move { Ok::<_, Infallible>(answer(router, peer, request).await) }
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

async fn answer(
    mut router: Router,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Response<Body> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    let mut response = match timeout(REQUEST_PATIENCE, router.call(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => Refusal::too_slow().into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
