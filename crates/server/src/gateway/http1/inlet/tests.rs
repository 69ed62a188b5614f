//! Who may read what of a connection, and when the next request can be read.

use std::{future::poll_fn, task::Waker, time::Duration};

use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    time::timeout,
};

use super::*;

/// A connection, and the client at its other end.
fn connection() -> (Inlet, DuplexStream) {
    let (client, server) = duplex(1024 * 1024);
    (Inlet::new(Box::new(server), 10), client)
}

fn can_go_on(inlet: &Inlet) -> bool {
    inlet.lock().can_go_on(&mut Context::from_waker(Waker::noop()))
}

async fn fill(inlet: &Inlet) {
    poll_fn(|context| inlet.lock().poll_fill(context)).await.unwrap();
}

#[tokio::test]
async fn a_body_that_came_with_its_head_needs_no_connection() {
    let (inlet, mut client) = connection();
    client.write_all(b"hellomore").await.unwrap();
    fill(&inlet).await;
    let body = inlet.deliver(Decoder::Length(5), false);
    assert!(matches!(&body, Delivery::Whole(data) if data == "hello"));
    assert_eq!(&inlet.lock().input[..], b"more");
    assert!(can_go_on(&inlet));
}

#[tokio::test]
async fn a_body_that_was_read_does_not_touch_the_next_one() {
    let (inlet, mut client) = connection();
    let mut first = inlet.deliver(Decoder::Length(5), false);
    client.write_all(b"hello").await.unwrap();
    assert_eq!(first.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
    let mut second = inlet.deliver(Decoder::Length(6), false);
    client.write_all(b"second").await.unwrap();
    assert!(first.frame().await.is_none(), "that is not its own");
    assert_eq!(first.size_hint().exact(), Some(0));
    drop(first);
    assert!(inlet.lock().is_wanted, "the second one still is");
    assert_eq!(second.frame().await.unwrap().unwrap().into_data().unwrap(), "second");
}

#[tokio::test]
async fn a_body_whose_connection_is_gone_is_not_taken_for_whole() {
    let (inlet, mut client) = connection();
    let mut body = inlet.deliver(Decoder::chunked(), false);
    client.write_all(b"5\r\nhello\r\n").await.unwrap();
    assert!(body.frame().await.unwrap().is_ok());
    drop(inlet.take());
    assert!(matches!(body.frame().await, Some(Err(Fault::Ended))));
    assert!(!body.is_end_stream());
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "it is closed, whoever has its body");
}

#[tokio::test]
async fn who_waits_for_a_body_is_woken_by_its_end() {
    let (inlet, mut client) = connection();
    let mut body = inlet.deliver(Decoder::Length(5), false);
    let waiting = tokio::spawn({
        let inlet = inlet.clone();
        async move { poll_fn(|context| inlet.lock().poll_body(context)).await }
    });
    tokio::task::yield_now().await;
    client.write_all(b"hello").await.unwrap();
    assert!(body.frame().await.unwrap().is_ok());
    assert!(waiting.await.unwrap(), "it has come to its end, though somebody still has it");
    drop(body);
}

#[tokio::test]
async fn the_rest_of_an_unwanted_body_is_read_if_it_is_here() {
    let (inlet, mut client) = connection();
    drop(inlet.deliver(Decoder::chunked(), false));
    client.write_all(b"5\r\nhello\r\n0\r\n\r\nGET").await.unwrap();
    assert!(can_go_on(&inlet));
    assert_eq!(&inlet.lock().input[..], b"GET");
    drop(inlet.deliver(Decoder::Length(10), false));
    assert!(!can_go_on(&inlet), "seven bytes are missing");
    let (inlet, mut client) = connection();
    drop(inlet.deliver(Decoder::Length(200_000), false));
    client.write_all(&[b'x'; 200_000]).await.unwrap();
    assert!(!can_go_on(&inlet), "that would be too much");
}

#[tokio::test]
async fn after_a_body_that_broke_off_nothing_means_anything() {
    let (inlet, mut client) = connection();
    let mut body = inlet.deliver(Decoder::chunked(), false);
    client.write_all(b"5\r\nhello, world\r\n").await.unwrap();
    assert!(body.frame().await.unwrap().is_ok());
    assert!(body.frame().await.unwrap().is_err());
    drop(body);
    assert!(!can_go_on(&inlet));
}

#[tokio::test]
async fn a_client_that_waits_to_go_on_is_told_when_its_body_is_wanted() {
    let (inlet, mut client) = connection();
    let mut body = inlet.deliver(Decoder::Length(5), true);
    let reading = tokio::spawn(async move { body.frame().await });
    let mut told = vec![0; CONTINUE.len()];
    client.read_exact(&mut told).await.unwrap();
    assert_eq!(told, CONTINUE);
    client.write_all(b"hello").await.unwrap();
    assert!(reading.await.unwrap().unwrap().is_ok());
    assert!(inlet.lock().take_owed().is_empty() && can_go_on(&inlet));
    // One whose body nobody wants is not told, and nobody knows whether it will come.
    drop(inlet.deliver(Decoder::Length(5), true));
    assert!(!can_go_on(&inlet));
    assert!(inlet.lock().take_owed().is_empty(), "nothing of it was begun");
}

#[tokio::test]
async fn a_client_that_was_never_told_to_go_on_may_not_send_its_body() {
    let (inlet, mut client) = connection();
    let body = inlet.deliver(Decoder::Length(5), true);
    assert!(!can_go_on(&inlet), "whoever has the body has not asked for it");
    drop(body);
    let mut body = inlet.deliver(Decoder::Length(5), true);
    let frame = poll_fn(|context| Poll::Ready(Pin::new(&mut body).poll_frame(context))).await;
    assert!(frame.is_pending());
    client.read_exact(&mut vec![0; CONTINUE.len()]).await.unwrap();
    assert!(can_go_on(&inlet), "it was told");
}

#[tokio::test]
async fn whoever_waits_for_more_of_a_body_hears_that_it_broke_off() {
    let (inlet, _client) = connection();
    let mut body = inlet.deliver(Decoder::Length(5), false);
    let reading = tokio::spawn(async move { body.frame().await });
    tokio::task::yield_now().await;
    inlet.abandon();
    // As a connection that closes does, which then is the one that is told of what comes.
    let read = inlet.lock().poll_fill(&mut Context::from_waker(Waker::noop()));
    assert!(read.is_pending());
    let told = timeout(Duration::from_secs(30), reading).await.expect("it is told").unwrap();
    assert!(matches!(told, Some(Err(Fault::Ended))));
}

#[tokio::test]
async fn more_trailers_than_fields_are_refused() {
    let (inlet, mut client) = connection();
    let mut body = inlet.deliver(Decoder::chunked(), false);
    client.write_all(format!("0\r\n{}\r\n", "x: y\r\n".repeat(11)).as_bytes()).await.unwrap();
    assert!(matches!(body.frame().await, Some(Err(Fault::Malformed(_)))));
}

#[tokio::test]
async fn the_end_of_a_client_is_noticed_unless_somebody_reads_its_body() {
    let (inlet, client) = connection();
    let body = inlet.deliver(Decoder::Length(5), false);
    drop(client);
    let mut context = Context::from_waker(Waker::noop());
    assert!(inlet.lock().poll_gone(&mut context).is_pending(), "who reads it will hear of it");
    drop(body);
    assert!(inlet.lock().poll_gone(&mut context).is_ready());
}
