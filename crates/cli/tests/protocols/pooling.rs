//! Connections to the upstream: used again while they are good, and never when they are not.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt as _,
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    client::Client,
    common::{Gateway, Setup, Upstream},
    raw::{Raw, RawUpstream},
    soon,
};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// What the client of these tests sends ends so.
const END: &str = "{}";

#[tokio::test]
async fn one_connection_serves_request_after_request() {
    let upstream = Upstream::counting().await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Client::http1(gateway.address()).await;
    for number in 0..20 {
        assert_eq!(client.post("/charges", &format!("k{number}"), "{}").await.status, 200);
        assert_eq!(client.get("/").await.status, 200);
    }
    assert_eq!((upstream.request_count(), upstream.connections()), (40, 1));
}

#[tokio::test]
async fn an_answer_that_ends_its_connection_is_the_last_on_it() {
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        raw.read_to(END).await;
        raw.write("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok").await;
        // It is left open, and what is sent on it is not read.
        raw.try_read_to("never").await;
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Client::http1(gateway.address()).await;
    for number in 0..5 {
        let answer = client.post("/charges", &format!("k{number}"), END).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "ok"));
        assert_eq!(answer.header("connection"), None);
    }
    assert_eq!(upstream.connections(), 5);
}

#[tokio::test]
async fn a_connection_that_is_idle_for_long_is_closed() {
    let (sender, mut ended) = mpsc::unbounded_channel();
    let upstream = RawUpstream::start(move |mut raw: Raw, number| {
        let sender = sender.clone();
        async move {
            while raw.try_read_to(END).await.is_some() {
                raw.write(OK).await;
            }
            let _ = sender.send(number);
        }
    })
    .await;
    let url = format!("http://{}", upstream.address());
    let gateway =
        Setup::upstream(format_args!("{{ url = \"{url}\", pool_idle = \"300ms\" }}")).start().await;
    let mut client = Client::http1(gateway.address()).await;
    assert_eq!(client.post("/charges", "a", END).await.status, 200);
    // No request is sent meanwhile.
    assert_eq!(soon(ended.recv()).await, Some(0));
    assert_eq!(client.post("/charges", "b", END).await.status, 200);
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn a_connection_that_the_upstream_closed_is_never_used() {
    const ROUNDS: usize = 200;
    let (sender, mut closed) = mpsc::unbounded_channel();
    let upstream = RawUpstream::start(move |mut raw: Raw, number| {
        let sender = sender.clone();
        async move {
            raw.read_to(END).await;
            raw.write(OK).await;
            // At once, or when the gateway has had it in its pool for a moment.
            sleep(Duration::from_millis(number as u64 % 12)).await;
            raw.stream.shutdown().await.unwrap();
            drop(raw);
            let _ = sender.send(());
        }
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Client::http1(gateway.address()).await;
    for number in 0..ROUNDS {
        let answer = client.post("/charges", &format!("k{number}"), END).await;
        assert_eq!(answer.outcome(), (200, None), "round {number}");
        soon(closed.recv()).await.unwrap();
    }
    assert_eq!(upstream.connections(), ROUNDS);
}

#[tokio::test]
async fn pauses_around_the_keep_alive_times_of_both_sides_leave_nothing_unknown() {
    const CLIENTS: u64 = 24;
    const ROUNDS: u64 = 4;
    // As with the defaults, the gateway gives up a connection long before the upstream does.
    let (pool_idle, keep_alive) = (Duration::from_millis(400), Duration::from_secs(4));
    let runs = Arc::<AtomicUsize>::default();
    let upstream = RawUpstream::start({
        let runs = Arc::clone(&runs);
        move |mut raw: Raw, _| {
            let runs = Arc::clone(&runs);
            async move {
                while let Ok(Some(_)) = timeout(keep_alive, raw.try_read_to(END)).await {
                    runs.fetch_add(1, Ordering::SeqCst);
                    raw.write(OK).await;
                }
            }
        }
    })
    .await;
    let url = format!("http://{}", upstream.address());
    let pool_idle_ms = pool_idle.as_millis();
    let gateway =
        Setup::upstream(format_args!("{{ url = \"{url}\", pool_idle = \"{pool_idle_ms}ms\" }}"))
            .start()
            .await;
    let mut tasks = JoinSet::new();
    for number in 0..CLIENTS {
        let address = gateway.address();
        tasks.spawn(async move {
            let mut client = Client::http1(address).await;
            for round in 0..ROUNDS {
                let answer = client.post("/charges", &format!("k{number}-{round}"), END).await;
                assert_eq!(answer.outcome(), (200, None), "client {number}, round {round}");
                let pause = if round % 2 == 0 { pool_idle } else { keep_alive };
                // 48 ms before to 44 ms after.
                sleep(pause + Duration::from_millis(4 * number) - Duration::from_millis(48)).await;
            }
        });
    }
    soon(tasks.join_all()).await;
    assert_eq!(runs.load(Ordering::SeqCst) as u64, CLIENTS * ROUNDS);
}

#[tokio::test]
async fn unsolicited_bytes_answer_no_request() {
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        while raw.try_read_to(END).await.is_some() {
            raw.write(format!("{OK}HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")).await;
        }
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Client::http1(gateway.address()).await;
    for number in 0..10 {
        let answer = client.post("/charges", &format!("k{number}"), END).await;
        assert_eq!((answer.outcome(), answer.text()), ((200, None), "ok"));
    }
    assert_eq!(upstream.connections(), 10);
}

#[tokio::test]
async fn late_unsolicited_bytes_answer_no_request() {
    let (sender, mut written) = mpsc::unbounded_channel();
    let upstream = RawUpstream::start(move |mut raw: Raw, _| {
        let sender = sender.clone();
        async move {
            raw.read_to(END).await;
            raw.write(OK).await;
            // The upstream is late: its connection is idle in the pool by then.
            sleep(Duration::from_millis(20)).await;
            // As servers do that time out: the answer to no request at all.
            raw.write("HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n").await;
            let _ = sender.send(());
            raw.try_read_to("never").await;
        }
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Client::http1(gateway.address()).await;
    for number in 0..10 {
        let answer = client.post("/charges", &format!("k{number}"), END).await;
        assert_eq!((answer.outcome(), answer.text()), ((200, None), "ok"));
        soon(written.recv()).await.unwrap();
    }
    assert_eq!(upstream.connections(), 10);
}
