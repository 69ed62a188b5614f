//! Over a real connection: what a client sees, and what happens when it disconnects.

use std::time::Duration;

use axum::{Router, body::Body};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use semel::core::Policy;
use semel_testkit::flaky_store::{StoreCall, StoreCondition};
use semel_tower::Streaming;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::harness::{Gate, Harness, ORDER, charge, data, stream, wait_until};

/// Serves an app and connects to it.
async fn connect(app: &Router) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.clone();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let socket = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(socket)).await.unwrap();
    Client { sender, connection: tokio::spawn(connection) }
}

struct Client {
    sender: http1::SendRequest<Body>,
    connection: JoinHandle<hyper::Result<()>>,
}

impl Client {
    async fn send(&mut self, mut request: Request<Body>) -> Response<Incoming> {
        request.headers_mut().insert("host", "localhost".parse().unwrap());
        self.sender.send_request(request).await.unwrap()
    }

    async fn text(&mut self, request: Request<Body>) -> (u16, Bytes) {
        let response = self.send(request).await;
        let status = response.status().as_u16();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    }
}

#[tokio::test]
async fn an_answer_too_large_to_record_is_sent_completely_with_its_content_length() {
    let harness = Harness::new().policy(Policy { response_bytes_max: 1000, ..Policy::default() });
    let app = harness.app(|_| async { vec![b'x'; 1 << 20] });
    let mut client = connect(&app).await;
    let response = client.send(charge("k", ORDER)).await;
    assert_eq!(response.headers()["content-length"], "1048576");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 1 << 20);
    assert_eq!(client.text(charge("k", ORDER)).await.0, 410);
    assert_eq!(harness.runs(), 1);
}

/// A response with the body `hello` and a checksum trailer.
fn with_trailers() -> Response<Body> {
    let (frames, body) = stream();
    frames.try_send(data("hello")).unwrap();
    let checksum = HeaderMap::from_iter([(CHECKSUM, "abc".parse().unwrap())]);
    frames.try_send(Ok(Frame::trailers(checksum))).unwrap();
    Response::builder().header("trailer", CHECKSUM).body(body).unwrap()
}

const CHECKSUM: HeaderName = HeaderName::from_static("x-checksum");

#[tokio::test]
async fn trailers_are_sent_over_http1() {
    let harness = Harness::new();
    let mut client = connect(&harness.app(|_| async { with_trailers() })).await;
    for replayed in [false, true] {
        let mut request = charge("k", ORDER);
        request.headers_mut().insert("te", "trailers".parse().unwrap());
        let response = client.send(request).await;
        assert_eq!(response.headers().contains_key("idempotent-replayed"), replayed);
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()[CHECKSUM], "abc");
        assert_eq!(body.to_bytes(), "hello");
    }
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_streamed_answer_that_cannot_be_recorded_is_aborted() {
    let lease = Duration::from_millis(300);
    let harness = Harness::new().policy(Policy { lease, ..Policy::default() });
    let app = harness.app(|_| async {
        let (frames, body) = stream();
        for text in ["a", "b"] {
            frames.send(data(text)).await.unwrap();
        }
        (axum::Extension(Streaming), body)
    });
    harness.store.set(StoreCall::Finish, StoreCondition::Unavailable);
    let mut client = connect(&app).await;
    let response = client.send(charge("k", ORDER)).await;
    assert_eq!(response.status(), 200);
    assert!(response.into_body().collect().await.is_err(), "the connection is cut");
}

#[tokio::test]
async fn a_disconnect_while_the_handler_runs_does_not_lose_the_answer() {
    let (harness, gate) = (Harness::new(), Gate::new());
    let app = harness.app_blocked_on(&gate);
    let mut client = connect(&app).await;
    let connection = client.connection.abort_handle();
    let request = tokio::spawn(async move {
        let mut request = charge("k", ORDER);
        request.headers_mut().insert("host", "localhost".parse().unwrap());
        client.sender.send_request(request).await
    });
    wait_until(|| harness.runs() == 1).await;
    connection.abort();
    assert!(request.await.unwrap().is_err());
    gate.open();
    wait_until(|| harness.semel.in_flight() == 0).await;
    assert_eq!(connect(&app).await.text(charge("k", ORDER)).await, (201, Bytes::from("1")));
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_it_is_sent() {
    let harness = Harness::new().policy(Policy { request_bytes_max: 10, ..Policy::default() });
    let mut client = connect(&harness.app(|_| async { "ok" })).await;
    let (never_written, body) = stream();
    let mut request = charge("k", "").map(|_| body);
    request.headers_mut().insert("content-length", "11".parse().unwrap());
    assert_eq!(client.text(request).await.0, 413);
    // The body was open until here: the 413 came without a byte of it.
    drop(never_written);
    assert_eq!(harness.runs(), 0);
}
