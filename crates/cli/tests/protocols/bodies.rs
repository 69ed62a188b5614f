//! Bodies that are waited for, come in chunks, end in trailers, or are not wanted any more.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;

use crate::{
    client::{Client, guarded},
    common::{Gateway, Setup, TestResponse, Upstream, empty, text, written},
    raw::{Raw, RawUpstream},
    soon, wait_until,
};

/// Sends back what it gets, and says whether it was asked to hurry.
async fn echo() -> Upstream {
    Upstream::serving(|request| async move {
        let expected = request.headers().contains_key("expect");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let response = Response::builder().header("x-expected", expected.to_string());
        response.body(text(body)).unwrap()
    })
    .await
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_gets_it() {
    let upstream = echo().await;
    let gateway = Gateway::at(upstream.address()).await;
    // The last is guarded.
    for (method, more) in [("PUT", ""), ("POST", ""), ("POST", "Idempotency-Key: k\r\n")] {
        let mut client = Raw::connect(gateway.address()).await;
        let head = format!(
            "{method} /x HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\n{more}\
             Expect: 100-continue\r\n\r\n"
        );
        client.write(head).await;
        assert_eq!(client.read_head().await, "http/1.1 100 continue\r\n\r\n");
        client.write("hello").await;
        let answer = client.read_head().await;
        assert!(answer.starts_with("http/1.1 200") && answer.contains("x-expected: false"));
        assert_eq!(client.read(5).await, "hello");
    }
    assert_eq!(upstream.request_count(), 3);
}

#[tokio::test]
async fn a_client_that_waits_for_100_is_refused_before_its_body() {
    let upstream = echo().await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Raw::connect(gateway.address()).await;
    client
        .write(
            "POST /x HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\n\
             Idempotency-Key: a b\r\nExpect: 100-continue\r\n\r\n",
        )
        .await;
    let answer = client.read_head().await;
    assert!(answer.starts_with("http/1.1 400"), "{answer}");
    assert!(answer.contains("idempotency-problem: key-malformed"), "{answer}");
    assert_eq!(upstream.request_count(), 0);
}

/// An upstream that answers with the body it was sent, framing and trailers included.
async fn echoing() -> RawUpstream {
    RawUpstream::start(|mut raw: Raw, _| async move {
        while raw.try_read_to("\r\n\r\n").await.is_some() {
            let body = raw.read_to("\r\n\r\n").await;
            raw.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
                .await;
        }
    })
    .await
}

#[tokio::test]
async fn trailers_of_a_chunked_request_end_at_the_gateway() {
    const IDENTITY: [&str; 7] = [
        "X-Merchant-Id",
        "Cookie",
        "Proxy-Authorization",
        "X-Forwarded-User",
        "X-HTTP-Method-Override",
        "Idempotency-Fence",
        "X-Sum",
    ];
    let upstream = echoing().await;
    let gateway = Setup::at(upstream.address()).gateway("trust_forwarded = true").start().await;
    let mut client = Raw::connect(gateway.address()).await;
    let fields = IDENTITY.map(|name| format!("{name}: VICTIM\r\n")).concat();
    // Over HTTP/1.1 nothing is gRPC, whatever it says.
    for more in ["Trailer: X-Sum\r\n", "", "Content-Type: application/grpc\r\n"] {
        client
            .write(format!(
                "POST /x HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\
                 {more}\r\n5;ext=1\r\nhello\r\n0\r\n{fields}\r\n"
            ))
            .await;
        let head = client.read_head().await;
        assert!(head.starts_with("http/1.1 200"), "{head}");
        let heard = client.read_to("\r\n\r\n").await.to_lowercase();
        assert_eq!(heard, "5\r\nhello\r\n0\r\n\r\n", "{more:?}");
    }
    assert_eq!(upstream.connections(), 1);
}

const WITH_TRAILERS: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\
    Trailer: X-Sum\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 9\r\n\r\n";

#[tokio::test]
async fn a_chunked_answer_arrives_with_its_trailers_and_is_replayed_with_them() {
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        while let Some(head) = raw.try_read_to("\r\n\r\n").await {
            // Servers send trailers to whom takes them.
            assert!(head.to_lowercase().contains("\r\nte: trailers\r\n"), "{head}");
            raw.write(WITH_TRAILERS).await;
        }
    })
    .await;
    let gateway = Setup::at(upstream.address()).gateway("threads = 1").start().await;
    let request = |key: Option<&str>| {
        let mut request = Request::post("/x").header("te", "trailers");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        request.body(empty()).unwrap()
    };
    for http2 in [false, true] {
        let key = format!("k{http2}");
        let mut client = Client::connect(gateway.address(), http2).await;
        let passed = client.ask(request(None)).await;
        let first = client.ask(request(Some(&key))).await;
        let again = client.ask(request(Some(&key))).await;
        assert!(again.is_replayed());
        for answer in [passed, first, again] {
            assert_eq!(answer.text(), "hello");
            let trailers = answer.trailers.expect("there are trailers");
            assert_eq!(trailers["x-sum"], "9");
        }
    }
    assert_eq!(upstream.connections(), 1);
}

