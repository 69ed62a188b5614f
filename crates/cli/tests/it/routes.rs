//! The routes of a configuration, and the headers that the upstream gets.

use http::{HeaderValue, Request};
use http_body_util::Full;
use semel::core::StateName;

use crate::common::{ClientRequest, Gateway, ORDER, Reply, Setup, Upstream, charge, get};

/// `charge` to another path.
fn to(path: &str, key: &str, body: &str) -> ClientRequest {
    let mut request = charge(key, body);
    *request.uri_mut() = path.parse().unwrap();
    request
}

fn with(mut request: ClientRequest, name: &'static str, value: &str) -> ClientRequest {
    request.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
    request
}

fn json(path: &str, body: &str) -> ClientRequest {
    let request = Request::post(path).header("content-type", "application/json");
    request.body(Full::from(body.to_owned())).unwrap()
}

async fn routed(upstream: &Upstream, tables: &str) -> Gateway {
    Setup::new(&upstream.url()).tables(tables).start().await
}

#[tokio::test]
async fn the_upstream_gets_key_fence_and_attempt_and_no_client_can_forge_them() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let forge = |request| {
        let request = with(request, "idempotency-fence", "999999");
        let request = with(request, "idempotency-attempt", "77");
        with(request, "idempotency-outcome", "completed")
    };
    for key in ["bare", "\"quoted\""] {
        gateway.send(forge(with(charge(key, ORDER), "accept-encoding", "gzip"))).await;
    }
    let [bare, quoted] = &upstream.requests()[..] else { panic!("two runs") };
    assert_eq!(bare.header("idempotency-key"), Some("bare"));
    assert_eq!(quoted.header("idempotency-key"), Some("\"quoted\""));
    // Fences begin at the wall clock in microseconds.
    assert!(999_999 < bare.fence() && bare.fence() < quoted.fence());
    for request in [bare, quoted] {
        assert_eq!(request.attempt(), 1);
        assert_eq!(request.headers.get_all("idempotency-fence").iter().count(), 1);
        assert_eq!(request.headers.get_all("idempotency-attempt").iter().count(), 1);
        assert_eq!(request.header("idempotency-outcome"), None);
        assert_eq!(
            request.header("accept-encoding"),
            Some("identity"),
            "a replay fits every client"
        );
        assert_eq!(request.header("host"), Some("shop.example"));
    }
    // On what is not guarded neither.
    gateway.send(forge(with(get("/"), "accept-encoding", "gzip"))).await;
    let request = &upstream.requests()[2];
    assert_eq!(request.header("idempotency-fence"), None);
    assert_eq!(request.header("idempotency-attempt"), None);
    assert_eq!(request.header("accept-encoding"), Some("gzip"));
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn keys_of_different_callers_never_meet() {
    let upstream = Upstream::plain().await;
    let gateway = routed(
        &upstream,
        "[[route]]\nmatch = \"/charges\"\nscope = \"a\"\n\
         caller = [{ header = \"X-Merchant\" }, { credential = \"X-Api-Key\" }, \
         { cookie = \"sid\" }, \"authorization\", \"anonymous\"]",
    )
    .await;
    let callers = [
        ("x-merchant", "shop-1"),
        ("x-merchant", "shop-2"),
        ("x-api-key", "shop-1"),
        ("x-api-key", "secret-2"),
        ("cookie", "a=b; sid=shop-1"),
        ("cookie", "a=b; sid=2"),
        ("authorization", "Bearer shop-1"),
        ("authorization", "Basic c2hvcC0xOg=="),
        ("x-unrelated", "header"),
    ];
    let mut answers = Vec::new();
    for (name, value) in callers {
        answers.push(gateway.send(with(charge("k", ORDER), name, value)).await);
    }
    assert_eq!(upstream.request_count(), callers.len());
    for ((name, value), first) in callers.iter().zip(&answers) {
        // Another caller's body under the same key is another request, and so is refused only to
        // the caller whose key it is.
        gateway.send(with(charge("k", ORDER), name, value)).await.assert_replay_of(first);
    }
    for record in gateway.records().await {
        let caller = record.id.caller.as_str();
        assert!(!caller.contains("secret-2") && !caller.contains("c2hv"), "{caller}");
    }
    assert_eq!(upstream.request_count(), callers.len());
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn the_first_route_that_matches_counts_and_what_matches_none_passes() {
    let (upstream, other) = (Upstream::plain().await, Upstream::plain().await);
    let gateway = routed(
        &upstream,
        &format!(
            "[[route]]\nmatch = \"POST /v1/open/**\"\nguard = false\n\
             [[route]]\nmatch = \"POST /v1/*/refunds\"\nscope = \"refunds\"\n\
             [[route]]\nmatch = \"POST,PUT /v1/**\"\nscope = \"v1\"\n\
             [[route]]\nmatch = \"* api.example/**\"\nscope = \"api\"\nupstream = \"{}\"",
            other.url()
        ),
    )
    .await;
    let scopes = async || {
        let mut scopes: Vec<String> =
            gateway.records().await.iter().map(|record| record.id.scope.to_string()).collect();
        scopes.sort_unstable();
        scopes
    };
    for _ in 0..2 {
        gateway.send(to("/v1/open/x", "k", ORDER)).await;
        gateway.send(to("/v2", "k", ORDER)).await;
        let mut patch = to("/v1/x", "k", ORDER);
        *patch.method_mut() = http::Method::PATCH;
        gateway.send(patch).await;
    }
    assert_eq!((upstream.request_count(), scopes().await.len()), (6, 0), "they pass");
    for _ in 0..2 {
        gateway.send(to("/v1/7/refunds", "k", ORDER)).await;
        gateway.send(to("/v1/7", "k", ORDER)).await;
        let mut put = to("/v1/8", "put", ORDER);
        *put.method_mut() = http::Method::PUT;
        gateway.send(put).await;
    }
    assert_eq!(scopes().await, ["refunds", "v1", "v1"]);
    assert_eq!(upstream.request_count(), 9);
    for method in [http::Method::DELETE, http::Method::GET] {
        for _ in 0..2 {
            let mut request = to("/x", "k", "");
            *request.method_mut() = method.clone();
            gateway.send(with(request, "host", "API.example:8080")).await;
        }
    }
    // A safe method has nothing to guard.
    assert_eq!((upstream.request_count(), other.request_count()), (9, 3));
    assert_eq!(scopes().await[0], "api");
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_path_in_disguise_does_not_lose_its_guard() {
    let upstream = Upstream::plain().await;
    let table = "[[route]]\nmatch = \"POST /charges\"\nscope = \"charges\"\n\
                 key = { header = \"Idempotency-Key\", required = true }";
    let gateway = routed(&upstream, table).await;
    for path in
        ["/charges/", "//charges", "/x/../charges", "/./charges", "/%63harges", "/charges?x"]
    {
        gateway.send(json(path, ORDER)).await.assert_problem(400, "key-missing");
    }
    assert_eq!(upstream.request_count(), 0);
    assert_eq!(gateway.send(json("/other", ORDER)).await.status.as_u16(), 201);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_key_that_will_be_required_is_announced_on_the_way() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let setup = setup.defaults("key = { header = \"Idempotency-Key\", required = \"warn\" }");
    let gateway = setup.start().await;
    for run in 1..=2 {
        let answer = gateway.send(json("/charges", ORDER)).await;
        assert_eq!(answer.status.as_u16(), 201);
        assert!(answer.header("deprecation").is_some(), "{answer:?}");
        assert_eq!(upstream.request_count(), run);
    }
    let answer = gateway.send(charge("k", ORDER)).await;
    assert_eq!(answer.header("deprecation"), None);
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&answer);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_key_may_stand_in_the_body_and_then_only_a_success_is_kept() {
    // Every second run succeeds where a key begins with `bad`.
    let upstream = Upstream::start(|request| {
        let bad = request.body.windows(4).any(|bytes| bytes == b"\"bad");
        if bad && request.number % 2 == 1 { Reply::new(400, "no") } else { Reply::created(request) }
    })
    .await;
    let table = "[[route]]\nmatch = \"POST /hooks\"\nscope = \"hooks\"\n\
                 key = { json = \"/event/id\", required = true }";
    let gateway = routed(&upstream, table).await;
    let event = |id: &str| json("/hooks", &format!("{{\"event\":{{\"id\":{id}}},\"n\":1}}"));
    for (id, runs) in [("\"evt_1\"", 1), ("17", 2), ("\"PO 4711 \u{fc}\"", 3), ("1.5", 4)] {
        let first = gateway.send(event(id)).await;
        gateway.send(event(id)).await.assert_replay_of(&first);
        assert_eq!(upstream.request_count(), runs, "{id}");
    }
    let request = &upstream.requests()[0];
    assert_eq!(request.header("idempotency-key"), None, "the client sent none");
    assert_eq!((request.attempt(), request.fence() > 0), (1, true));
    assert_eq!(gateway.state("PO%204711%20%C3%BC").await, Some(StateName::Completed));
    assert_eq!(gateway.send(event("\"bad\"")).await.text(), "no");
    assert_eq!(gateway.state("bad").await, Some(StateName::Released));
    assert_eq!(gateway.send(event("\"bad\"")).await.status.as_u16(), 201);
    let total = upstream.request_count();
    let missing = gateway.send(json("/hooks", "{\"n\":1}")).await;
    missing.assert_problem(400, "key-missing");
    assert!(missing.text().contains("the member /event/id of the body"), "{}", missing.text());
    for bad in ["\"\"", "[1]", "null"] {
        gateway.send(event(bad)).await.assert_problem(400, "key-malformed");
    }
    assert_eq!(upstream.request_count(), total);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_key_may_have_several_places_asked_in_their_order() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url()).defaults(
        "key = { any = [\"Idempotency-Key\", \"PayPal-Request-Id\", { json = \"/id\" }], \
         required = true }",
    );
    let gateway = setup.start().await;
    let body = r#"{"id":"from-body"}"#;
    let first = gateway.send(json("/", body)).await;
    let second = gateway.send(with(json("/", body), "paypal-request-id", "from-paypal")).await;
    let both = with(json("/", body), "paypal-request-id", "from-paypal");
    let third = gateway.send(with(both, "idempotency-key", "from-header")).await;
    for key in ["from-body", "from-paypal", "from-header"] {
        assert_eq!(gateway.state(key).await, Some(StateName::Completed), "{key}");
    }
    let received =
        |name| upstream.requests().iter().map(|s| s.header(name).map(str::to_owned)).collect();
    let received: [Vec<Option<String>>; 2] = ["idempotency-key", "paypal-request-id"].map(received);
    let (header, paypal) = (Some("from-header".to_owned()), Some("from-paypal".to_owned()));
    assert_eq!(received, [vec![None, None, header], vec![None, paypal.clone(), paypal]]);
    gateway.send(json("/", body)).await.assert_replay_of(&first);
    gateway
        .send(with(json("/", body), "paypal-request-id", "from-paypal"))
        .await
        .assert_replay_of(&second);
    gateway
        .send(with(json("/", body), "idempotency-key", "from-header"))
        .await
        .assert_replay_of(&third);
    // A place that is there and malformed counts: the next is not asked.
    let bad = with(json("/", body), "idempotency-key", "a b");
    gateway.send(bad).await.assert_problem(400, "key-malformed");
    assert_eq!(upstream.request_count(), 3);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_route_says_what_of_a_request_counts() {
    let upstream = Upstream::plain().await;
    let gateway = routed(
        &upstream,
        "[[route]]\nmatch = \"/except\"\nscope = \"except\"\n\
         fingerprint = { except = [\"/sent_at\"], query = \"ignore\" }\n\
         [[route]]\nmatch = \"/only\"\nscope = \"only\"\nfingerprint = { only = [\"/amount\"] }",
    )
    .await;
    let first = gateway.send(to("/except?t=1", "k", r#"{"amount":1,"sent_at":1}"#)).await;
    gateway
        .send(to("/except?t=2", "k", r#"{"amount":1,"sent_at":2}"#))
        .await
        .assert_replay_of(&first);
    let other = to("/except", "k", r#"{"amount":2,"sent_at":1}"#);
    gateway.send(other).await.assert_problem(422, "key-reused");

    let first = gateway.send(to("/only", "k", r#"{"amount":1,"note":"a"}"#)).await;
    gateway.send(to("/only", "k", r#"{"amount":1.0,"note":"b"}"#)).await.assert_replay_of(&first);
    gateway
        .send(to("/only", "k", r#"{"amount":2,"note":"a"}"#))
        .await
        .assert_problem(422, "key-reused");
    gateway.send(to("/only?t=2", "k", r#"{"amount":1}"#)).await.assert_problem(422, "key-reused");
    gateway.send(to("/only", "new", r#"{"note":"a"}"#)).await.assert_problem(400, "body-malformed");
    assert_eq!(upstream.request_count(), 2);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_replay_has_the_kept_headers_in_order_and_number_and_nothing_else() {
    let upstream = Upstream::start(|request| {
        Reply::created(request)
            .header("x-receipt", "1")
            .header("link", "</a>; rel=next")
            .header("x-receipt", "2")
            .header("link", "</b>; rel=prev")
            .header("set-cookie", "sid=1")
            .header("x-request-id", "r1")
            .header("ratelimit-remaining", "9")
            .header("retry-after", "1")
            .header("server", "shop")
            .header("cache-control", "no-store")
    })
    .await;
    let setup = Setup::new(&upstream.url()).defaults("keep_headers = [\"X-Receipt\"]");
    let gateway = setup.start().await;
    let first = gateway.send(charge("k", ORDER)).await;
    assert_eq!(first.header("set-cookie"), Some("sid=1"));
    let second = gateway.send(charge("k", ORDER)).await;
    second.assert_replay_of(&first);
    for (name, values) in
        [("x-receipt", ["1", "2"]), ("link", ["</a>; rel=next", "</b>; rel=prev"])]
    {
        let kept: Vec<_> = second.headers.get_all(name).iter().collect();
        assert_eq!(kept, values, "{name}");
    }
    assert_eq!(second.header("cache-control"), Some("no-store"));
    for name in ["set-cookie", "x-request-id", "ratelimit-remaining", "retry-after", "server"] {
        assert_eq!(second.header(name), None, "{name}");
    }
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn numbers_that_differ_in_the_last_digit_are_different_amounts() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    gateway.send(charge("k", r#"{"amount":9007199254740993}"#)).await;
    let other = charge("k", r#"{"amount":9007199254740992}"#);
    gateway.send(other).await.assert_problem(422, "key-reused");
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}
