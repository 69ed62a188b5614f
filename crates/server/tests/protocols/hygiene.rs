//! What a proxy does to heads: fields of one connection end, fields about the way are set, the rest
//! passes as it is.

use std::net::SocketAddr;

use tokio::sync::mpsc;

use crate::{
    gateway::{Gateway, Setup},
    raw::{Raw, RawUpstream},
    soon,
};

/// An upstream that answers every request, none of which has a body, and tells what it heard.
struct Scribe {
    upstream: RawUpstream,
    heads: mpsc::UnboundedReceiver<String>,
}

impl Scribe {
    async fn answering(answer: &'static str) -> Self {
        let (sender, heads) = mpsc::unbounded_channel();
        let upstream = RawUpstream::start(move |mut raw: Raw, _| {
            let sender = sender.clone();
            async move {
                while let Some(head) = raw.try_read_to("\r\n\r\n").await {
                    let _ = sender.send(head.to_lowercase());
                    raw.write(answer).await;
                }
            }
        })
        .await;
        Self { upstream, heads }
    }

    async fn new() -> Self {
        Self::answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await
    }

    fn address(&self) -> SocketAddr {
        self.upstream.address
    }

    async fn head(&mut self) -> String {
        soon(self.heads.recv()).await.unwrap()
    }
}

/// Sends a request without a body and returns the head of its answer.
async fn ask(gateway: &Gateway, request: &str) -> String {
    let mut client = Raw::connect(gateway.address).await;
    client.write(request).await;
    client.read_head().await
}

/// The lines of a head that begin so.
fn lines<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    head.lines().filter(|line| line.starts_with(name)).collect()
}

#[track_caller]
fn has_none(head: &str, names: &[&str]) {
    for name in names {
        let found = lines(head, &format!("{name}:"));
        assert!(found.is_empty(), "{found:?} in {head}");
    }
}

#[tokio::test]
async fn fields_of_one_connection_end_at_the_gateway_in_both_directions() {
    let mut scribe = Scribe::answering(
        "HTTP/1.1 200 OK\r\nConnection: X-Theirs, keep-alive\r\nX-Theirs: 1\r\n\
         Keep-Alive: timeout=9\r\nProxy-Connection: keep-alive\r\nX-Kept: theirs\r\n\
         Connection: X-Late\r\nX-Late: 1\r\nContent-Length: 0\r\n\r\n",
    )
    .await;
    let gateway = Gateway::at(scribe.address());
    let answer = ask(
        &gateway,
        "GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: keep-alive ,\tX-Mine\r\nX-Mine: 1\r\n\
         Connection: x-late\r\nX-Late: 1\r\nKeep-Alive: timeout=5\r\nTE: deflate\r\n\
         Proxy-Connection: keep-alive\r\nX-Kept: mine\r\n\r\n",
    )
    .await;
    let head = scribe.head().await;
    has_none(&head, &["x-mine", "x-late", "keep-alive", "te", "proxy-connection", "connection"]);
    assert_eq!(lines(&head, "x-kept"), ["x-kept: mine"]);
    has_none(&answer, &["x-theirs", "x-late", "keep-alive", "proxy-connection", "connection"]);
    assert_eq!(lines(&answer, "x-kept"), ["x-kept: theirs"]);
}

#[tokio::test]
async fn a_client_cannot_have_the_fields_of_the_gateway_dropped() {
    let mut scribe = Scribe::new().await;
    let gateway = Gateway::at(scribe.address());
    let answer = ask(
        &gateway,
        "POST / HTTP/1.1\r\nHost: shop.example\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\
         Connection: idempotency-key, idempotency-fence, host, via, x-forwarded-for\r\n\r\n",
    )
    .await;
    assert!(answer.starts_with("http/1.1 200"), "{answer}");
    let head = scribe.head().await;
    assert_eq!(lines(&head, "idempotency-key:"), ["idempotency-key: k"]);
    assert_eq!(lines(&head, "idempotency-fence:").len(), 1);
    assert_eq!(lines(&head, "idempotency-attempt:"), ["idempotency-attempt: 1"]);
    assert_eq!(lines(&head, "host:"), ["host: shop.example"]);
    assert_eq!(lines(&head, "x-forwarded-for:"), ["x-forwarded-for: 127.0.0.1"]);
    assert_eq!(lines(&head, "via:"), ["via: 1.1 semel"]);
}

