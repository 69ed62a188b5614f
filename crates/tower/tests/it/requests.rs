//! What a handler gets, and what makes two requests equal.

use std::io::Write;

use axum::{Router, body::Body, routing::post};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, Request};
use semel::core::{
    FingerprintRule, Policy,
    canonical::{Pointer, Selection},
};
use semel_tower::{IdempotencyAttempt, IdempotencyFence, IdempotencyKey, KeyRule};
use tower_service::Service;

use crate::harness::{Harness, ORDER, charge, send};

#[tokio::test]
async fn the_handler_gets_the_request_as_it_was_sent_without_what_a_client_may_not_say() {
    let harness = Harness::new();
    let handler = |headers: HeaderMap, body: Bytes| async move {
        assert!(!headers.contains_key("idempotency-fence"));
        assert!(!headers.contains_key("idempotency-attempt"));
        let accepts = headers.get("accept-encoding").cloned();
        format!("{:?} {accepts:?}", str::from_utf8(&body).unwrap())
    };
    let app = Router::new().route("/charges", post(handler)).layer(harness.layer());
    let forged = |guarded: bool| {
        let mut request = charge("k", ORDER);
        let headers = request.headers_mut();
        headers.insert("idempotency-fence", "99".parse().unwrap());
        headers.insert("idempotency-attempt", "7".parse().unwrap());
        headers.insert("accept-encoding", "gzip".parse().unwrap());
        if !guarded {
            headers.remove("idempotency-key");
        }
        request
    };
    let answer = send(&app, forged(true)).await;
    assert_eq!(answer.text(), format!("{ORDER:?} Some(\"identity\")"));
    let answer = send(&app, forged(false)).await;
    assert_eq!(answer.text(), format!("{ORDER:?} Some(\"gzip\")"));
}

#[tokio::test]
async fn the_handler_learns_key_fence_and_attempt() {
    let harness = Harness::new();
    let handler = |key: IdempotencyKey, fence: IdempotencyFence, attempt: IdempotencyAttempt| {
        let text = format!("{} {} {}", key.0, fence.0.get(), attempt.0);
        async move { (http::StatusCode::TOO_MANY_REQUESTS, text) }
    };
    let app = Router::new().route("/charges", post(handler)).layer(harness.layer());
    let read = |text: &str| {
        let parts: Vec<_> = text.split(' ').map(str::to_owned).collect();
        (parts[0].clone(), parts[1].parse::<u64>().unwrap(), parts[2].clone())
    };
    let first = send(&app, charge("k", ORDER)).await;
    let second = send(&app, charge("k", ORDER)).await;
    let (key, fence, attempt) = read(first.text());
    assert_eq!((key.as_str(), attempt.as_str()), ("k", "1"));
    let (key, higher, attempt) = read(second.text());
    assert_eq!((key.as_str(), attempt.as_str()), ("k", "2"));
    assert!(higher > fence);
}

#[tokio::test(start_paused = true)]
async fn an_unguarded_execution_has_no_fence() {
    let on_store_down = semel::core::OnStoreDown::Pass;
    let harness = Harness::new().policy(Policy { on_store_down, ..Policy::default() });
    harness.store.set_all(semel_testkit::flaky_store::StoreCondition::Unavailable);
    let needs = |fence: IdempotencyFence| async move { fence.0.to_string() };
    let asks = |fence: Option<IdempotencyFence>, attempt: IdempotencyAttempt| async move {
        format!("{} {}", fence.is_some(), attempt.0)
    };
    let app = Router::new().route("/charges", post(asks)).route("/needs", post(needs));
    let app = app.layer(harness.layer());
    assert_eq!(send(&app, charge("k", ORDER)).await.text(), "false 1");
    let mut request = charge("l", ORDER);
    *request.uri_mut() = "/needs".parse().unwrap();
    let answer = send(&app, request).await;
    assert_eq!(answer.status, 500);
    assert!(answer.text().contains("store is away"));
}

