//! The corners of HTTP/1: old versions on either side, forms of the target, answers without a body.

use tokio::sync::mpsc;

use crate::{
    client::Client,
    common::{Gateway, Setup},
    raw::{Raw, RawUpstream},
    soon,
};

/// An upstream that answers each head with these bytes and closes.
async fn once_each(answer: &'static str) -> (RawUpstream, mpsc::UnboundedReceiver<String>) {
    let (sender, heads) = mpsc::unbounded_channel();
    let upstream = RawUpstream::start(move |mut raw: Raw, _| {
        let sender = sender.clone();
        async move {
            if let Some(head) = raw.try_read_to("\r\n\r\n").await {
                let _ = sender.send(head);
                raw.write(answer).await;
            }
        }
    })
    .await;
    (upstream, heads)
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
    5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";

#[tokio::test]
async fn a_client_of_http_1_0_gets_a_body_without_chunks_and_the_end() {
    let (upstream, mut heads) = once_each(CHUNKED).await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Raw::connect(gateway.address()).await;
    client.write("GET /old HTTP/1.0\r\n\r\n").await;
    let answer = client.read_all().await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
    assert_eq!(body, "hello world");
    let heard = soon(heads.recv()).await.unwrap();
    assert!(heard.starts_with("GET /old HTTP/1.1\r\n"), "{heard}");
    let host = format!("host: {}\r\n", upstream.address());
    assert!(heard.to_lowercase().contains(&host), "{heard}");
}

#[tokio::test]
async fn a_client_of_http_1_0_may_keep_its_connection() {
    let (upstream, _heads) = once_each("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Raw::connect(gateway.address()).await;
    for _ in 0..2 {
        client.write("GET / HTTP/1.0\r\nHost: a.example\r\nConnection: keep-alive\r\n\r\n").await;
        client.read_head().await;
        assert_eq!(client.read(2).await, "ok");
    }
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn an_upstream_of_http_1_0_serves_clients_of_today() {
    let (upstream, _heads) = once_each("HTTP/1.0 200 OK\r\nX-Old: 1\r\n\r\nuntil the end").await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Raw::connect(gateway.address()).await;
    // Twice on one connection: what ends the upstream's connection does not end the client's.
    for _ in 0..2 {
        client.write("GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n").await;
        let head = client.read_head().await;
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(head.contains("transfer-encoding: chunked"), "{head}");
        assert!(client.read_to("0\r\n\r\n").await.contains("until the end"));
    }
    let mut client = Client::http1(gateway.address()).await;
    let first = client.post("/charges", "k", "{}").await;
    let again = client.post("/charges", "k", "{}").await;
    assert_eq!((first.text(), again.text()), ("until the end", "until the end"));
    assert!(again.is_replayed());
    assert_eq!(upstream.connections(), 3);
}

#[tokio::test]
async fn an_absolute_target_names_the_host() {
    let (upstream, mut heads) = once_each(CHUNKED).await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Raw::connect(gateway.address()).await;
    let request = "GET http://other.example/x?y HTTP/1.1\r\nHost: shop.example\r\n\r\n";
    client.write(request).await;
    client.read_to("0\r\n\r\n").await;
    let heard = soon(heads.recv()).await.unwrap().to_lowercase();
    assert!(heard.starts_with("get /x?y http/1.1\r\n"), "{heard}");
    assert!(heard.contains("\r\nhost: other.example\r\n"), "{heard}");
    assert!(!heard.contains("shop.example"), "{heard}");
}

#[tokio::test]
async fn an_absolute_target_and_a_path_are_the_same_request() {
    let (upstream, _heads) = once_each("HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok").await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Raw::connect(gateway.address()).await;
    for target in ["/charges", "http://shop.example/charges"] {
        client
            .write(format!(
                "POST {target} HTTP/1.1\r\nHost: shop.example\r\nIdempotency-Key: k\r\n\
                 Content-Length: 0\r\n\r\n"
            ))
            .await;
        let head = client.read_head().await;
        assert!(head.starts_with("http/1.1 201"), "{target}: {head}");
        assert_eq!(client.read(2).await, "ok");
    }
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn a_question_about_the_server_as_a_whole_passes() {
    let (upstream, mut heads) = once_each("HTTP/1.1 204 No Content\r\nAllow: GET\r\n\r\n").await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Raw::connect(gateway.address()).await;
    client.write("OPTIONS * HTTP/1.1\r\nHost: shop.example\r\n\r\n").await;
    assert!(client.read_head().await.contains("allow: get"));
    assert!(soon(heads.recv()).await.unwrap().starts_with("OPTIONS * HTTP/1.1\r\n"));
}

#[tokio::test]
async fn answers_without_a_body_leave_the_connection_in_step() {
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        while let Some(head) = raw.try_read_to("\r\n\r\n").await {
            let path = head.split(' ').nth(1).unwrap();
            raw.write(match path {
                "/204" => "HTTP/1.1 204 No Content\r\n\r\n",
                "/304" => "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: \"1\"\r\n\r\n",
                "/head" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                _ => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            })
            .await;
        }
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Raw::connect(gateway.address()).await;
    for (request, status, length) in [
        ("GET /204", "204", None),
        ("GET /304", "304", None),
        ("HEAD /head", "200", Some("content-length: 5")),
    ] {
        client.write(format!("{request} HTTP/1.1\r\nHost: shop.example\r\n\r\n")).await;
        let head = client.read_head().await;
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{head}");
        assert!(!head.contains("transfer-encoding"), "{head}");
        let found = head.lines().find(|line| line.starts_with("content-length"));
        assert_eq!(found, length, "{request}");
        // Whatever comes next is the next answer.
        client.write("GET /hello HTTP/1.1\r\nHost: shop.example\r\n\r\n").await;
        assert!(client.read_head().await.starts_with("http/1.1 200"));
        assert_eq!(client.read(5).await, "hello");
    }
    assert_eq!(upstream.connections(), 1, "the upstream's connection is in step too");
}

#[tokio::test]
async fn requests_that_are_sent_ahead_are_answered_in_order() {
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        while let Some(head) = raw.try_read_to("\r\n\r\n").await {
            let path = head.split(' ').nth(1).unwrap();
            raw.write(format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{path}")).await;
        }
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Raw::connect(gateway.address()).await;
    let ahead: String = (0..9)
        .map(|index| format!("GET /{index} HTTP/1.1\r\nHost: shop.example\r\n\r\n"))
        .collect();
    client.write(ahead).await;
    for index in 0..9 {
        client.read_head().await;
        assert_eq!(client.read(2).await, format!("/{index}"));
    }
}

#[tokio::test]
async fn an_informational_response_is_not_the_answer() {
    let (upstream, _heads) = once_each(
        "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    )
    .await;
    let gateway = Setup::at(upstream.address()).start().await;
    let mut client = Client::http1(gateway.address()).await;
    assert_eq!(client.get("/").await.text(), "hello");
    let first = client.post("/charges", "k", "").await;
    assert_eq!((first.status.as_u16(), first.text()), (200, "hello"));
    assert_eq!(client.post("/charges", "k", "").await.text(), "hello");
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn the_last_answer_on_a_connection_is_whole_though_its_client_has_sent_more() {
    const LARGE: usize = 4 << 20;
    let upstream = RawUpstream::start(|mut raw: Raw, _| async move {
        while raw.try_read_to("\r\n\r\n").await.is_some() {
            raw.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n")).await;
            raw.write("x".repeat(LARGE)).await;
        }
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let mut client = Raw::connect(gateway.address()).await;
    let request = "GET /x HTTP/1.1\r\nHost: shop.example\r\n";
    client.write(format!("{request}Connection: close\r\n\r\n")).await;
    assert!(client.read_head().await.contains("connection: close"));
    // To a connection that is closed already, this would be the end of what is on its way.
    client.write(format!("{request}\r\n")).await;
    // Real time must pass: a reset of the connection would have arrived by then.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(client.read_bytes(LARGE).await.len(), LARGE);
}
