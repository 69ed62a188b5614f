//! What becomes of a request on a connection that takes nothing of it.

use std::{convert::Infallible, future::pending, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use semel::core::Problem;
use semel_tower::NeverReached;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use super::*;
use crate::gateway::{body::Outbound, tls::Connector};

const PATIENCE: Duration = Duration::from_secs(30);

/// A request with a body, and the client that must not hang up meanwhile.
async fn request() -> (Request<Body<Inbound>>, DuplexStream) {
    let (mut client, server) = duplex(1024);
    let text = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
    client.write_all(text.as_bytes()).await.unwrap();
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let service = service_fn(move |request| {
        sender.send(request).unwrap();
        pending::<Result<Response<Empty<Bytes>>, Infallible>>()
    });
    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(server), service));
    let request: Request<Incoming> = receiver.recv().await.unwrap();
    let version = request.version();
    let inbound = |body| Inbound::whole(Arriving::new(body, version), PATIENCE, None);
    (request.map(|body| Body::new(inbound(body))), client)
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
        let ((request, _client), errand) = (request().await, errand());
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
    let ((request, _client), errand) = (request().await, errand());
    let sent = timeout(PATIENCE, send(&pool, request, &errand)).await.unwrap();
    let error = sent.unwrap_err();
    assert_eq!(error.problem(), Problem::UpstreamUnreachable);
    assert!(error.source().is_some_and(|source| source.is::<NeverReached>()), "the key is free");
}
