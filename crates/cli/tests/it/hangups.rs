//! What becomes of a client that goes away: nothing, since the execution belongs to the server.

use std::time::Duration;

use semel::core::StateName;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::sleep,
};

use crate::{
    common::{Gate, Gateway, ORDER, Reply, Setup, Upstream, charge, send, wait_until},
    operators::reaches,
};

/// A request as it is written on the wire.
fn wire(key: &str) -> String {
    format!(
        "POST /charges HTTP/1.1\r\nHost: shop.example\r\nIdempotency-Key: {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{ORDER}",
        ORDER.len()
    )
}

/// Connects and writes this much of a request.
async fn write(gateway: &Gateway, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

#[tokio::test]
async fn a_client_that_disconnects_within_its_request_starts_no_execution() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let whole = wire("k");
    for end in [10, whole.len() - ORDER.len(), whole.len() - 1] {
        drop(write(&gateway, &whole.as_bytes()[..end]).await);
    }
    reaches(&gateway, "semel_connections", 0).await;
    assert_eq!((upstream.request_count(), gateway.state("k").await), (0, None));
    assert_eq!(gateway.send(charge("k", ORDER)).await.status.as_u16(), 201);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_while_it_runs_finds_the_answer_later() {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| Reply::created(request).blocked_on(&gate)
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let client = write(&gateway, wire("k").as_bytes()).await;
    wait_until(|| upstream.request_count() == 1).await;
    drop(client);
    reaches(&gateway, "semel_connections", 0).await;
    assert_eq!(gateway.state("k").await, Some(StateName::InFlight));
    let joiner = tokio::spawn(send(gateway.address(), charge("k", ORDER)));
    reaches(&gateway, "semel_waiting", 1).await;
    gate.open();
    let joiner = joiner.await.unwrap();
    assert_eq!(joiner.text(), "{\"key\": \"k\", \"charge\": 1}\n");
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&joiner);
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

/// An answer of 3 MB that trickles: its head says all that the record needs.
#[tokio::test]
async fn a_client_that_hangs_up_during_a_long_answer_holds_no_key() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let upstream = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        while stream.read_u8().await.unwrap() != b'}' {}
        stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 3000000\r\n\r\n").await.unwrap();
        while stream.write_all(b"x").await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    });
    let setup = Setup::new(&format!("http://{address}"));
    let gateway = setup.defaults("upstream_timeout = \"4s\"").start().await;
    let mut client = write(&gateway, wire("k").as_bytes()).await;
    let mut head = [0; 12];
    client.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 201");
    drop(client);
    // It is read on for `upstream_timeout`, and then no longer.
    upstream.await.unwrap();
    reaches(&gateway, "semel_in_flight", 0).await;
    assert_eq!(gateway.state("k").await, Some(StateName::Completed));
    gateway.send(charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_joiner_that_hangs_up_affects_no_other_client() {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| Reply::created(request).blocked_on(&gate)
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let first = tokio::spawn(send(gateway.address(), charge("k", ORDER)));
    wait_until(|| upstream.request_count() == 1).await;
    let leaver = write(&gateway, wire("k").as_bytes()).await;
    let joiner = tokio::spawn(send(gateway.address(), charge("k", ORDER)));
    reaches(&gateway, "semel_waiting", 2).await;
    drop(leaver);
    reaches(&gateway, "semel_waiting", 1).await;
    gate.open();
    let first = first.await.unwrap();
    assert_eq!((joiner.await.unwrap().body, upstream.request_count()), (first.body, 1));
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn clients_that_hang_up_at_once_run_once_or_not_at_all() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let keys: Vec<String> = (0..40).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        drop(write(&gateway, wire(key).as_bytes()).await);
    }
    reaches(&gateway, "semel_connections", 0).await;
    reaches(&gateway, "semel_in_flight", 0).await;
    for key in &keys {
        let ran = upstream.requests_with_key(key).len();
        let answer = gateway.send(charge(key, ORDER)).await;
        assert_eq!((answer.status.as_u16(), answer.is_replayed()), (201, ran == 1), "{key}");
        assert_eq!(upstream.requests_with_key(key).len(), 1, "{key}");
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_client_that_disconnects_before_the_grant_has_its_request_executed() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let turn = gateway.setup.block_writes().await;
    let client = write(&gateway, wire("k").as_bytes()).await;
    reaches(&gateway, "semel_in_flight", 1).await;
    drop(client);
    reaches(&gateway, "semel_connections", 0).await;
    assert_eq!(upstream.request_count(), 0, "the claim is not granted yet");
    drop(turn);
    wait_until(|| upstream.request_count() == 1).await;
    reaches(&gateway, "semel_in_flight", 0).await;
    let answer = gateway.send(charge("k", ORDER)).await;
    assert_eq!((answer.status.as_u16(), answer.is_replayed()), (201, true));
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_in_its_answer_gets_it_whole_the_next_time() {
    let upstream = Upstream::start(|_| Reply::new(201, vec![b'x'; 900_000])).await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let mut client = write(&gateway, wire("k").as_bytes()).await;
    let mut first = [0; 100];
    client.read_exact(&mut first).await.unwrap();
    drop(client);
    let answer = gateway.send(charge("k", ORDER)).await;
    assert!(answer.is_replayed() && answer.body == vec![b'x'; 900_000]);
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}
