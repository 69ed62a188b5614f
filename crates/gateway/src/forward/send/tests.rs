//! Requests on connections that accept no byte.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use semel::{
    BeginRequest, ExecutionOutput, Lease, MemoryStore, Semel,
    core::{Caller, Fingerprint, Key, Policy, Problem, RecordId, Scope},
};
use semel_testkit::flaky_store::{FlakyStore, StoreCall, StoreCondition};
use semel_tower::NeverReached;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::sleep,
};

use super::*;
use crate::body::ClientBody;
use crate::body::pace::{BodyPace, PaceRule};
use crate::forward::response_body::ResponseBody;
use crate::tls::UpstreamConnector;
use semel_http1::{ConnectionOwner, IncomingBody};

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A request with a body.
fn request() -> Request<Body<RequestBody>> {
    let body = ClientBody::Http1(IncomingBody::Whole(Bytes::from_static(b"body")));
    let body = Body::new(RequestBody::new(body, BodyPace::test(PaceRule::Unlimited)));
    Request::post("/").header(header::HOST, "a").body(body).unwrap()
}

fn guarded_context() -> ForwardContext {
    let path = "/charges".parse().unwrap();
    let (host, lease, frame_count, upgrade) = (None, None, None, None);
    let span = tracing::Span::none();
    ForwardContext { path, host, trailers: false, guarded: true, lease, frame_count, span, upgrade }
}

/// A pool with `count` idle connections that look usable but cannot send, and their other ends.
async fn dead_connections(count: usize) -> (Arc<Pool>, TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let upstream = Arc::new(Upstream::at(&url).unwrap());
    let pool = Arc::new(Pool::new(upstream, UpstreamConnector::Clear, None));
    let (mut all, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let Ok(Checkout::Http1(mut pooled)) = pool.connect().await else { panic!("no connection") };
        pooled.connection_mut().stream.shutdown().await.unwrap();
        all.push(pooled);
        ends.push(listener.accept().await.unwrap().0);
    }
    all.into_iter().for_each(ConnectionOwner::return_to_pool);
    (pool, listener, ends)
}

#[tokio::test]
async fn a_request_is_retried_on_another_connection_if_nothing_was_sent() {
    for count in [1, 2, 3, 5] {
        let (pool, listener, _ends) = dead_connections(count).await;
        let upstream = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"\r\n\r\nbody") {
                assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "the connection ended");
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            String::from_utf8(read).unwrap()
        });
        let (request, forward_context) = (request(), guarded_context());
        let response =
            timeout(TEST_TIMEOUT, send(&pool, request, &forward_context)).await.unwrap().unwrap();
        let body = ResponseBody::new(response.into_body(), None).collect().await.unwrap();
        assert_eq!(body.to_bytes(), "ok");
        let read = upstream.await.unwrap();
        assert_eq!(read.matches("POST /charges HTTP/1.1\r\n").count(), 1, "{read}");
        assert!(read.contains("content-length: 4\r\n"), "{read}");
    }
}

#[tokio::test]
async fn a_request_that_no_connection_accepts_has_never_reached_the_upstream() {
    let (pool, listener, _ends) = dead_connections(2).await;
    drop(listener);
    let (request, forward_context) = (request(), guarded_context());
    let sent = timeout(TEST_TIMEOUT, send(&pool, request, &forward_context)).await.unwrap();
    let error = sent.unwrap_err();
    assert_eq!(error.problem(), Problem::UpstreamUnreachable);
    assert!(error.source().is_some_and(|source| source.is::<NeverReached>()), "the key is free");
}

/// A lease that its owner may not rely on any more: the store does not respond to renewals.
async fn lapsed_lease() -> Lease {
    let store = FlakyStore::new(MemoryStore::new());
    store.set(StoreCall::Renew, StoreCondition::Hanging);
    let semel = Semel::new(store);
    let id = RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), Key::new("k").unwrap());
    let policy = Policy { lease: Duration::from_millis(100), ..Policy::default() };
    let fingerprint = Fingerprint::of_parts("test", &[]);
    let (sender, lease) = oneshot::channel();
    let pending =
        semel.begin(BeginRequest::new(id, fingerprint, Arc::new(policy)), |lease: Lease| {
            let _ = sender.send(lease);
            std::future::pending::<ExecutionOutput<()>>()
        });
    let lease = lease.await.unwrap();
    while lease.can_begin() {
        sleep(Duration::from_millis(5)).await;
    }
    drop(pending);
    lease
}

#[tokio::test]
async fn a_request_whose_lease_has_ended_is_not_sent() {
    let (pool, listener, _ends) = dead_connections(0).await;
    let upstream = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        let _ = stream.read_to_end(&mut read).await;
        read
    });
    let forward_context = ForwardContext { lease: Some(lapsed_lease().await), ..guarded_context() };
    let sent = timeout(TEST_TIMEOUT, send(&pool, request(), &forward_context)).await.unwrap();
    let error = sent.unwrap_err();
    assert_eq!(error.problem(), Problem::UpstreamUnreachable);
    assert!(error.source().is_some_and(|source| source.is::<NeverReached>()), "the key is free");
    drop(pool);
    assert_eq!(upstream.await.unwrap(), b"", "the upstream was connected, and saw nothing");
}
