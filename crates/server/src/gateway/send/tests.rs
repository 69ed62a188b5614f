//! What becomes of a request on a connection that takes nothing of it.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use semel::core::Problem;
use semel_tower::NeverReached;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
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
    Errand { path, host: None, trailers: false, guarded: true, progress: None, upgrade: None }
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