const FORWARDED: &str = "GET / HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-For: 203.0.113.7\r\n\
    X-Forwarded-Proto: https\r\nX-Forwarded-Host: www.example\r\n\
    Forwarded: for=203.0.113.7;proto=https\r\nVia: 1.0 edge\r\n\r\n";

#[tokio::test]
async fn what_a_client_says_about_its_way_is_replaced() {
    let mut scribe = Scribe::new().await;
    let gateway = Gateway::at(scribe.address());
    let answer = ask(&gateway, FORWARDED).await;
    let head = scribe.head().await;
    assert_eq!(lines(&head, "x-forwarded-for:"), ["x-forwarded-for: 127.0.0.1"]);
    assert_eq!(lines(&head, "x-forwarded-proto:"), ["x-forwarded-proto: http"]);
    assert_eq!(lines(&head, "x-forwarded-host:"), ["x-forwarded-host: shop.example"]);
    let forwarded = "forwarded: for=127.0.0.1;proto=http;host=\"shop.example\"";
    assert_eq!(lines(&head, "forwarded:"), [forwarded]);
    assert_eq!(lines(&head, "via:"), ["via: 1.0 edge, 1.1 semel"]);
    assert_eq!(lines(&answer, "via:"), ["via: 1.1 semel"]);
}

#[tokio::test]
async fn what_a_trusted_proxy_says_about_the_way_is_added_to() {
    let mut scribe = Scribe::new().await;
    let gateway = Setup::at(scribe.address()).gateway("trust_forwarded = true").start();
    ask(&gateway, FORWARDED).await;
    let head = scribe.head().await;
    assert_eq!(lines(&head, "x-forwarded-for:"), ["x-forwarded-for: 203.0.113.7, 127.0.0.1"]);
    assert_eq!(lines(&head, "x-forwarded-proto:"), ["x-forwarded-proto: https"]);
    assert_eq!(lines(&head, "x-forwarded-host:"), ["x-forwarded-host: www.example"]);
    let forwarded = "forwarded: for=203.0.113.7;proto=https, \
                     for=127.0.0.1;proto=http;host=\"shop.example\"";
    assert_eq!(lines(&head, "forwarded:"), [forwarded]);
    assert_eq!(lines(&head, "via:"), ["via: 1.0 edge, 1.1 semel"]);
}

#[tokio::test]
async fn the_upstream_hears_the_hosts_name_that_it_is_meant_to_hear() {
    let mut scribe = Scribe::new().await;
    let url = format!("http://{}", scribe.address());
    let own = Setup::upstream(format_args!("{{ url = \"{url}\", host = \"upstream\" }}")).start();
    let clients = Gateway::at(scribe.address());
    let request = "GET / HTTP/1.1\r\nHost: shop.example:8443\r\n\r\n";
    ask(&clients, request).await;
    assert_eq!(lines(&scribe.head().await, "host:"), ["host: shop.example:8443"]);
    ask(&own, request).await;
    let head = scribe.head().await;
    assert_eq!(lines(&head, "host:"), [format!("host: {}", scribe.address())]);
    assert_eq!(lines(&head, "x-forwarded-host:"), ["x-forwarded-host: shop.example:8443"]);
}

#[tokio::test]
async fn a_path_goes_below_the_upstreams_own_unchanged() {
    let mut scribe = Scribe::new().await;
    let url = format!("\"http://{}/base/\"", scribe.address());
    let gateway = Setup::upstream(url).start();
    ask(&gateway, "GET /a%2Fb/../c//d?q=%20&r HTTP/1.1\r\nHost: shop.example\r\n\r\n").await;
    let head = scribe.head().await;
    assert_eq!(head.lines().next(), Some("get /base/a%2fb/../c//d?q=%20&r http/1.1"));
}

#[tokio::test]
async fn fields_that_are_sent_twice_arrive_twice_in_their_order() {
    let mut scribe = Scribe::answering(
        "HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nLink: <b>\r\nSet-Cookie: c=2\r\nLink: <d>\r\n\
         Content-Length: 0\r\n\r\n",
    )
    .await;
    let gateway = Gateway::at(scribe.address());
    let request = "GET / HTTP/1.1\r\nHost: shop.example\r\nX-A: 2\r\nX-A: 1\r\n\r\n";
    let answer = ask(&gateway, request).await;
    assert_eq!(lines(&scribe.head().await, "x-a:"), ["x-a: 2", "x-a: 1"]);
    assert_eq!(lines(&answer, "set-cookie:"), ["set-cookie: a=1", "set-cookie: c=2"]);
    assert_eq!(lines(&answer, "link:"), ["link: <b>", "link: <d>"]);
}
