//! What one HTTP/2 stream may send ahead of its reader: little, and never at the cost of the other
//! streams of its connection.

use std::{
    future::pending,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::time::sleep;
use tonic::codegen::tokio_stream;

use crate::{
    client::Client,
    common::{Content, Gateway, Setup, Upstream, content, text},
    memory::{ask, connect, get},
    soon,
};

/// Nothing here ends because it takes too long.
const PATIENT: &str = "[limits]\nanswer_timeout = \"10m\"\nbody_timeout = \"10m\"\n";

const PIECE: usize = 16 << 10;

/// A body without end, and how many pieces of it were taken.
fn endless() -> (Arc<AtomicUsize>, Content) {
    let taken = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&taken);
    let pieces = tokio_stream::iter(std::iter::repeat_with(move || {
        count.fetch_add(1, Ordering::SeqCst);
        Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(&[b'x'; PIECE])))
    }));
    (taken, content(StreamBody::new(pieces)))
}

/// Waits until no more is taken.
async fn until_full(taken: &AtomicUsize) {
    let mut before = 0;
    loop {
        sleep(Duration::from_millis(500)).await;
        let now = taken.load(Ordering::SeqCst);
        if now > 0 && now == before {
            return;
        }
        before = now;
    }
}

/// Takes bodies, but those for `/stuck`.
async fn upstream() -> Upstream {
    Upstream::serving(|request| async move {
        if request.uri().path() == "/stuck" {
            pending::<()>().await;
        }
        let length = request.into_body().collect().await.unwrap().to_bytes().len();
        Response::new(text(length.to_string()))
    })
    .await
}

/// Begins an upload that the upstream does not take, until nothing more fits.
async fn begin_upload(client: &Client) {
    let (taken, body) = endless();
    let Client::Http2(mut sender) = client.another() else { panic!("it is HTTP/2") };
    let request = Request::put("http://shop.example/stuck").body(body).unwrap();
    // It is never answered.
    tokio::spawn(async move { sender.send_request(request).await });
    soon(until_full(&taken)).await;
}

#[tokio::test]
async fn an_upload_that_the_upstream_does_not_take_leaves_its_connection_to_others() {
    let upstream = upstream().await;
    let gateway = Setup::at(upstream.address()).tables(PATIENT).start().await;
    let client = Client::http2(gateway.address()).await;
    begin_upload(&client).await;
    let request = Request::put("/read").body(text(vec![b'x'; 100_000])).unwrap();
    assert_eq!(client.another().ask(request).await.text(), "100000");
}

#[tokio::test]
async fn uploads_that_the_upstream_does_not_take_hold_little_memory_each() {
    const CLIENTS: u64 = 10;
    let upstream = upstream().await;
    let gateway = Setup::at(upstream.address()).tables(PATIENT).start().await;
    let (mut clients, mut before) = (Vec::new(), 0);
    for number in 0..=CLIENTS {
        let mut client = Client::http2(gateway.address()).await;
        // A window that grows with the speed of an upload is large after this.
        let request = Request::put("/read").body(text(vec![b'x'; 8 << 20])).unwrap();
        assert_eq!(client.ask(request).await.status, 200);
        begin_upload(&client).await;
        clients.push(client);
        if number == 0 {
            before = gateway.memory_peak_kib();
        }
    }
    let each = (gateway.memory_peak_kib() - before) / CLIENTS;
    // A growing window held more than 2,000 KiB.
    assert!(each < 1000, "{each} KiB");
}

#[tokio::test]
async fn a_response_that_is_not_read_leaves_its_upstream_connection_to_others() {
    let (sent, body) = endless();
    let body = Arc::new(std::sync::Mutex::new(Some(body)));
    let upstream = Upstream::serving(move |request| {
        let body = (request.uri().path() == "/endless").then(|| body.lock().unwrap().take());
        let large = || content(Full::new(Bytes::from(vec![b'x'; 1_000_000])));
        std::future::ready(Response::new(body.flatten().unwrap_or_else(large)))
    })
    .await;
    // One thread has one connection to the upstream.
    let setup = Setup::at_http2(upstream.address()).gateway("threads = 1").tables(PATIENT);
    let gateway: Gateway = setup.start().await;
    let hog = connect(&gateway, Ipv4Addr::LOCALHOST.into(), 0).await;
    let (status, unread) = ask(&hog, get("/endless")).await;
    assert_eq!(status, 200);
    soon(until_full(&sent)).await;
    let mut innocent = Client::http1(gateway.address()).await;
    assert_eq!(innocent.get("/large").await.body.len(), 1_000_000);
    assert_eq!(upstream.connections(), 1);
    drop(unread);
}
