//! Request bodies on a shared connection, and when the next request can be read.

use std::{future::poll_fn, task::Waker, time::Duration};

use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    time::timeout,
};

use super::*;

/// A connection and its client.
fn connection() -> (ServerConn, DuplexStream) {
    let (client, server) = duplex(1024 * 1024);
    (ServerConn::new(Box::new(server), 10), client)
}

fn can_keep_alive(conn: &ServerConn) -> bool {
    conn.lock().can_keep_alive(&mut Context::from_waker(Waker::noop()))
}

async fn fill(conn: &ServerConn) {
    poll_fn(|context| conn.lock().poll_fill(context)).await.unwrap();
}

#[tokio::test]
async fn a_body_that_arrived_with_its_head_needs_no_connection() {
    let (conn, mut client) = connection();
    client.write_all(b"hellomore").await.unwrap();
    fill(&conn).await;
    let body = conn.take_body(Decoder::Length(5), false);
    assert!(matches!(&body, IncomingBody::Whole(data) if data == "hello"));
    assert_eq!(&conn.lock().input[..], b"more");
    assert!(can_keep_alive(&conn));
}

#[tokio::test]
async fn a_body_that_was_read_does_not_read_the_next_one() {
    let (conn, mut client) = connection();
    let mut first = conn.take_body(Decoder::Length(5), false);
    client.write_all(b"hello").await.unwrap();
    assert_eq!(first.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
    let mut second = conn.take_body(Decoder::Length(6), false);
    client.write_all(b"second").await.unwrap();
    assert!(first.frame().await.is_none(), "the bytes belong to the second body");
    assert_eq!(first.size_hint().exact(), Some(0));
    drop(first);
    assert!(conn.lock().has_reader, "the second body is still read");
    assert_eq!(second.frame().await.unwrap().unwrap().into_data().unwrap(), "second");
}

#[tokio::test]
async fn a_body_whose_connection_was_taken_is_not_complete() {
    let (conn, mut client) = connection();
    let mut body = conn.take_body(Decoder::chunked(), false);
    client.write_all(b"5\r\nhello\r\n").await.unwrap();
    assert!(body.frame().await.unwrap().is_ok());
    drop(conn.take_io());
    assert!(matches!(body.frame().await, Some(Err(Http1Error::Closed))));
    assert!(!body.is_end_stream());
    assert_eq!(
        client.read(&mut [0]).await.unwrap(),
        0,
        "it is closed although the body still exists"
    );
}

#[tokio::test]
async fn the_end_of_a_body_wakes_the_task_that_waits_for_it() {
    let (conn, mut client) = connection();
    let mut body = conn.take_body(Decoder::Length(5), false);
    let waiting = tokio::spawn({
        let conn = conn.clone();
        async move { poll_fn(|context| conn.lock().poll_body(context)).await }
    });
    tokio::task::yield_now().await;
    client.write_all(b"hello").await.unwrap();
    assert!(body.frame().await.unwrap().is_ok());
    assert!(waiting.await.unwrap(), "the body ended, though it still exists");
    drop(body);
}

#[tokio::test]
async fn the_rest_of_an_unread_body_is_drained_if_it_has_arrived() {
    let (conn, mut client) = connection();
    drop(conn.take_body(Decoder::chunked(), false));
    client.write_all(b"5\r\nhello\r\n0\r\n\r\nGET").await.unwrap();
    assert!(can_keep_alive(&conn));
    assert_eq!(&conn.lock().input[..], b"GET");
    drop(conn.take_body(Decoder::Length(10), false));
    assert!(!can_keep_alive(&conn), "seven bytes are missing");
    let (conn, mut client) = connection();
    drop(conn.take_body(Decoder::Length(200_000), false));
    client.write_all(&[b'x'; 200_000]).await.unwrap();
    assert!(!can_keep_alive(&conn), "too long to drain");
}

#[tokio::test]
async fn no_request_is_read_after_an_invalid_body() {
    let (conn, mut client) = connection();
    let mut body = conn.take_body(Decoder::chunked(), false);
    client.write_all(b"5\r\nhello, world\r\n").await.unwrap();
    assert!(body.frame().await.unwrap().is_ok());
    assert!(body.frame().await.unwrap().is_err());
    drop(body);
    assert!(!can_keep_alive(&conn));
}

#[tokio::test]
async fn a_client_gets_100_continue_when_its_body_is_read() {
    let (conn, mut client) = connection();
    let mut body = conn.take_body(Decoder::Length(5), true);
    let reading = tokio::spawn(async move { body.frame().await });
    let mut received = vec![0; CONTINUE.len()];
    client.read_exact(&mut received).await.unwrap();
    assert_eq!(received, CONTINUE);
    client.write_all(b"hello").await.unwrap();
    assert!(reading.await.unwrap().unwrap().is_ok());
    assert!(conn.lock().take_partial_continue().is_empty() && can_keep_alive(&conn));
    // A client whose body is not read gets no `100 Continue`, and may never send the body.
    drop(conn.take_body(Decoder::Length(5), true));
    assert!(!can_keep_alive(&conn));
    assert!(conn.lock().take_partial_continue().is_empty(), "none of it was written");
}

#[tokio::test]
async fn a_client_that_got_no_100_continue_may_not_send_its_body() {
    let (conn, mut client) = connection();
    let body = conn.take_body(Decoder::Length(5), true);
    assert!(!can_keep_alive(&conn), "the body was not read yet");
    drop(body);
    let mut body = conn.take_body(Decoder::Length(5), true);
    let frame = poll_fn(|context| Poll::Ready(Pin::new(&mut body).poll_frame(context))).await;
    assert!(frame.is_pending());
    client.read_exact(&mut vec![0; CONTINUE.len()]).await.unwrap();
    assert!(can_keep_alive(&conn), "it got 100 Continue");
}

#[tokio::test]
async fn an_abandoned_body_wakes_its_reader_with_an_error() {
    let (conn, _client) = connection();
    let mut body = conn.take_body(Decoder::Length(5), false);
    let reading = tokio::spawn(async move { body.frame().await });
    tokio::task::yield_now().await;
    conn.abandon_body();
    // As lingering does, which replaces the reader's waker.
    let read = conn.lock().poll_fill(&mut Context::from_waker(Waker::noop()));
    assert!(read.is_pending());
    let frame =
        timeout(Duration::from_secs(30), reading).await.expect("the reader is woken").unwrap();
    assert!(matches!(frame, Some(Err(Http1Error::Closed))));
}

#[tokio::test]
async fn too_many_trailers_are_refused() {
    let (conn, mut client) = connection();
    let mut body = conn.take_body(Decoder::chunked(), false);
    client.write_all(format!("0\r\n{}\r\n", "x: y\r\n".repeat(11)).as_bytes()).await.unwrap();
    assert!(matches!(body.frame().await, Some(Err(Http1Error::Malformed(_)))));
}

#[tokio::test]
async fn a_disconnect_is_detected_unless_a_body_is_being_read() {
    let (conn, client) = connection();
    let body = conn.take_body(Decoder::Length(5), false);
    drop(client);
    let mut context = Context::from_waker(Waker::noop());
    assert!(conn.lock().poll_disconnect(&mut context).is_pending(), "the reader detects it");
    drop(body);
    assert!(conn.lock().poll_disconnect(&mut context).is_ready());
}
