//! Where two programs in a row could be of two opinions: where a message ends, whose it is, and
//! whether it was sent.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Request};
use tokio::time::sleep;

use crate::{
    client::Client,
    common::{Gateway, Setup, Upstream, empty},
    raw::{Raw, RawUpstream},
};

#[tokio::test]
async fn an_answer_of_two_lengths_has_one_end_now_and_when_it_is_replayed() {
    const BOTH: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n\
                        1a\r\nhelloHTTP/1.1 666 Evil\r\n\r\n\r\n0\r\n\r\n";
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        while raw.try_read_to("{}").await.is_some() {
            raw.write(BOTH).await;
        }
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    for key in ["Idempotency-Key: k\r\n", "Idempotency-Key: k\r\n", ""] {
        let mut raw = Raw::connect(gateway.address()).await;
        let head = format!("POST /a HTTP/1.1\r\nHost: a\r\n{key}Content-Length: 2\r\n\r\n{{}}");
        raw.write(&head).await;
        let head = raw.read_head().await;
        assert!(!head.contains("content-length: 5\r\n"), "{head}");
        let whole = match head.contains("content-length: 26") {
            true => raw.read(26).await,
            false => raw.read_to("\r\n0\r\n\r\n").await,
        };
        assert!(whole.contains("helloHTTP/1.1 666 Evil"), "{whole}");
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_is_passed_on_whatever_its_method() {
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        let head = raw.read_head().await;
        assert!(head.contains("transfer-encoding: chunked"), "{head}");
        raw.read_to("5\r\nhello\r\n0\r\n\r\n").await;
        raw.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        raw.try_read_to("never").await;
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut raw = Raw::connect(gateway.address()).await;
    raw.write("GET /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    raw.write("5\r\nhello\r\n0\r\n\r\n").await;
    assert!(raw.read_head().await.starts_with("http/1.1 200"));
    assert_eq!(raw.read(2).await, "ok");
}

#[tokio::test]
async fn an_unsolicited_upstream_response_answers_no_request() {
    const STRAY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray";
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        while raw.try_read_to("{}").await.is_some() {
            raw.write("HTTP/1.1 204 No Content\r\n\r\n").await;
            sleep(Duration::from_micros(300)).await;
            raw.write(STRAY).await;
        }
    })
    .await;
    let gateway = Setup::at(upstream.address()).gateway("threads = 1").start().await;
    let mut client = Client::http1(gateway.address()).await;
    for number in 0..50 {
        // It has arrived by then, though perhaps unread.
        sleep(Duration::from_millis(3)).await;
        let answer = client.post("/a", &format!("k{number}"), "{}").await;
        assert_eq!((answer.status.as_u16(), answer.text()), (204, ""), "{number}");
    }
}

#[tokio::test]
async fn an_upstream_by_http2_that_never_answers_is_given_up() {
    let upstream = Upstream::serving(|_| std::future::pending()).await;
    let gateway = Setup::upstream(format_args!(
        "{{ url = \"http://{}\", protocol = \"http2\", timeout = \"1s\" }}",
        upstream.address()
    ))
    .start()
    .await;
    let mut client = Client::http1(gateway.address()).await;
    for request in [Request::get("/a"), Request::post("/a").header("idempotency-key", "k")] {
        let answer = client.ask(request.body(empty()).unwrap()).await;
        assert_eq!(answer.outcome(), (504, Some("upstream-timeout")));
    }
}

#[tokio::test]
async fn fields_are_counted_in_every_version() {
    let upstream = Upstream::counting().await;
    let gateway = Gateway::at(upstream.address()).await;
    for http2 in [false, true] {
        let mut client = Client::connect(gateway.address(), http2).await;
        let mut request = Request::get("/").body(empty()).unwrap();
        for number in 0..120 {
            let name = HeaderName::try_from(format!("x-field-{number}")).unwrap();
            request.headers_mut().insert(name, HeaderValue::from_static("a"));
        }
        assert_eq!(client.ask(request).await.status, 431, "HTTP/2: {http2}");
    }
    assert_eq!(upstream.request_count(), 0);
}
