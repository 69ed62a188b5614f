//! What ends an execution: the second table of states, row by row.

use std::{sync::Arc, time::Duration};

use semel::core::{Reason, StateName};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::Semaphore,
};

use crate::common::{
    Client, Gateway, ORDER, ReceivedRequest, Reply, Setup, TestResponse, Upstream, charge, send,
    wait_until,
};

/// Tests what a route makes of an unknown outcome, for each that it may say.
async fn under_each(test: impl AsyncFn(&'static str)) {
    tokio::join!(test("hold"), test("rerun"), test("fail"));
}

/// A gateway before an upstream that does this with the first run of a key, and then answers well.
async fn first_run(
    on_unknown: &str,
    script: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
) -> (Upstream, Gateway) {
    let upstream = Upstream::start(move |request| match request.run {
        1 => script(request),
        _ => Reply::created(request),
    })
    .await;
    let setup = Setup::new(&upstream.url());
    let setup = setup.defaults(format!("on_unknown = \"{on_unknown}\""));
    let gateway = setup.defaults("upstream_timeout = \"2s\"").start().await;
    (upstream, gateway)
}

/// What the second request under a key meets whose first run has an unknown outcome.
async fn is_unknown(upstream: &Upstream, gateway: &Gateway, key: &str, on_unknown: &str) {
    let second = gateway.send(charge(key, ORDER)).await;
    match on_unknown {
        "hold" => {
            second.assert_problem(423, "outcome-unknown");
            assert_eq!(gateway.state(key).await, Some(StateName::Held));
        }
        "rerun" => {
            assert_eq!((second.status.as_u16(), second.is_replayed()), (201, false), "{key}");
            let runs = upstream.requests_with_key(key);
            assert_eq!((runs[0].attempt(), runs[1].attempt()), (1, 2));
            assert!(runs[0].fence() < runs[1].fence());
            gateway.send(charge(key, ORDER)).await.assert_replay_of(&second);
        }
        _ => {
            second.assert_problem(500, "operation-failed");
            assert!(second.is_replayed());
            gateway.send(charge(key, ORDER)).await.assert_replay_of(&second);
        }
    }
    let runs = if on_unknown == "rerun" { 2 } else { 1 };
    assert_eq!(upstream.requests_with_key(key).len(), runs, "{key} under {on_unknown}");
}

/// Sent, then broken: the first client gets an unknown outcome; where that is final, it gets the
/// same as every repeat.
async fn breaks(key: &'static str, reply: impl Fn() -> Reply + Clone + Send + Sync + 'static) {
    under_each(async |on_unknown| {
        let reply = reply.clone();
        let (upstream, gateway) = first_run(on_unknown, move |_| reply()).await;
        let first = gateway.send(charge(key, ORDER)).await;
        match on_unknown {
            "fail" => first.assert_problem(500, "operation-failed"),
            _ => first.assert_problem(504, "upstream-timeout"),
        }
        is_unknown(&upstream, &gateway, key, on_unknown).await;
        gateway.assert_clean_shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_wire_that_is_closed_after_sending_is_an_unknown_outcome() {
    breaks("closed", Reply::closed).await;
}

#[tokio::test]
async fn a_wire_that_is_reset_after_sending_is_an_unknown_outcome() {
    breaks("reset", Reply::reset).await;
}

#[tokio::test]
async fn an_answer_of_unknown_length_that_breaks_off_is_an_unknown_outcome() {
    breaks("cut", || Reply::new(201, vec![b'x'; 5000]).chunked().cut_after(1000)).await;
}

/// The service had made its answer when it said how long it is: its delivery failed, and nothing
/// else.
#[tokio::test]
async fn an_answer_of_known_length_that_breaks_off_is_recorded_by_its_head() {
    under_each(async |on_unknown| {
        let (upstream, gateway) = first_run(on_unknown, |request| {
            let large = if request.key() == "large" { 3_000_000 } else { 5_000 };
            Reply::new(201, vec![b'x'; large]).cut_after(1000)
        })
        .await;
        for key in ["small", "large"] {
            let mut client = Client::connect(gateway.address()).await;
            let first = client.try_send(charge(key, ORDER)).await;
            assert!(first.is_err(), "what has come is not the whole answer: {first:?}");
            for _ in 0..2 {
                let again = gateway.send(charge(key, ORDER)).await;
                again.assert_problem(410, "response-not-retained");
            }
            assert_eq!(upstream.requests_with_key(key).len(), 1, "{key}");
        }
        gateway.assert_clean_shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_never_answers_is_an_unknown_outcome() {
    breaks("silent", Reply::silent).await;
}

#[tokio::test]
async fn statuses_that_keep_covers_are_replayed() {
    let (upstream, gateway) = first_run("hold", |request| {
        let reply = Reply::new(request.key().parse().unwrap(), "as it is");
        reply.header("etag", "\"7\"").header("location", "/there").header("x-request-id", "1")
    })
    .await;
    for status in ["200", "202", "302", "303", "400", "402", "404", "409", "410", "422"] {
        let first = gateway.send(charge(status, ORDER)).await;
        assert_eq!((first.status.as_str(), first.text()), (status, "as it is"));
        assert_eq!(first.header("x-request-id"), Some("1"));
        let second = gateway.send(charge(status, ORDER)).await;
        second.assert_replay_of(&first);
        assert_eq!(second.header("x-request-id"), None);
        assert_eq!(upstream.requests_with_key(status).len(), 1);
    }
    gateway.assert_clean_shutdown().await;
}

/// A client that follows a 307 sends the same key to another path.
#[tokio::test]
async fn statuses_on_the_forget_list_free_the_key_for_any_request() {
    let (upstream, gateway) =
        first_run("hold", |request| Reply::new(request.key().parse().unwrap(), "elsewhere")).await;
    for status in ["307", "308", "421"] {
        let first = gateway.send(charge(status, ORDER)).await;
        assert_eq!((first.status.as_str(), first.text()), (status, "elsewhere"));
        let mut followed = charge(status, ORDER);
        *followed.uri_mut() = "/elsewhere".parse().unwrap();
        let second = gateway.send(followed).await;
        assert_eq!((second.status.as_u16(), second.is_replayed()), (201, false));
        let runs = upstream.requests_with_key(status);
        assert_eq!((runs[0].attempt(), runs[1].attempt()), (1, 1));
        assert!(runs[0].fence() < runs[1].fence());
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn the_statuses_to_keep_and_to_release_are_settings_of_the_route() {
    let upstream = Upstream::start(|request| {
        let status = request.path.trim_start_matches("/all/").trim_start_matches("/list/");
        Reply::new(status.parse().unwrap(), format!("run {}", request.number))
    })
    .await;
    let gateway = Setup::new(&upstream.url())
        .tables(
            "[[route]]\nmatch = \"/all/*\"\nscope = \"all\"\nkeep = \"all\"\nrelease = []\n\
             [[route]]\nmatch = \"/list/*\"\nscope = \"list\"\nkeep = [201]\nrelease = [503]",
        )
        .start()
        .await;
    let send = async |path: &str| {
        let mut request = charge(path, ORDER);
        *request.uri_mut() = path.parse().unwrap();
        gateway.send(request).await
    };
    for path in ["/all/500", "/all/429", "/all/503", "/all/502", "/list/201"] {
        let first = send(path).await;
        send(path).await.assert_replay_of(&first);
        assert_eq!(upstream.requests_with_key(path).len(), 1, "{path}");
    }
    // Off the release list, a 500 no longer proves that nothing happened; nor does a 200 that is
    // not kept.
    for path in ["/list/500", "/list/200"] {
        assert_eq!(send(path).await.text(), format!("run {}", upstream.request_count()));
        send(path).await.assert_problem(423, "outcome-unknown");
        assert_eq!(upstream.requests_with_key(path).len(), 1, "{path}");
    }
    for path in ["/list/503", "/list/404"] {
        assert!(!send(path).await.is_replayed());
        assert!(!send(path).await.is_replayed());
        assert_eq!(upstream.requests_with_key(path).len(), 2, "{path}");
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn the_upstream_may_say_itself_what_its_answer_means() {
    under_each(async |on_unknown| {
        let (upstream, gateway) = first_run(on_unknown, |request| {
            let status = if request.key() == "unknown" { 200 } else { 500 };
            Reply::new(status, "log").header("idempotency-outcome", request.key())
        })
        .await;
        let send = async |key| {
            let answer = gateway.send(charge(key, ORDER)).await;
            assert_eq!(answer.header("idempotency-outcome"), None, "it never goes out");
            answer
        };
        let first = send("completed").await;
        assert_eq!((first.status.as_u16(), first.text()), (500, "log"));
        send("completed").await.assert_replay_of(&first);
        assert_eq!(upstream.requests_with_key("completed").len(), 1);

        for (key, attempt) in [("retry", 2), ("forget", 1)] {
            let first = send(key).await;
            assert_eq!((first.status.as_u16(), first.text()), (500, "log"));
            assert_eq!(send(key).await.status.as_u16(), 201);
            assert_eq!(upstream.requests_with_key(key)[1].attempt(), attempt);
        }

        let first = send("unknown").await;
        if on_unknown == "fail" {
            first.assert_problem(500, "operation-failed");
        } else {
            assert_eq!((first.status.as_u16(), first.text()), (200, "log"));
        }
        is_unknown(&upstream, &gateway, "unknown", on_unknown).await;
        gateway.assert_clean_shutdown().await;
    })
    .await;
}

/// The client got an answer that says it happened.
#[tokio::test]
async fn a_success_that_the_upstream_takes_back_is_unknown_and_logged() {
    let (upstream, gateway) = first_run("hold", |request| {
        Reply::new(201, "log").header("idempotency-outcome", request.key())
    })
    .await;
    for key in ["retry", "forget"] {
        assert_eq!(gateway.send(charge(key, ORDER)).await.text(), "log");
        is_unknown(&upstream, &gateway, key, "hold").await;
    }
    gateway.wait_for_log("Idempotency-Outcome that says nothing happened").await;
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_held_record_says_why() {
    let (_upstream, gateway) = first_run("hold", |request| match request.key() {
        "answered" => Reply::new(503, ""),
        "closed" => Reply::closed(),
        "cut" => Reply::new(201, vec![b'x'; 5000]).chunked().cut_after(1000),
        _ => Reply::silent(),
    })
    .await;
    for (key, reason) in [
        ("answered", Reason::Answered(503)),
        ("closed", Reason::ConnectionLost(0)),
        ("cut", Reason::ConnectionLost(1000)),
        ("silent", Reason::TimedOut(2000)),
    ] {
        gateway.send(charge(key, ORDER)).await;
        let records = gateway.records().await;
        let held = records.iter().find(|record| record.id.key.as_str() == key).unwrap();
        assert_eq!((held.state, &held.reason), (StateName::Held, &Some(reason)), "{key}");
        assert_eq!(held.about.as_str(), "POST shop.example/charges");
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_refused_connection_frees_the_key_and_counts_as_no_attempt() {
    under_each(async |on_unknown| {
        let nowhere = Upstream::plain().await.stop().await;
        let setup = Setup::new(&format!("http://{nowhere}"));
        let setup = setup.defaults(format!("on_unknown = \"{on_unknown}\""));
        let gateway = setup.start().await;
        for _ in 0..3 {
            let answer = gateway.send(charge("k", ORDER)).await;
            answer.assert_problem(502, "upstream-unreachable");
            assert_eq!(gateway.state("k").await, Some(StateName::Released));
        }
        let upstream = Upstream::at(nowhere, Reply::created).await;
        let answer = gateway.send(charge("k", ORDER)).await;
        assert_eq!((answer.status.as_u16(), answer.is_replayed()), (201, false));
        gateway.send(charge("k", ORDER)).await.assert_replay_of(&answer);
        let runs = upstream.requests_with_key("k");
        assert_eq!((runs.len(), runs[0].attempt()), (1, 1));
        gateway.assert_clean_shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_never_reached() {
    let gateway = Setup::new("http://nowhere.invalid:80").start().await;
    gateway.send(charge("k", ORDER)).await.assert_problem(502, "upstream-unreachable");
    assert_eq!(gateway.state("k").await, Some(StateName::Released));
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn joiners_of_an_unreached_upstream_get_the_same_answer() {
    // It takes the first words of a TLS handshake and never answers them.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (begun, refuse) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begin, refused) = (Arc::clone(&begun), Arc::clone(&refuse));
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        begin.add_permits(1);
        refused.acquire().await.unwrap().forget();
    });
    let setup = Setup::new("").gateway(format!(
        "upstream = {{ url = \"https://{address}\", connect_timeout = \"50s\" }}"
    ));
    let gateway = setup.start().await;
    let request = || tokio::spawn(send(gateway.address(), charge("k", ORDER)));
    let first = request();
    begun.acquire().await.unwrap().forget();
    let joiners: Vec<_> = (0..5).map(|_| request()).collect();
    crate::operators::reaches(&gateway, "semel_waiting", 5).await;
    refuse.add_permits(1);
    for answer in joiners.into_iter().chain([first]) {
        answer.await.unwrap().assert_problem(502, "upstream-unreachable");
    }
    server.await.unwrap();
    assert_eq!(gateway.state("k").await, Some(StateName::Released));
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_connection_that_is_closed_at_once_is_either_unreached_or_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let slammer = tokio::spawn(async move {
        loop {
            drop(listener.accept().await.unwrap());
        }
    });
    let gateway = Gateway::in_front_of(&format!("http://{address}")).await;
    let mut answers: Vec<(&str, TestResponse)> = Vec::new();
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        answers.push((key, gateway.send(charge(key, ORDER)).await));
    }
    slammer.abort();
    let _ = slammer.await;
    let upstream = Upstream::at(address, Reply::created).await;
    for (key, first) in answers {
        let second = gateway.send(charge(key, ORDER)).await;
        match first.slug().as_str() {
            "upstream-unreachable" => assert_eq!(upstream.requests_with_key(key)[0].attempt(), 1),
            "upstream-timeout" => second.assert_problem(423, "outcome-unknown"),
            other => panic!("{other}"),
        }
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_answer_too_large_goes_out_whole_and_is_not_retained() {
    let upstream = Upstream::start(|_| Reply::new(201, vec![b'x'; 300_000])).await;
    let gateway = Setup::new(&upstream.url()).defaults("response_max = \"10KiB\"").start().await;
    let first = gateway.send(charge("k", ORDER)).await;
    assert_eq!((first.status.as_u16(), first.body.len()), (201, 300_000));
    for _ in 0..2 {
        gateway.send(charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
    }
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

/// An upstream that is killed while it writes such an answer leaves one that looks whole.
#[tokio::test]
async fn an_answer_that_ends_with_its_connection_is_replayed_only_if_it_said_so() {
    for (head, replayed) in [
        ("HTTP/1.1 201 Created", false),
        ("HTTP/1.1 201 Created\r\nConnection: close", true),
        ("HTTP/1.0 201 Created", true),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            while stream.read_u8().await.unwrap() != b'}' {}
            stream.write_all(format!("{head}\r\n\r\nhalf").as_bytes()).await.unwrap();
        });
        let gateway = Gateway::in_front_of(&format!("http://{address}")).await;
        let first = gateway.send(charge("k", "{}")).await;
        assert_eq!((first.status.as_u16(), first.text()), (201, "half"), "{head}");
        server.await.unwrap();
        let second = gateway.send(charge("k", "{}")).await;
        if replayed {
            second.assert_replay_of(&first);
        } else {
            second.assert_problem(410, "response-not-retained");
        }
        gateway.assert_clean_shutdown().await;
    }
}

#[tokio::test]
async fn joiners_of_a_broken_execution_get_the_same_answer() {
    let gate = crate::common::Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |_| Reply::closed().blocked_on(&gate)
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let request = || tokio::spawn(send(gateway.address(), charge("k", ORDER)));
    let first = request();
    wait_until(|| upstream.request_count() == 1).await;
    let joiners: Vec<_> = (0..5).map(|_| request()).collect();
    crate::operators::reaches(&gateway, "semel_waiting", 5).await;
    gate.open();
    for answer in joiners.into_iter().chain([first]) {
        answer.await.unwrap().assert_problem(504, "upstream-timeout");
    }
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_wire_that_is_reset_while_the_request_is_sent_is_an_unknown_outcome() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // It reads the beginning of a request and resets the connection.
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 20]).await.unwrap();
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let gateway = Gateway::in_front_of(&format!("http://{address}")).await;
    let large = format!("\"{}\"", "x".repeat(900_000));
    gateway.send(charge("k", &large)).await.assert_problem(504, "upstream-timeout");
    server.await.unwrap();
    let upstream = Upstream::at(address, Reply::created).await;
    gateway.send(charge("k", &large)).await.assert_problem(423, "outcome-unknown");
    assert_eq!(upstream.request_count(), 0);
    gateway.assert_clean_shutdown().await;
}
