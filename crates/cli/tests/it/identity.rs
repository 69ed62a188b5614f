//! What a request is about: tenants by host and by header, callers of several parts, keys as they
//! were sent, and requests that no route takes.

use http::{HeaderValue, Request};
use http_body_util::Full;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    common::{ClientRequest, Gateway, ORDER, Reply, Setup, TestResponse, Upstream, charge, get},
    operators::reaches,
};

fn with(mut request: ClientRequest, lines: &[(&'static str, &str)]) -> ClientRequest {
    for (name, value) in lines {
        request.headers_mut().append(*name, HeaderValue::from_str(value).unwrap());
    }
    request
}

/// The order under the key `k`, with these headers.
fn order(lines: &[(&'static str, &str)]) -> ClientRequest {
    with(charge("k", ORDER), lines)
}

fn at(host: &str) -> ClientRequest {
    order(&[("host", host)])
}

/// A service for several tenants, which names the tenant in its answer.
async fn tenants() -> Upstream {
    Upstream::start(|request| {
        let of = |name| request.header(name).unwrap_or("-");
        let log = format!("{} {} {}", request.number, of("host"), of("stripe-account"));
        Reply::new(201, log)
    })
    .await
}

#[track_caller]
fn ran(answer: &TestResponse, text: &str) {
    assert_eq!((answer.text(), answer.is_replayed()), (text, false));
}

#[tokio::test]
async fn tenants_by_host_run_apart_and_get_their_own_answers() {
    let upstream = tenants().await;
    let setup = Setup::new(&upstream.url());
    let setup = setup.tables(
        "[[route]]\nmatch = \"POST /charges\"\nscope = \"charges\"\n\
         caller = [{ all = [\"authorization\", \"host\"] }]",
    );
    let gateway = setup.start().await;
    let platform = ("authorization", "Bearer platform");
    let shop = |host| order(&[platform, ("host", host)]);
    let a = gateway.send(shop("shop-a.example")).await;
    let b = gateway.send(shop("shop-b.example")).await;
    ran(&a, "1 shop-a.example -");
    ran(&b, "2 shop-b.example -");
    gateway.send(shop("Shop-A.example:8443")).await.assert_replay_of(&a);
    gateway.send(shop("shop-b.example.")).await.assert_replay_of(&b);
    gateway.send(shop("127.0.0.1")).await.assert_problem(403, "caller-unidentified");
    assert_eq!(upstream.request_count(), 2);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn accounts_of_one_credential_run_apart_and_get_their_own_answers() {
    let upstream = tenants().await;
    let setup = Setup::new(&upstream.url()).tables(
        "[[route]]\nmatch = \"POST /charges\"\nscope = \"charges\"\n\
         caller = { all = [\"authorization\", { header = \"Stripe-Account\", optional = true }] }",
    );
    let gateway = setup.start().await;
    let platform = ("authorization", "Bearer platform");
    let account = |name| order(&[platform, ("stripe-account", name), ("host", "shop.example")]);
    let one = gateway.send(account("acct_1")).await;
    let two = gateway.send(account("acct_2")).await;
    let none = gateway.send(order(&[platform, ("host", "shop.example")])).await;
    ran(&one, "1 shop.example acct_1");
    ran(&two, "2 shop.example acct_2");
    ran(&none, "3 shop.example -");
    gateway.send(account("acct_1")).await.assert_replay_of(&one);
    gateway.send(account("acct_2")).await.assert_replay_of(&two);
    let callers = gateway.records().await;
    let callers: Vec<&str> = callers.iter().map(|record| record.id.caller.as_str()).collect();
    assert!(callers.iter().any(|name| name.ends_with("+header:stripe-account:acct_2")));
    assert!(callers.iter().all(|name| !name.contains("platform")), "{callers:?}");
    assert_eq!(upstream.request_count(), 3);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn another_host_or_a_listed_header_makes_another_request() {
    let upstream = tenants().await;
    let setup =
        Setup::new(&upstream.url()).defaults("fingerprint = { headers = [\"Stripe-Account\"] }");
    let gateway = setup.start().await;
    let first = gateway.send(at("shop-a.example")).await;
    gateway.send(at("shop-b.example")).await.assert_problem(422, "key-reused");
    let account = order(&[("host", "shop-a.example"), ("stripe-account", "acct_1")]);
    gateway.send(account).await.assert_problem(422, "key-reused");
    gateway.send(at("SHOP-A.example:80")).await.assert_replay_of(&first);
    // The target of a request counts before its Host, and the upstream gets the same.
    let absolute = "POST http://shop-a.example/charges HTTP/1.1\r\nhost: shop-b.example\r\n\
                    idempotency-key: k\r\ncontent-type: application/json\r\ncontent-length: 25\r\n\
                    connection: close\r\n\r\n{\"amount\":100,\"to\":\"zoe\"}";
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream.write_all(absolute.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("idempotent-replayed: true"), "{answer}");
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn the_host_counts_only_where_the_upstream_gets_it() {
    let upstream = tenants().await;
    for lines in ["upstream = { host = \"upstream\" }", "fingerprint = { host = \"ignore\" }"] {
        let gateway = Setup::new(&upstream.url()).defaults(lines).start().await;
        let first = gateway.send(at("a.example")).await;
        gateway.send(at("b.example")).await.assert_replay_of(&first);
        gateway.assert_clean_shutdown().await;
    }
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let first = gateway.send(at("10.0.0.1:80")).await;
    gateway.send(at("10.0.0.2:80")).await.assert_replay_of(&first);
    gateway.assert_clean_shutdown().await;
    assert_eq!(upstream.request_count(), 3);
}

#[tokio::test]
async fn the_forwarded_host_counts_behind_a_proxy_that_is_trusted() {
    let upstream = tenants().await;
    let shop = |host| order(&[("host", "inner.example"), ("x-forwarded-host", host)]);
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let first = gateway.send(shop("a.example")).await;
    gateway.send(shop("b.example")).await.assert_replay_of(&first);
    gateway.assert_clean_shutdown().await;
    let gateway = Setup::new(&upstream.url()).gateway("trust_forwarded = true").start().await;
    let first = gateway.send(shop("a.example")).await;
    gateway.send(shop("b.example")).await.assert_problem(422, "key-reused");
    gateway.send(shop("A.example:443, other.example")).await.assert_replay_of(&first);
    gateway.assert_clean_shutdown().await;
    assert_eq!(upstream.request_count(), 2);
}

#[tokio::test]
async fn the_upstream_gets_the_key_as_the_client_sent_it() {
    const KEYS: [&str; 4] = ["bare", "\"quoted\"", r#""a\"b";p=1"#, "8e03978e-40d5-43dd-bc93"];
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let gateway = setup.clone().start().await;
    for key in KEYS {
        gateway.send(charge(key, ORDER)).await;
    }
    let again = gateway.send(charge("\"bare\"", ORDER)).await;
    assert!(again.is_replayed(), "both spellings are one key");
    gateway.assert_clean_shutdown().await;
    let gateway = setup.defaults("mode = \"observe\"").start().await;
    for key in KEYS.into_iter().chain(["not a key", ""]) {
        gateway.send(charge(key, ORDER)).await;
    }
    gateway.assert_clean_shutdown().await;
    let keys: Vec<String> = upstream
        .requests()
        .iter()
        .map(|request| request.header("idempotency-key").unwrap().to_owned())
        .collect();
    assert_eq!(keys, [&KEYS[..], &KEYS, &["not a key", ""]].concat());
}

#[tokio::test]
async fn a_decline_is_kept_unless_nothing_proves_whose_key_in_the_body_it_is() {
    let upstream = Upstream::start(|request| Reply::new(402, request.number.to_string())).await;
    let route = "[[route]]\nmatch = \"POST /entries\"\nscope = \"entries\"\n\
                 key = [\"Idempotency-Key\", { json = [\"/contest\", \"/user\"] }]\n\
                 caller = [\"authorization\", \"anonymous\"]";
    let entry = |lines: &[(&'static str, &str)]| {
        let request = Request::post("/entries").header("content-type", "application/json");
        let body = r#"{"contest":"spring cup","user":7}"#;
        with(request.body(Full::from(body)).unwrap(), lines)
    };
    let gateway = Setup::new(&upstream.url()).tables(route).start().await;
    let auth = ("authorization", "Bearer a");
    for (lines, kept) in [
        (&[("idempotency-key", "k")][..], true),
        (&[("idempotency-key", "k"), auth], true),
        (&[auth], true),
        (&[], false),
    ] {
        let first = gateway.send(entry(lines)).await;
        let again = gateway.send(entry(lines)).await;
        assert_eq!((first.is_replayed(), again.is_replayed()), (false, kept), "{lines:?}");
    }
    gateway.assert_clean_shutdown().await;
    let log = format!("{route}\nkeep = \"deterministic\"");
    let gateway = Setup::new(&upstream.url()).tables(log).start().await;
    let first = gateway.send(entry(&[])).await;
    gateway.send(entry(&[])).await.assert_replay_of(&first);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_request_with_a_key_that_no_route_takes_is_counted_and_named_once() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url()).tables(
        "[[route]]\nmatch = \"POST /v1/payments/*/refunds\"\nscope = \"refunds\"\n\
         key = \"X-Refund-Id\"\n\
         [[route]]\nmatch = \"POST /open\"\nguard = false",
    );
    let gateway = setup.start().await;
    let to = |path: &str, name: &'static str| {
        let mut request = with(charge("k", ORDER), &[(name, "k")]);
        *request.uri_mut() = path.parse().unwrap();
        if name != "idempotency-key" {
            request.headers_mut().remove("idempotency-key");
        }
        request
    };
    for path in ["/v1/payment/1/refunds?card=4242", "/v1/payments/1/refund", "/v2"] {
        gateway.send(to(path, "x-refund-id")).await;
    }
    gateway.send(charge("k", ORDER)).await;
    gateway.send(to("/other", "x-unknown")).await;
    gateway.send(with(get("/charges"), &[("idempotency-key", "k")])).await;
    gateway.send(to("/open", "x-refund-id")).await;
    let counted = |reason: &str| format!("semel_unguarded_total{{reason=\"{reason}\"}}");
    reaches(&gateway, &counted("unmatched-keyed"), 4).await;
    reaches(&gateway, &counted("unmatched"), 2).await;
    reaches(&gateway, &counted("route"), 1).await;
    gateway.wait_for_log("matches no route").await;
    let log = gateway.log_lines();
    let log: Vec<&String> = log.iter().filter(|line| line.contains("matches no route")).collect();
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(log[0].contains("method=POST path=/v1/payment/1/refunds"), "{log:?}");
    assert!(log[0].contains(" WARN ") && !log[0].contains("4242"), "{log:?}");
    assert_eq!(upstream.request_count(), 7);
    gateway.assert_clean_shutdown().await;
}