/// The fields that an upstream heard after the body, as the text of its answer.
async fn telling_trailers() -> Upstream {
    Upstream::serving(|request| async move {
        let announced = request.headers().contains_key("trailer");
        let collected = request.into_body().collect().await.unwrap();
        let names = collected.trailers().map(HeaderMap::keys).into_iter().flatten();
        let names: Vec<_> = names.map(|name| name.as_str().to_owned()).collect();
        let (pen, body) = written();
        pen.write(format!("{announced} {}", names.join(",")));
        pen.trailers(HeaderMap::from_iter([("x-sum".parse().unwrap(), "9".parse().unwrap())]));
        Response::builder().header("trailer", "x-sum").body(body).unwrap()
    })
    .await
}

#[tokio::test]
async fn trailers_of_an_answer_cross_from_one_version_to_the_other_and_those_of_a_request_do_not() {
    let upstream = telling_trailers().await;
    for setup in [Setup::at(upstream.address()), Setup::at_http2(upstream.address())] {
        let gateway = setup.start().await;
        for (http2, key) in [(false, "a"), (false, ""), (true, "b"), (true, "")] {
            let mut client = Client::connect(gateway.address(), http2).await;
            let (pen, body) = written();
            pen.write("hello");
            pen.trailers(HeaderMap::from_iter([("x-user".parse().unwrap(), "v".parse().unwrap())]));
            let mut request =
                Request::post("/x").header("te", "trailers").header("trailer", "x-user");
            if !key.is_empty() {
                request = request.header("idempotency-key", key);
            }
            let answer = client.ask(request.body(body).unwrap()).await;
            assert_eq!(answer.text(), "false ", "{http2} {key:?}");
            assert_eq!(answer.trailers.expect("there are trailers")["x-sum"], "9", "{http2}");
        }
    }
}

#[tokio::test]
async fn trailers_of_a_grpc_request_are_passed_on_by_http_2_but_for_what_a_client_may_not_say() {
    let upstream = telling_trailers().await;
    let gateway = Setup::at_http2(upstream.address()).start().await;
    let mut client = Client::http2(gateway.address()).await;
    let (pen, body) = written();
    pen.write("hello");
    let forged = ["idempotency-fence", "idempotency_fence", "x-forwarded-user", "x_real_ip"];
    let names = forged.into_iter().chain(["x-forwarded-for", "x-sum"]);
    let trailers = names.map(|name| (name.parse().unwrap(), "7".parse().unwrap()));
    pen.trailers(trailers.collect());
    let request = Request::post("/x").header("te", "trailers").header("trailer", "x-sum");
    let request = request.header("content-type", "application/grpc").body(body).unwrap();
    assert_eq!(client.ask(request).await.text(), "true x-sum");
}

