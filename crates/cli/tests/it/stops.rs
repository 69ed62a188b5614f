//! The end of a gateway: nothing that was accepted is lost or cut, or it says so.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use semel::core::StateName;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use crate::{
    common::{Client, Gate, ORDER, Reply, Setup, Upstream, charge, get, local, send, wait_until},
    fair_shares::read_status,
};

/// A client that sends one request after the other on one connection until an answer says that it
/// is the last. Every request has an answer, whole.
async fn busy(address: SocketAddr, name: usize, answered: Arc<AtomicUsize>) -> usize {
    let mut client = Client::connect(address).await;
    for round in 0.. {
        let key = format!("{name}-{round}");
        let request = if name.is_multiple_of(4) { get("/charges") } else { charge(&key, ORDER) };
        let answer = client.try_send(request).await.expect("nothing is cut");
        assert_eq!(answer.status.as_u16(), 201, "{answer:?}");
        assert!(answer.text().ends_with("}\n"), "{answer:?}");
        answered.fetch_add(1, Ordering::SeqCst);
        if answer.header("connection") == Some("close") {
            return round + 1;
        }
    }
    unreachable!("it runs until it is stopped");
}

#[tokio::test]
async fn a_shutdown_under_load_loses_and_cuts_nothing() {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| match request.key().starts_with("slow") {
            true => Reply::created(request).blocked_on(&gate),
            false => Reply::created(request).after(Duration::from_millis(20)),
        }
    })
    .await;
    let gateway = Setup::new(&upstream.url()).start().await;
    let address = gateway.address();
    let answered: Arc<AtomicUsize> = Arc::default();
    let mut clients = JoinSet::new();
    for name in 0..32 {
        clients.spawn(busy(address, name, Arc::clone(&answered)));
    }
    let mut slow = JoinSet::new();
    for number in 0..8 {
        slow.spawn(send(address, charge(&format!("slow-{number}"), ORDER)));
    }
    wait_until(|| answered.load(Ordering::SeqCst) > 200).await;
    wait_until(|| {
        upstream.requests().iter().filter(|request| request.key().starts_with("slow")).count() == 8
    })
    .await;
    gateway.signal("TERM");
    let sent: usize = clients.join_all().await.into_iter().sum();
    wait_until(|| std::net::TcpStream::connect(address).is_err()).await;
    assert_eq!(gateway.exit_status(), None, "it waits for what runs");
    gate.open();
    for answer in slow.join_all().await {
        assert_eq!(answer.status.as_u16(), 201);
    }
    let status = gateway.wait_for_exit().await;
    assert_eq!(status.code(), Some(0), "{:#?}", gateway.log_lines());
    assert_eq!(upstream.request_count(), sent + 8);
    let mut query = semel::core::ListQuery::new();
    query.state = Some(StateName::InFlight);
    let left = gateway.setup.store().await.list(&query).await.unwrap();
    assert_eq!(left.items, [], "nothing is in flight");
}

#[tokio::test]
async fn requests_are_accepted_during_the_drain_notice_while_the_server_is_not_ready() {
    let upstream = Upstream::start(Reply::created).await;
    // Long enough for the requests below; the second signal ends it.
    let setup = Setup::new(&upstream.url()).gateway("drain_notice = \"1h\"");
    let gateway = setup.start().await;
    assert_eq!(send(gateway.api(), local("/readyz")).await.status.as_u16(), 200);
    gateway.signal("TERM");
    gateway.wait_for_log("draining").await;
    let mut ready = send(gateway.api(), local("/readyz")).await;
    while ready.status.as_u16() == 200 {
        ready = send(gateway.api(), local("/readyz")).await;
    }
    assert_eq!(ready.status.as_u16(), 503);
    let answer = gateway.send(charge("k", ORDER)).await;
    assert_eq!(answer.status.as_u16(), 201, "{answer:?}");
    assert_ne!(answer.header("connection"), Some("close"), "{answer:?}");
    gateway.signal("TERM");
    assert_eq!(gateway.wait_for_exit().await.code(), Some(1));
    assert_eq!(upstream.request_count(), 1);
}

#[tokio::test]
async fn a_service_manager_learns_when_the_gateway_is_ready_reloads_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = tokio::net::UnixDatagram::bind(&path).unwrap();
    let next = async || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).await.unwrap();
        let text = String::from_utf8(buffer[..length].to_vec()).unwrap();
        text.lines().next().unwrap_or_default().to_owned()
    };
    let upstream = Upstream::start(Reply::created).await;
    let setup = Setup::new(&upstream.url()).environment("NOTIFY_SOCKET", path.to_str().unwrap());
    let gateway = setup.start().await;
    assert_eq!(next().await, "READY=1");
    gateway.signal("HUP");
    assert_eq!([next().await, next().await], ["RELOADING=1", "READY=1"]);
    gateway.signal("TERM");
    assert_eq!(next().await, "STOPPING=1");
    assert_eq!(gateway.wait_for_exit().await.code(), Some(0));
}

