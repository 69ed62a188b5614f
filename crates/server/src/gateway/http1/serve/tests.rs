//! What a connection waits for, and for how long.

use std::net::Ipv4Addr;

use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, DuplexStream, duplex},
    time::sleep,
};

use super::{super::decode::Decoder, *};
use crate::gateway::fuzzing::Gateway;

/// Calls `run` with a connection, and with the client at its other end.
async fn with_client(run: impl AsyncFnOnce(Client<'_>, DuplexStream)) {
    let gateway = Gateway::new((Ipv4Addr::LOCALHOST, 1).into()).unwrap();
    let (worker, peer) = gateway.parts();
    let (client, server) = duplex(1024);
    let (inlet, out, alarm) = (Inlet::new(Box::new(server), 10), Vec::new(), Alarm::default());
    let ear = Ear::new(&worker.stop, Phase::Closing);
    run(Client { inlet, out, alarm, ear, peer: &peer, worker: &worker }, client).await;
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_body_is_waited_for_only_as_long_as_it_comes() {
    with_client(async |mut client, mut other| {
        let patience = client.worker.limits.body_timeout;
        let mut body = client.inlet.deliver(Decoder::Length(10), false);
        let begun = Instant::now();
        let reading = tokio::spawn(async move {
            sleep(patience / 2).await;
            other.write_all(b"hello").await.unwrap();
            assert!(body.frame().await.unwrap().is_ok());
            (body, other)
        });
        assert!(!client.has_read_all().await, "somebody has it, and nobody reads on");
        assert_eq!(begun.elapsed(), patience * 2);
        drop(reading);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_thrown_away_is_not_missing_in_the_middle_of_a_body() {
    with_client(async |client, mut other| {
        let mut body = client.inlet.deliver(Decoder::Length(10), false);
        other.write_all(b"hello").await.unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
        other.write_all(b"lost!").await.unwrap();
        client.linger().await;
        other.write_all(b"later").await.unwrap();
        assert!(matches!(body.frame().await, Some(Err(Fault::Ended))));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whoever_keeps_sending_is_not_listened_to_for_ever() {
    with_client(async |client, mut other| {
        let begun = Instant::now();
        let sending = tokio::spawn(async move {
            while other.write_all(b"more").await.is_ok() {
                sleep(LINGER / 2).await;
            }
        });
        client.linger().await;
        assert_eq!(begun.elapsed(), LINGER_MAX);
        sending.await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn empty_lines_are_no_request_and_half_a_head_is_answered() {
    with_client(async |mut client, mut other| {
        let patience = client.worker.limits.header_timeout;
        other.write_all(b"\r\n\r\n\r\n").await.unwrap();
        assert!(matches!(client.next().await, Next::Over));
        other.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let begun = Instant::now();
        assert!(matches!(client.next().await, Next::Refused(TOO_SLOW)));
        assert_eq!(begun.elapsed(), patience);
        assert!(matches!(client.refuse(TOO_SLOW).await, After::Linger));
        let mut answer = [0; 12];
        other.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 408");
    })
    .await;
}