#[tokio::test]
async fn an_unguarded_body_is_passed_on_while_it_comes() {
    let heard = Arc::<AtomicUsize>::default();
    let upstream = Upstream::serving({
        let heard = Arc::clone(&heard);
        move |request| {
            let heard = Arc::clone(&heard);
            async move {
                let mut body = request.into_body();
                while let Some(Ok(frame)) = body.frame().await {
                    heard
                        .fetch_add(frame.data_ref().map_or(0, |data| data.len()), Ordering::SeqCst);
                }
                Response::new(empty())
            }
        }
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    for http2 in [false, true] {
        heard.store(0, Ordering::SeqCst);
        let mut client = Client::connect(gateway.address(), http2).await;
        let (pen, body) = written();
        let answer = tokio::spawn(async move {
            client.ask(Request::post("/x").body(body).unwrap()).await.status
        });
        pen.write("one ");
        // Nothing of it is waited for.
        wait_until(|| heard.load(Ordering::SeqCst) == 4).await;
        pen.write("two");
        wait_until(|| heard.load(Ordering::SeqCst) == 7).await;
        drop(pen);
        assert_eq!(soon(answer).await.unwrap(), 200);
    }
}

#[tokio::test]
async fn a_guarded_body_is_read_to_its_end_before_anything_is_sent() {
    let upstream = Upstream::counting().await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Client::http2(gateway.address()).await;
    let (pen, body) = written();
    pen.write("{");
    let answer = tokio::spawn(async move { client.ask(guarded("/x", "k", body)).await });
    // Another request overtakes it, so that it had its time.
    let mut other = Client::http1(gateway.address()).await;
    assert_eq!(other.get("/").await.text(), "run 1");
    assert_eq!(upstream.request_count(), 1);
    pen.write("}");
    drop(pen);
    assert_eq!(soon(answer).await.unwrap().text(), "run 2");
}

#[tokio::test]
async fn an_answer_that_comes_early_reaches_a_client_that_still_uploads() {
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        raw.read_to("\r\n\r\n").await;
        raw.write("HTTP/1.1 413 Too Much\r\nContent-Length: 4\r\nConnection: close\r\n\r\nstop")
            .await;
        // It reads on for as long as bytes come, as careful servers do.
        while raw.try_read_to("the end").await.is_some() {}
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    for http2 in [false, true] {
        let mut client = Client::connect(gateway.address(), http2).await;
        let (pen, body) = written();
        pen.write("begun");
        let response = client.send(Request::put("/x").body(body).unwrap()).await;
        assert_eq!(response.status(), 413);
        assert_eq!(TestResponse::read(response).await.text(), "stop");
        drop(pen);
    }
}

#[tokio::test]
async fn both_directions_may_stream_at_once() {
    let upstream = Upstream::serving(|request| async move {
        Response::new(crate::common::content(request.into_body()))
    })
    .await;
    for setup in [Setup::at(upstream.address()), Setup::at_http2(upstream.address())] {
        let gateway = setup.start().await;
        for http2 in [false, true] {
            let mut client = Client::connect(gateway.address(), http2).await;
            let (pen, body) = written();
            pen.write("ping");
            let mut response = client.send(Request::post("/x").body(body).unwrap()).await;
            for _ in 0..3 {
                let frame = soon(response.frame()).await.unwrap().unwrap();
                assert_eq!(frame.into_data().unwrap(), "ping");
                pen.write("ping");
            }
            drop(pen);
            assert_eq!(TestResponse::read(response).await.text(), "ping");
        }
    }
}

#[tokio::test]
async fn an_upload_that_its_client_cuts_is_cut_at_the_upstream_too() {
    let broken = Arc::<AtomicUsize>::default();
    let upstream = Upstream::serving({
        let broken = Arc::clone(&broken);
        move |request| {
            let broken = Arc::clone(&broken);
            async move {
                if request.into_body().collect().await.is_err() {
                    broken.fetch_add(1, Ordering::SeqCst);
                }
                Response::new(empty())
            }
        }
    })
    .await;
    for setup in [Setup::at(upstream.address()), Setup::at_http2(upstream.address())] {
        broken.store(0, Ordering::SeqCst);
        let gateway = setup.start().await;
        let mut client = Raw::connect(gateway.address()).await;
        let before = upstream.request_count();
        client
            .write("PUT /x HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 9\r\n\r\nhalf")
            .await;
        wait_until(|| upstream.request_count() == before + 1).await;
        drop(client);
        // A half that passed for the whole would be another request.
        wait_until(|| broken.load(Ordering::SeqCst) == 1).await;
    }
}

#[tokio::test]
async fn a_download_that_its_client_cuts_is_cut_at_the_upstream_too() {
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        raw.read_to("\r\n\r\n").await;
        raw.write("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await;
        // Only the end of the connection ends this.
        assert_eq!(raw.try_read_to("never").await, None);
        drop(raw);
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Raw::connect(gateway.address()).await;
    client.write("GET /x HTTP/1.1\r\nHost: shop.example\r\n\r\n").await;
    client.read_to("half").await;
    drop(client);
    // A connection with half an answer in it is of no more use.
    let mut client = Client::http1(gateway.address()).await;
    let response = client.send(Request::get("/x").body(empty()).unwrap()).await;
    assert_eq!(response.status(), 200);
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn an_answer_that_breaks_off_does_not_pass_for_a_whole_one() {
    let upstream = RawUpstream::start(|mut raw: Raw, number| async move {
        raw.read_to("\r\n\r\n").await;
        let framing = if number % 2 == 0 {
            "Content-Length: 9\r\n\r\nhalf"
        } else {
            "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"
        };
        raw.write(format!("HTTP/1.1 200 OK\r\n{framing}")).await;
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    for http2 in [false, true] {
        for _ in 0..2 {
            let mut client = Client::connect(gateway.address(), http2).await;
            let response = client.send(Request::get("/x").body(empty()).unwrap()).await;
            assert!(soon(response.collect()).await.is_err(), "the answer is only half");
        }
    }
    assert_eq!(upstream.connections(), 4);
}
