//! What becomes of a request on a connection that takes nothing of it.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use semel::{
    Lease, MemoryStore, Operation, Semel,
    core::{Caller, Fingerprint, Key, Policy, Problem, RecordId, Scope},
};
use semel_testkit::unsteady::{Unsteady, Verb, Weather};
use semel_tower::NeverReached;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::sleep,
};

use super::*;
use crate::gateway::{
    body::{Arriving, Outbound},
    http1::Delivery,
    tls::Connector,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// A request with a body.
fn request() -> Request<Body<Inbound>> {
    let body = Arriving::Http1(Delivery::Whole(Bytes::from_static(b"body")));
    let body = Body::new(Inbound::whole(body, PATIENCE, None));
    Request::post("/").header(header::HOST, "a").body(body).unwrap()
}

fn errand() -> Errand {
    let path = "/charges".parse().unwrap();
    let (host, lease, progress, upgrade) = (None, None, None, None);
    Errand { path, host, trailers: false, guarded: true, lease, progress, upgrade }
}

/// A pool with so many idle connections on which nothing can be sent any more, though they look as
/// good as ever; and their other ends.
async fn dead(count: usize) -> (Arc<Pool>, TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let upstream = Arc::new(Upstream::at(&url).unwrap());
    let pool = Arc::new(Pool::new(upstream, Connector::Clear, None));
    let (mut all, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let Ok(Way::Http1(mut lent)) = pool.connect().await else { panic!("no connection") };
        lent.connection.stream.shutdown().await.unwrap();
        all.push(lent);
        ends.push(listener.accept().await.unwrap().0);
    }
    all.into_iter().for_each(Lent::give_back);
    (pool, listener, ends)
}

#[tokio::test]
async fn a_request_that_a_connection_does_not_take_goes_on_another() {
    for count in [1, 2, 3, 5] {
        let (pool, listener, _ends) = dead(count).await;
        let upstream = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"\r\n\r\nbody") {
                assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "it ended");
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            String::from_utf8(read).unwrap()
        });
        let (request, errand) = (request(), errand());
        let answer = timeout(PATIENCE, send(&pool, request, &errand)).await.unwrap().unwrap();
        let body = Outbound::new(answer.into_body(), None).collect().await.unwrap();
        assert_eq!(body.to_bytes(), "ok");
        let read = upstream.await.unwrap();
        assert_eq!(read.matches("POST /charges HTTP/1.1\r\n").count(), 1, "{read}");
        assert!(read.contains("content-length: 4\r\n"), "{read}");
    }
}

#[tokio::test]
async fn a_request_that_no_connection_takes_has_never_reached_the_upstream() {
    let (pool, listener, _ends) = dead(2).await;
    drop(listener);
    let (request, errand) = (request(), errand());
    let sent = timeout(PATIENCE, send(&pool, request, &errand)).await.unwrap();
    let error = sent.unwrap_err();
    assert_eq!(error.problem(), Problem::UpstreamUnreachable);
    assert!(error.source().is_some_and(|source| source.is::<NeverReached>()), "the key is free");
}

/// A lease that its owner may not rely on any more: the store does not answer renewals.
async fn lapsed() -> Lease {
    let store = Unsteady::new(MemoryStore::new());
    store.set(Verb::Renew, Weather::Stuck);
    let semel = Semel::new(store);
    let id = RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), Key::new("k").unwrap());
    let policy = Policy { lease: Duration::from_millis(100), ..Policy::default() };
    let fingerprint = Fingerprint::of_parts("test", &[]);
    let (given, lease) = oneshot::channel();
    let pending = semel.begin(Operation::new(id, fingerprint, Arc::new(policy)), |lease: Lease| {
        let _ = given.send(lease);
        std::future::pending()
    });
    let lease = lease.await.unwrap();
    while lease.may_begin() {
        sleep(Duration::from_millis(5)).await;
    }
    drop(pending);
    lease
}

#[tokio::test]
async fn a_request_whose_lease_has_ended_is_not_sent() {
    let (pool, listener, _ends) = dead(0).await;
    let upstream = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        let _ = stream.read_to_end(&mut read).await;
        read
    });
    let errand = Errand { lease: Some(lapsed().await), ..errand() };
    let sent = timeout(PATIENCE, send(&pool, request(), &errand)).await.unwrap();
    let error = sent.unwrap_err();
    assert_eq!(error.problem(), Problem::UpstreamUnreachable);
    assert!(error.source().is_some_and(|source| source.is::<NeverReached>()), "the key is free");
    drop(pool);
    assert_eq!(upstream.await.unwrap(), b"", "the upstream was connected, and saw nothing");
}
