//! HTTP/2 in and out: the same answers as over HTTP/1.1, and many requests at once.

use std::{sync::Arc, time::Duration};

use http::{Method, Request, Response, Version};
use hyper_util::{rt::TokioExecutor, server::conn::auto::Builder};
use tokio::{
    sync::{Barrier, Semaphore},
    task::JoinSet,
};

use crate::{
    client::{Client, guarded},
    common::{Gateway, Setup, TestResponse, Upstream, empty, text},
    raw::{Raw, RawUpstream},
    soon, wait_until,
};

#[tokio::test]
async fn each_side_speaks_its_own_version() {
    let upstream = Upstream::serving(|request| {
        let heard = format!("{:?} {}", request.version(), request.uri().path());
        async { Response::new(text(heard)) }
    })
    .await;
    for (setup, heard) in [
        (Setup::at(upstream.address()), "HTTP/1.1 /a"),
        (Setup::at_http2(upstream.address()), "HTTP/2.0 /a"),
    ] {
        let gateway = setup.start().await;
        let over_http1 = Client::http1(gateway.address()).await.get("/a").await;
        let over_http2 = Client::http2(gateway.address()).await.get("/a").await;
        assert_eq!((over_http1.version, over_http1.text()), (Version::HTTP_11, heard));
        assert_eq!((over_http2.version, over_http2.text()), (Version::HTTP_2, heard));
    }
    assert_eq!(upstream.request_count(), 4);
}

#[tokio::test]
async fn a_repeat_gets_the_first_answer_whatever_version_it_comes_by() {
    for http2_upstream in [false, true] {
        let upstream = Upstream::counting().await;
        let gateway = if http2_upstream {
            Setup::at_http2(upstream.address()).start().await
        } else {
            Gateway::at(upstream.address()).await
        };
        let mut http1 = Client::http1(gateway.address()).await;
        let mut http2 = Client::http2(gateway.address()).await;
        let first = http2.post("/charges", "k", "{}").await;
        assert_eq!((first.status.as_u16(), first.text()), (200, "run 1"));
        assert!(!first.is_replayed());
        for client in [&mut http2, &mut http1] {
            let again = client.post("/charges", "k", "{}").await;
            assert!(again.is_replayed());
            assert_eq!(again.body, first.body);
        }
        let reused = http2.post("/charges", "k", "{\"cents\":1}").await;
        assert_eq!(reused.outcome(), (422, Some("key-reused")));
        // `:authority` and `Host` are the same host, and another one is another request.
        let mut elsewhere = guarded("/charges", "k", text("{}"));
        elsewhere.headers_mut().insert("host", "other.example".parse().unwrap());
        assert_eq!(http1.ask(elsewhere).await.outcome(), (422, Some("key-reused")));
        assert_eq!(upstream.request_count(), 1);
    }
}

#[tokio::test]
async fn a_hundred_streams_of_one_connection_run_at_the_same_time() {
    const STREAMS: usize = 100;
    for http2_upstream in [false, true] {
        // No request is answered before all have arrived.
        let all = Arc::new(Barrier::new(STREAMS));
        let upstream = Upstream::serving(move |request| {
            let all = Arc::clone(&all);
            let path = request.uri().path().to_owned();
            async move {
                all.wait().await;
                Response::new(text(path))
            }
        })
        .await;
        let gateway = if http2_upstream {
            Setup::at_http2(upstream.address()).start().await
        } else {
            Gateway::at(upstream.address()).await
        };
        let connection = Client::http2(gateway.address()).await;
        let mut tasks = JoinSet::new();
        for index in 0..STREAMS {
            let mut client = connection.another();
            tasks.spawn(async move {
                let path = format!("/charges/{index}");
                let answer = client.post(&path, &format!("k{index}"), "{}").await;
                assert_eq!((answer.status.as_u16(), answer.text()), (200, &*path));
            });
        }
        soon(tasks.join_all()).await;
        assert_eq!(upstream.request_count(), STREAMS);
        if http2_upstream {
            assert_eq!(upstream.connections(), 1, "one connection carries them all");
        }
    }
}

#[tokio::test]
async fn fifty_streams_with_one_key_are_one_execution() {
    let gate = Arc::new(Semaphore::new(0));
    let upstream = Upstream::serving({
        let gate = Arc::clone(&gate);
        move |_| {
            let gate = Arc::clone(&gate);
            async move {
                let _ = gate.acquire().await;
                Response::new(text("charged"))
            }
        }
    })
    .await;
    let gateway = Setup::at_http2(upstream.address()).start().await;
    let connection = Client::http2(gateway.address()).await;
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let mut client = connection.another();
        tasks.spawn(async move { client.post("/charges", "k", "{}").await });
    }
    wait_until(|| upstream.request_count() == 1).await;
    gate.add_permits(1);
    for answer in soon(tasks.join_all()).await {
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "charged"));
    }
    assert_eq!(upstream.request_count(), 1);
}