#[tokio::test]
async fn an_execution_that_outlasts_the_drain_is_cut_off_and_logged() {
    let upstream = Upstream::start(|_| Reply::silent()).await;
    let setup = Setup::new(&upstream.url()).gateway("drain = \"1s\"").defaults("lease = \"1s\"");
    let gateway = setup.start().await;
    let mut client = gateway.connect().await;
    let first = tokio::spawn(async move { client.try_send(charge("k", ORDER)).await });
    wait_until(|| upstream.request_count() == 1).await;
    gateway.signal("TERM");
    let status = gateway.wait_for_exit().await;
    assert!(status.code().is_some_and(|code| code != 0), "{status}");
    gateway.wait_for_log("cut off").await;
    // It may have got `outcome-unknown`, or no answer.
    if let Ok(answer) = first.await.unwrap() {
        assert_eq!(answer.status.as_u16(), 504, "{answer:?}");
    }
    // Its successor finds it where it belongs.
    let successor = setup.start().await;
    let mut answer = successor.send(charge("k", ORDER)).await;
    while answer.slug() == "in-progress" {
        answer = successor.send(charge("k", ORDER)).await;
    }
    answer.assert_problem(423, "outcome-unknown");
    assert_eq!(upstream.request_count(), 1);
    successor.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_request_without_a_guard_that_is_cut_off_is_said_too() {
    let upstream = Upstream::start(|_| Reply::silent()).await;
    let gateway = Setup::new(&upstream.url()).gateway("drain = \"1s\"").start().await;
    let mut client = gateway.connect().await;
    let first = tokio::spawn(async move { client.try_send(get("/report")).await });
    wait_until(|| upstream.request_count() == 1).await;
    gateway.signal("TERM");
    let status = gateway.wait_for_exit().await;
    assert!(status.code().is_some_and(|code| code != 0), "{status}");
    gateway.wait_for_log("cut off").await;
    assert!(first.await.unwrap().is_err());
}

#[tokio::test]
async fn idle_connections_do_not_hold_up_the_end() {
    let upstream = Upstream::plain().await;
    let gateway = Setup::new(&upstream.url()).start().await;
    let mut clients = Vec::new();
    for number in 0..20 {
        let mut client = gateway.connect().await;
        if number % 2 == 0 {
            client.send(charge(&number.to_string(), ORDER)).await;
        }
        clients.push(client);
    }
    // Operators' connections too.
    let mut scraper = Client::connect(gateway.api()).await;
    assert_eq!(scraper.send(local("/healthz")).await.text(), "ok\n");
    let begun = tokio::time::Instant::now();
    gateway.assert_clean_shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(30), "the drain is 65 s");
    drop((clients, scraper));
}

#[tokio::test]
async fn a_second_signal_ends_the_grace_period() {
    let upstream = Upstream::start(|_| Reply::silent()).await;
    let gateway = Setup::new(&upstream.url()).start().await;
    let mut client = gateway.connect().await;
    let first = tokio::spawn(async move { client.try_send(charge("k", ORDER)).await });
    wait_until(|| upstream.request_count() == 1).await;
    gateway.signal("TERM");
    gateway.wait_for_log("shutting down").await;
    assert_eq!(send(gateway.api(), local("/readyz")).await.status.as_u16(), 503);
    assert_eq!(send(gateway.api(), local("/healthz")).await.status.as_u16(), 200);
    gateway.signal("TERM");
    let status = gateway.wait_for_exit().await;
    assert!(status.code().is_some_and(|code| code != 0), "{status}");
    assert!(first.await.unwrap().is_err());
}

#[tokio::test]
async fn a_connection_made_before_the_shutdown_is_served() {
    let upstream = Upstream::plain().await;
    let gateway = Setup::new(&upstream.url()).start().await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(TcpStream::connect(gateway.address()).await.unwrap());
    }
    // It hears of the connections, the requests and the order to stop all at once.
    gateway.signal("STOP");
    for _ in 0..10 {
        clients.push(TcpStream::connect(gateway.address()).await.unwrap());
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let request = format!(
            "POST /charges HTTP/1.1\r\nhost: a\r\nidempotency-key: {number}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{ORDER}",
            ORDER.len(),
        );
        client.write_all(request.as_bytes()).await.unwrap();
    }
    gateway.signal("TERM");
    gateway.signal("CONT");
    for client in &mut clients {
        assert_eq!(read_status(client).await, 201, "nothing is cut");
    }
    assert_eq!(gateway.wait_for_exit().await.code(), Some(0), "{:#?}", gateway.log_lines());
    assert_eq!(upstream.request_count(), 20);
}

#[tokio::test]
async fn an_idle_client_that_has_sent_a_line_or_half_a_head_does_not_hold_it_up() {
    let upstream = Upstream::start(Reply::created).await;
    let gateway = Setup::new(&upstream.url()).gateway("drain = \"6s\"").start().await;
    let mut clients = Vec::new();
    for begun in ["\r\n", "GET /charges HTTP/1.1\r\nHos"] {
        let mut client = TcpStream::connect(gateway.address()).await.unwrap();
        // What it sends after an answer was certainly read.
        client.write_all(b"GET /charges HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut answer = vec![0; 4096];
        assert!(client.read(&mut answer).await.unwrap() > 0);
        client.write_all(begun.as_bytes()).await.unwrap();
        clients.push(client);
    }
    // Real time must pass: the gateway has read the bytes, and shows it nowhere.
    tokio::time::sleep(Duration::from_millis(100)).await;
    gateway.signal("TERM");
    let status = gateway.wait_for_exit().await;
    assert_eq!(status.code(), Some(0), "{:#?}", gateway.log_lines());
}
