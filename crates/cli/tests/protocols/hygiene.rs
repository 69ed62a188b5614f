//! What a proxy does to heads: fields of one connection end, fields about the way are set, the rest
//! passes as it is.

use std::net::SocketAddr;

use http::{HeaderName, Request, Response};
use tokio::sync::mpsc;

use crate::{
    client::Client,
    common::{Gateway, Setup, Upstream, empty, text},
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
        self.upstream.address()
    }

    async fn head(&mut self) -> String {
        soon(self.heads.recv()).await.unwrap()
    }
}

/// Sends a request without a body and returns the head of its answer.
async fn ask(gateway: &Gateway, request: &str) -> String {
    let mut client = Raw::connect(gateway.address()).await;
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
    let gateway = Gateway::at(scribe.address()).await;
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
    let gateway = Gateway::at(scribe.address()).await;
    let answer = ask(
        &gateway,
        "POST / HTTP/1.1\r\nHost: shop.example\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\
         Connection: idempotency-fence, via, x-forwarded-for\r\n\r\n",
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
async fn forwarding_headers_of_a_client_are_replaced() {
    let mut scribe = Scribe::new().await;
    let gateway = Gateway::at(scribe.address()).await;
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
async fn forwarding_headers_of_a_trusted_proxy_are_extended() {
    let mut scribe = Scribe::new().await;
    let gateway = Setup::at(scribe.address()).gateway("trust_forwarded = true").start().await;
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

/// An upstream that answers with the names of the headers that it was sent.
async fn naming() -> Upstream {
    Upstream::serving(|request| async move {
        let names: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
        Response::new(text(names.join("\n")))
    })
    .await
}

/// Which of these headers the upstream is sent of a request that carries them all.
async fn passed(client: &mut Client, path: &str, key: &str, names: &[&str]) -> Vec<String> {
    let mut request = Request::post(path).header("x-merchant-id", "7").header("x-kept", "1");
    for name in names {
        request = request.header(*name, "mallory");
    }
    if !key.is_empty() {
        request = request.header("idempotency-key", key);
    }
    let answer = client.ask(request.body(empty()).unwrap()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let heard: Vec<_> = answer.text().lines().collect();
    assert!(heard.contains(&"x-kept") && heard.contains(&"x-merchant-id"), "{heard:?}");
    names.iter().filter(|name| heard.contains(*name)).map(|name| (*name).to_owned()).collect()
}

const MERCHANTS: &str = "[[route]]\nmatch = \"POST /m\"\nscope = \"m\"\n\
    caller = [{ header = \"X-Merchant-Id\" }, { cookie = \"sid\" }, \"authorization\"]\n\
    key = { any = [\"Idempotency-Key\", \"X-Order-Key\"] }\n\
    fingerprint = { headers = [\"Api-Version\"] }\n";

#[tokio::test]
async fn every_header_about_the_way_is_replaced_unless_a_proxy_is_trusted() {
    const REMOVED: [&str; 22] = [
        "cf-connecting-ip",
        "cf-connecting-ipv6",
        "fastly-client-ip",
        "true-client-ip",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-forwarded",
        "x-forwarded-client-cert",
        "x-forwarded-email",
        "x-forwarded-groups",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-forwarded-scheme",
        "x-forwarded-server",
        "x-forwarded-ssl",
        "x-forwarded-user",
        "x-original-host",
        "x-original-uri",
        "x-original-url",
        "x-real-ip",
        "x-rewrite-url",
        "x-forwarded-anything",
    ];
    const TWINS: [&str; 4] = ["x_forwarded_user", "x-real_ip", "x_forwarded_for", "x_original_url"];
    let upstream = naming().await;
    let all = [&REMOVED[..], &TWINS].concat();
    for trust in [false, true] {
        let setup =
            Setup::at(upstream.address()).gateway(format_args!("trust_forwarded = {trust}"));
        let gateway = setup.tables(MERCHANTS).start().await;
        for http2 in [false, true] {
            let mut client = Client::connect(gateway.address(), http2).await;
            // Guarded; on a guarded route without a key; on none.
            for (path, key) in [("/m", &*format!("k{http2}")), ("/m", ""), ("/elsewhere", "")] {
                let heard = passed(&mut client, path, key, &all).await;
                let expected = if trust { &REMOVED[..] } else { &[] };
                assert_eq!(heard, expected, "trust {trust}, http2 {http2}, {path}");
            }
        }
    }
}

#[tokio::test]
async fn a_twin_of_a_header_that_the_route_reads_does_not_reach_the_upstream() {
    const TWINS: [&str; 6] = [
        "x_merchant_id",
        "x-merchant_id",
        "x.merchant.id",
        "x_order_key",
        "idempotency_key",
        "api_version",
    ];
    let upstream = naming().await;
    let gateway = Setup::at(upstream.address()).tables(MERCHANTS).start().await;
    for http2 in [false, true] {
        let mut client = Client::connect(gateway.address(), http2).await;
        for key in [&*format!("k{http2}"), ""] {
            let heard = passed(&mut client, "/m", key, &TWINS).await;
            assert!(heard.is_empty(), "{heard:?}");
        }
        let heard = passed(&mut client, "/m", "", &["x_merchant_ids", "x_request_id"]).await;
        assert_eq!(heard, ["x_merchant_ids", "x_request_id"], "no twins of anything");
    }
}

#[tokio::test]
async fn a_connection_header_that_names_what_the_route_reads_is_refused() {
    let mut scribe = Scribe::new().await;
    let setup = Setup::at(scribe.address());
    std::fs::write(setup.folder().join("hook.secret"), "0123456789abcdef0123456789abcdef").unwrap();
    let signed = "[[route]]\nmatch = \"POST /hook\"\nscope = \"hook\"\nkey = \"X-Delivery\"\n\
        signature = { scheme = \"hmac\", header = \"X-Sig\", timestamp = \"X-Time\", \
        signed = \"{timestamp}.{body}\", secret_file = \"hook.secret\" }\n";
    let gateway = setup.tables(MERCHANTS).tables(signed).start().await;
    let everywhere = ["authorization", "content-encoding", "content-type", "cookie", "host"];
    let merchants = ["x-merchant-id", "idempotency-key", "x-order-key", "api-version"];
    let hook = ["x-delivery", "x-sig", "x-time"];
    for (path, names) in [("/m", &merchants[..]), ("/hook", &hook), ("/elsewhere", &[])] {
        for name in everywhere.iter().chain(names) {
            for named in [format!("close, {}", name.to_uppercase()), format!(" ,\t{name} ")] {
                let mut client = Raw::connect(gateway.address()).await;
                let request = format!(
                    "POST {path} HTTP/1.1\r\nHost: shop.example\r\nX-Merchant-Id: 7\r\n\
                     Idempotency-Key: k\r\nConnection: {named}\r\nContent-Length: 0\r\n\r\n"
                );
                client.write(request).await;
                let head = client.read_head().await;
                assert!(head.starts_with("http/1.1 400"), "{path} {named}: {head}");
                assert!(head.contains("application/problem+json"), "{head}");
                let document = client.read_to("about:blank").await;
                assert!(
                    document.contains(&format!("Connection header names {name}")),
                    "{document}"
                );
            }
        }
    }
    // What nothing here reads ends with the connection, as ever.
    let request = "POST /m HTTP/1.1\r\nHost: shop.example\r\nX-Merchant-Id: 7\r\n\
        Idempotency-Key: k\r\nX-Mine: 1\r\nConnection: X-Mine\r\nContent-Length: 0\r\n\r\n";
    assert!(ask(&gateway, request).await.starts_with("http/1.1 200"));
    let head = scribe.head().await;
    assert!(head.contains("x-merchant-id: 7") && !head.contains("x-mine"), "{head}");
    assert!(scribe.heads.try_recv().is_err(), "nothing that was refused arrived");
}

#[tokio::test]
async fn one_user_is_not_shown_the_answer_of_another_whom_a_header_names() {
    let upstream = Upstream::serving(|request| async move {
        let user = request.headers().get("x-consumer-id").cloned();
        let user = user.map(|user| user.to_str().unwrap().to_owned());
        Response::new(text(format!("for {user:?}")))
    })
    .await;
    let counted = "[[route]]\nmatch = \"POST /counted\"\nscope = \"counted\"\n\
        fingerprint = { headers = [\"X-Consumer-Id\"] }\n[[route]]\nmatch = \"POST /**\"\n\
        scope = \"default\"\n";
    let gateway = Setup::at(upstream.address()).tables(counted).start().await;
    for http2 in [false, true] {
        let mut client = Client::connect(gateway.address(), http2).await;
        let request = |path: &str, user: &str| {
            let request = Request::post(path).header("idempotency-key", format!("k{http2}"));
            request.header("x-consumer-id", user.to_owned()).body(text("{}")).unwrap()
        };
        for user in ["alice", "bob"] {
            let answer = client.ask(request("/x", user)).await;
            assert_eq!(answer.outcome(), (403, Some("caller-unidentified")));
            let line = "caller = [{ header = \\\"x-consumer-id\\\" }, \\\"anonymous\\\"]";
            assert!(answer.text().contains(line), "{}", answer.text());
        }
        let answer = client.ask(request("/counted", "alice")).await;
        assert_eq!(answer.text(), "for Some(\"alice\")");
        let answer = client.ask(request("/counted", "bob")).await;
        assert_eq!(answer.outcome(), (422, Some("key-reused")));
    }
    assert_eq!(upstream.request_count(), 2);
}

#[tokio::test]
async fn the_upstream_hears_the_hosts_name_that_it_is_meant_to_hear() {
    let mut scribe = Scribe::new().await;
    let url = format!("http://{}", scribe.address());
    let own =
        Setup::upstream(format_args!("{{ url = \"{url}\", host = \"upstream\" }}")).start().await;
    let clients = Gateway::at(scribe.address()).await;
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
    let gateway = Setup::upstream(url).start().await;
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
    let gateway = Gateway::at(scribe.address()).await;
    let request = "GET / HTTP/1.1\r\nHost: shop.example\r\nX-A: 2\r\nX-A: 1\r\n\r\n";
    let answer = ask(&gateway, request).await;
    assert_eq!(lines(&scribe.head().await, "x-a:"), ["x-a: 2", "x-a: 1"]);
    assert_eq!(lines(&answer, "set-cookie:"), ["set-cookie: a=1", "set-cookie: c=2"]);
    assert_eq!(lines(&answer, "link:"), ["link: <b>", "link: <d>"]);
}

#[tokio::test]
async fn a_trace_is_passed_on_only_where_a_route_names_it() {
    let mut scribe = Scribe::new().await;
    let route = "[[route]]\nmatch = \"TRACE /debug\"\nguard = false";
    let any = "[[route]]\nmatch = \"* /any\"\nguard = false";
    let gateway = Setup::at(scribe.address()).tables(format!("{route}\n{any}")).start().await;
    for (path, status) in [("/any", "405"), ("/other", "405"), ("/debug", "200")] {
        let request = format!("TRACE {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n");
        let answer = ask(&gateway, &request).await;
        assert!(answer.starts_with(&format!("http/1.1 {status}")), "{path}: {answer}");
    }
    assert_eq!(scribe.head().await.lines().next(), Some("trace /debug http/1.1"));
}