#[tokio::test]
async fn nested_routes_with_equal_tails_are_different_operations() {
    let harness = Harness::new();
    let counted = harness.clone();
    let inner = || {
        let counted = counted.clone();
        let handler = move || {
            let run = counted.run();
            async move { run.to_string() }
        };
        Router::new().route("/charges", post(handler)).layer(harness.layer())
    };
    let app = Router::new().nest("/eu", inner()).nest("/us", inner());
    let ask = |path: &str| {
        let request = Request::post(path).header("idempotency-key", "k");
        request.body(Body::from(ORDER)).unwrap()
    };
    assert_eq!(send(&app, ask("/eu/charges")).await.text(), "1");
    send(&app, ask("/us/charges")).await.assert_problem(422, "key-reused");
    send(&app, ask("/eu/charges?x=1")).await.assert_problem(422, "key-reused");
    assert!(send(&app, ask("/eu/charges")).await.is_replayed());
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_rewritten_path_is_another_operation() {
    let harness = Harness::new();
    let counted = harness.clone();
    let handler = move |uri: http::Uri| {
        let run = counted.run();
        async move { format!("{run} {}", uri.path()) }
    };
    let guarded = Router::new().route("/{*any}", post(handler)).layer(harness.layer());
    // An API that tells its versions apart by a header.
    let app = Router::new().fallback(move |mut request: Request<Body>| {
        let mut guarded = guarded.clone();
        let version = request.headers()["x-version"].to_str().unwrap().to_owned();
        *request.uri_mut() = format!("/{version}{}", request.uri().path()).parse().unwrap();
        async move { guarded.call(request).await.unwrap() }
    });
    let ask = |version: &'static str| {
        let mut request = charge("k", ORDER);
        request.headers_mut().insert("x-version", version.parse().unwrap());
        request
    };
    assert_eq!(send(&app, ask("v1")).await.text(), "1 /v1/charges");
    send(&app, ask("v2")).await.assert_problem(422, "key-reused");
    assert!(send(&app, ask("v1")).await.is_replayed());
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_compressed_repeat_is_the_same_request_and_reaches_the_handler_compressed() {
    let harness = Harness::new();
    let counted = harness.clone();
    let handler = move |body: Bytes| {
        counted.run();
        async move { body }
    };
    let app = Router::new().route("/charges", post(handler)).layer(harness.layer());
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(ORDER.as_bytes()).unwrap();
    let zipped = encoder.finish().unwrap();
    let compressed = |key: &str| {
        let mut request = charge(key, "");
        request.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        *request.body_mut() = Body::from(zipped.clone());
        request
    };
    assert_eq!(send(&app, compressed("k")).await.body, zipped);
    let plain = send(&app, charge("k", ORDER)).await;
    assert!(plain.is_replayed());
    assert_eq!(harness.runs(), 1);
    let mut damaged = charge("other", ORDER);
    damaged.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
    send(&app, damaged).await.assert_problem(400, "body-malformed");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_route_says_which_members_count() {
    let harness = Harness::new();
    let selection = Selection::Except(vec![Pointer::parse("/sent_at").unwrap()]);
    let rule = FingerprintRule { selection, ..FingerprintRule::default() };
    let app = harness.app_with(harness.layer().fingerprint(rule), |_| async { "ok" });
    send(&app, charge("k", r#"{"amount":1,"sent_at":1}"#)).await;
    assert!(send(&app, charge("k", r#"{"amount":1,"sent_at":2}"#)).await.is_replayed());
    send(&app, charge("k", r#"{"amount":2,"sent_at":2}"#)).await.assert_problem(422, "key-reused");
}

fn webhook(body: &'static str) -> Request<Body> {
    let mut request = charge("k", body);
    request.headers_mut().remove("idempotency-key");
    request
}

#[tokio::test]
async fn a_webhook_has_its_key_in_its_body() {
    let harness = Harness::new();
    let rule = KeyRule::json(Pointer::parse("/id").unwrap()).required();
    let handler = |run: u32| async move {
        let status = if run == 1 { 404 } else { 200 };
        (http::StatusCode::from_u16(status).unwrap(), run.to_string())
    };
    let app = harness.app_with(harness.layer().key(rule), handler);
    let first = send(&app, webhook(r#"{"id":"evt_1"}"#)).await;
    assert_eq!((first.status.as_u16(), first.text()), (404, "1"));
    let second = send(&app, webhook(r#"{"id":"evt_1"}"#)).await;
    assert_eq!((second.status.as_u16(), second.text()), (200, "2"), "only a success is kept");
    assert!(send(&app, webhook(r#"{"id":"evt_1"}"#)).await.is_replayed());
    send(&app, webhook(r#"{"type":"ping"}"#)).await.assert_problem(400, "key-missing");
    send(&app, webhook(r#"{"id":[]}"#)).await.assert_problem(400, "key-malformed");
    send(&app, webhook("{")).await.assert_problem(400, "body-malformed");
    let mut ambiguous = webhook(r#"{"id":"evt_2","id":"evt_3"}"#);
    ambiguous.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    send(&app, ambiguous).await.assert_problem(400, "body-malformed");
    let mut coded = webhook("?");
    coded.headers_mut().insert("content-encoding", "br".parse().unwrap());
    send(&app, coded).await.assert_problem(400, "body-malformed");
    assert_eq!(harness.runs(), 2);
}

#[tokio::test]
async fn a_body_without_a_key_passes_where_none_is_required() {
    let harness = Harness::new().policy(Policy { request_bytes_max: 100, ..Policy::default() });
    let pointer = Pointer::parse("/id").unwrap();
    let rule = KeyRule::default().or(KeyRule::json(pointer)).warn();
    let app = harness.app_with(harness.layer().key(rule), |run| async move { run.to_string() });
    for run in ["1", "2"] {
        let answer = send(&app, webhook(r#"{"type":"ping"}"#)).await;
        assert_eq!(answer.text(), run);
        assert!(answer.header("deprecation").is_some());
    }
    assert_eq!(send(&app, charge("k", ORDER)).await.text(), "3");
    assert!(send(&app, charge("k", ORDER)).await.is_replayed());
}
