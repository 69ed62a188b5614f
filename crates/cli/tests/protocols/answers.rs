//! Answers as upstreams should not give them, or not so soon.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::Request;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    client::Client,
    common::{Gateway, Setup, empty},
    raw::{Raw, RawUpstream},
    soon, wait_until,
};

#[tokio::test]
async fn an_upload_that_its_answer_overtakes_is_sent_to_its_end() {
    let ended = Arc::<AtomicUsize>::default();
    let upstream = RawUpstream::start({
        let ended = Arc::clone(&ended);
        move |mut raw: Raw, _| {
            let ended = Arc::clone(&ended);
            async move {
                while raw.try_read_to("\r\n\r\n").await.is_some() {
                    raw.write("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nsoon").await;
                    raw.read_to("the end").await;
                    ended.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    })
    .await;
    let gateway = Setup::at(upstream.address()).gateway("threads = 1").start().await;
    let mut raw = Raw::connect(gateway.address()).await;
    for count in 1..=3 {
        raw.write("PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\nbegun").await;
        raw.read_to("\r\n\r\nsoon").await;
        raw.write("the end").await;
        wait_until(|| ended.load(Ordering::SeqCst) == count).await;
    }
    assert_eq!(upstream.connections(), 1, "it is used again");
}

#[tokio::test]
async fn an_answer_waits_for_a_client_that_sends_all_before_it_reads() {
    const SIZE: usize = 16 << 20;
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        raw.read_to("\r\n\r\n").await;
        raw.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
        let (mut reader, mut writer) = raw.stream.split();
        let (mut upload, download) = (Vec::new(), vec![b'd'; SIZE]);
        // What does not fit on the way may wait; what is sent is read.
        let _ = tokio::join!(reader.read_to_end(&mut upload), writer.write_all(&download));
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut raw = Raw::connect(gateway.address()).await;
    raw.write(format!("PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: {SIZE}\r\n\r\n")).await;
    raw.read_to("\r\n\r\n").await;
    raw.write(vec![b'u'; SIZE]).await;
    let read = soon(raw.read_bytes(SIZE)).await;
    assert!(read.iter().all(|byte| *byte == b'd'));
}

#[tokio::test]
async fn an_answer_that_is_not_http_is_an_unknown_outcome() {
    const ANSWERS: [&str; 6] = [
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5 5\r\nhello\r\n0\r\n\r\n",
    ];
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        while let Some(head) = raw.try_read_to("\r\n\r\n").await {
            let number = head.split("/answer/").nth(1).unwrap().split(' ').next().unwrap();
            raw.write(ANSWERS[number.parse::<usize>().unwrap()]).await;
        }
    })
    .await;
    let gateway = Setup::at(upstream.address()).gateway("threads = 1").start().await;
    let mut client = Client::http1(gateway.address()).await;
    for (number, text) in ANSWERS.iter().enumerate() {
        let before = upstream.connections();
        let request = || {
            let request = Request::post(format!("/answer/{number}"));
            request.header("idempotency-key", format!("k{number}")).body(empty()).unwrap()
        };
        let first = client.ask(request()).await;
        assert_eq!(first.outcome(), (504, Some("upstream-timeout")), "{text}");
        let second = client.ask(request()).await;
        assert_eq!(second.outcome(), (423, Some("outcome-unknown")), "{text}");
        assert_eq!(upstream.connections(), before + 1, "{text}: no connection is used again");
    }
}

#[tokio::test]
async fn an_answer_that_says_that_its_connection_ends_it_is_whole_and_kept() {
    let upstream = RawUpstream::start(|mut raw: Raw, number| async move {
        raw.read_to("\r\n\r\n").await;
        let head = "HTTP/1.1 201 Created\r\nX-A: one\r\n two\r\nConnection: close";
        raw.write(format!("{head}\r\n\r\nrun {number}")).await;
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Client::http1(gateway.address()).await;
    for is_replayed in [false, true] {
        let request = Request::post("/x").header("idempotency-key", "k").body(empty()).unwrap();
        let answer = client.ask(request).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (201, "run 0"));
        assert_eq!(answer.is_replayed(), is_replayed);
    }
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn interim_answers_without_end_are_an_unknown_outcome() {
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        raw.read_to("\r\n\r\n").await;
        let interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        while raw.stream.write_all(interim).await.is_ok() {}
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Client::http1(gateway.address()).await;
    for outcome in [(504, Some("upstream-timeout")), (423, Some("outcome-unknown"))] {
        let request = Request::post("/x").header("idempotency-key", "k").body(empty()).unwrap();
        assert_eq!(soon(client.ask(request)).await.outcome(), outcome);
    }
    assert_eq!(upstream.connections(), 1);
}
