//! What is not guarded passes as it is.

use axum::{Router, routing::any};
use http::{Method, Request};
use semel_tower::{IdempotencyKey, KeyRule, header::IDEMPOTENCY_OUTCOME};

use crate::bench::{Bench, ORDER, charge, send};

#[tokio::test]
async fn other_methods_and_requests_without_a_key_run_every_time() {
    let bench = Bench::new();
    let counted = bench.clone();
    let handler = move |key: Option<IdempotencyKey>| {
        counted.run();
        async move { format!("{:?}", key.map(|key| key.0.to_string())) }
    };
    let app = Router::new().route("/", any(handler)).layer(bench.layer());
    let ask = |method: Method, key: bool| {
        let request = Request::builder().method(method).uri("/");
        let request = if key { request.header("idempotency-key", "k") } else { request };
        request.body(axum::body::Body::empty()).unwrap()
    };
    for (method, key) in [
        (Method::GET, true),
        (Method::PUT, true),
        (Method::DELETE, true),
        (Method::POST, false),
        (Method::PATCH, false),
    ] {
        let before = bench.runs();
        for _ in 0..2 {
            assert_eq!(send(&app, ask(method.clone(), key)).await.text(), "None");
        }
        assert_eq!(bench.runs(), before + 2, "{method}");
    }
    let before = bench.runs();
    for _ in 0..2 {
        assert_eq!(send(&app, ask(Method::PATCH, true)).await.text(), "Some(\"k\")");
    }
    assert_eq!(bench.runs(), before + 1);
}

#[tokio::test]
async fn a_route_says_which_methods_it_guards() {
    let bench = Bench::new();
    let app =
        bench.app_with(bench.layer().methods([Method::PUT]), |run| async move { run.to_string() });
    assert_eq!(send(&app, charge("k", ORDER)).await.text(), "1");
    assert_eq!(send(&app, charge("k", ORDER)).await.text(), "2");
}

#[tokio::test]
async fn an_outcome_never_goes_out() {
    let bench = Bench::new();
    let app = bench.app(|_| async { [(IDEMPOTENCY_OUTCOME, "completed")] });
    let mut request = charge("k", ORDER);
    request.headers_mut().remove("idempotency-key");
    assert_eq!(send(&app, request).await.header("idempotency-outcome"), None);
}

#[tokio::test]
async fn a_route_that_warns_says_so_and_guards_what_has_a_key() {
    let bench = Bench::new();
    let layer = bench.layer().key(KeyRule::default().warn()).docs("https://example.org/d");
    let app = bench.app_with(layer, |run| async move { run.to_string() });
    let mut without = charge("k", ORDER);
    without.headers_mut().remove("idempotency-key");
    let answer = send(&app, without).await;
    assert_eq!(answer.text(), "1");
    assert!(answer.header("deprecation").unwrap().starts_with('@'));
    assert_eq!(answer.header("link"), Some("<https://example.org/d>; rel=\"deprecation\""));
    let answer = send(&app, charge("k", ORDER)).await;
    assert_eq!((answer.text(), answer.header("deprecation")), ("2", None));
    assert!(send(&app, charge("k", ORDER)).await.is_replayed());
}