#[tokio::test]
async fn an_upstream_that_takes_few_streams_is_not_asked_for_more() {
    const STREAMS_MAX: u32 = 4;
    let mut builder = Builder::new(TokioExecutor::new());
    // What is beyond on a connection, it refuses.
    builder.http2().max_concurrent_streams(STREAMS_MAX);
    let upstream = Upstream::serving_with(builder, None, |_| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Response::new(empty())
    })
    .await;
    let gateway = Setup::at_http2(upstream.address()).start().await;
    let connection = Client::http2(gateway.address()).await;
    let mut tasks = JoinSet::new();
    for index in 0..60 {
        let mut client = connection.another();
        tasks.spawn(async move {
            let answer = client.post("/charges", &format!("k{index}"), "{}").await;
            assert_eq!(answer.outcome(), (200, None));
        });
    }
    soon(tasks.join_all()).await;
    assert_eq!(upstream.request_count(), 60);
}

#[tokio::test]
async fn an_upstream_that_does_not_speak_http2_was_not_reached() {
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        raw.read_to("\r\n\r\n").await;
        raw.write("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
    })
    .await;
    let gateway = Setup::at_http2(upstream.address()).start().await;
    let mut client = Client::http1(gateway.address()).await;
    for _ in 0..2 {
        let answer = client.post("/charges", "k", "{}").await;
        assert_eq!(answer.outcome(), (502, Some("upstream-unreachable")));
    }
}

#[tokio::test]
async fn a_stream_that_its_client_resets_runs_to_its_end() {
    let gate = Arc::new(Semaphore::new(0));
    let upstream = Upstream::serving({
        let gate = Arc::clone(&gate);
        move |_| {
            let gate = Arc::clone(&gate);
            async move {
                let _ = gate.acquire().await;
                Response::new(text("charged"))
            }
        }
    })
    .await;
    let gateway = Setup::at_http2(upstream.address()).start().await;
    let connection = Client::http2(gateway.address()).await;
    let first = tokio::spawn({
        let mut client = connection.another();
        async move { client.post("/charges", "k", "{}").await }
    });
    wait_until(|| upstream.request_count() == 1).await;
    first.abort();
    // A dropped future is a reset of its stream; the connection goes on.
    assert!(first.await.unwrap_err().is_cancelled());
    gate.add_permits(1);
    let again = connection.another().post("/charges", "k", "{}").await;
    assert_eq!((again.status.as_u16(), again.text()), (200, "charged"));
    assert_eq!(upstream.request_count(), 1);
}

#[tokio::test]
async fn cookies_that_come_in_pieces_are_one_line_for_http1() {
    let upstream = Upstream::serving(|request| {
        let lines: Vec<_> = request.headers().get_all("cookie").iter().collect();
        let heard = format!("{lines:?}");
        async { Response::new(text(heard)) }
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let request = Request::get("/").header("cookie", "a=1").header("cookie", "b=2");
    let mut client = Client::http2(gateway.address()).await;
    let answer = client.ask(request.body(empty()).unwrap()).await;
    assert_eq!(answer.text(), r#"["a=1; b=2"]"#);
}

#[tokio::test]
async fn a_head_request_and_empty_answers_have_no_body_over_http2() {
    let upstream = Upstream::serving(|request| async move {
        let status = request.uri().path().trim_start_matches('/').parse().unwrap_or(200);
        let mut response = Response::builder().status(status).header("etag", "\"1\"");
        if request.method() == Method::HEAD {
            response = response.header("content-length", "4");
        }
        response.body(empty()).unwrap()
    })
    .await;
    for setup in [Setup::at(upstream.address()), Setup::at_http2(upstream.address())] {
        let gateway = setup.start().await;
        let mut client = Client::http2(gateway.address()).await;
        let head = client.ask(Request::head("/").body(empty()).unwrap()).await;
        assert_eq!((head.status.as_u16(), head.header("content-length")), (200, Some("4")));
        assert!(head.body.is_empty());
        for status in [204, 304] {
            let answer: TestResponse = client.get(&format!("/{status}")).await;
            assert_eq!((answer.status.as_u16(), answer.header("etag")), (status, Some("\"1\"")));
            assert!(answer.body.is_empty());
        }
        let post = client.ask(guarded("/204", "k", empty())).await;
        let again = client.ask(guarded("/204", "k", empty())).await;
        assert_eq!((post.status.as_u16(), again.status.as_u16()), (204, 204));
        assert!(again.is_replayed() && again.body.is_empty());
    }
    assert_eq!(upstream.request_count(), 8);
}
