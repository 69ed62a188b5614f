//! Requests that are refused before anything runs.

use http::{Request, StatusCode};
use semel::core::{OnStoreDown, OnUnknown, Policy, canonical::Pointer};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};
use semel_tower::{Callers, IdempotencyKey, KeyRule, NeverReached};
use tower_service::Service;

use crate::harness::{Gate, Harness, ORDER, TestResponse, begin, charge, send, wait_until};

async fn ok(_run: u32) -> &'static str {
    "ok"
}

#[tokio::test]
async fn a_route_that_requires_a_key_refuses_a_request_without() {
    let harness = Harness::new();
    let layer = harness.layer().key(KeyRule::default().required()).docs("https://example.org/d");
    let app = harness.app_with(layer, ok);
    let answer = send(&app, Request::post("/charges").body("x".into()).unwrap()).await;
    answer.assert_problem(400, "key-missing");
    assert_eq!(answer.header("link"), Some("<https://example.org/d>; rel=\"describedby\""));
    assert_eq!(harness.runs(), 0);
}

#[tokio::test]
async fn a_key_that_one_of_two_rules_requires_is_required() {
    let harness = Harness::new();
    let in_body = KeyRule::json(Pointer::parse("/id").unwrap());
    let app = harness.app_with(harness.layer().key(KeyRule::default().or(in_body.required())), ok);
    let answer = send(&app, Request::post("/charges").body("{}".into()).unwrap()).await;
    answer.assert_problem(400, "key-missing");
    assert_eq!(harness.runs(), 0);
}

#[tokio::test]
async fn a_malformed_key_is_never_taken_for_absent() {
    let harness = Harness::new();
    let app = harness.app(ok);
    for key in ["", "a b", "a, b", "\"a", &"x".repeat(256)] {
        send(&app, charge(key, ORDER)).await.assert_problem(400, "key-malformed");
    }
    let mut twice = charge("a", ORDER);
    twice.headers_mut().append("idempotency-key", "a".parse().unwrap());
    send(&app, twice).await.assert_problem(400, "key-malformed");
    assert_eq!(harness.runs(), 0);
}

#[tokio::test]
async fn a_body_that_is_not_what_it_says_is_refused() {
    let harness = Harness::new();
    let app = harness.app(ok);
    for body in ["{", r#"{"amount":1,"amount":2}"#] {
        send(&app, charge("k", body)).await.assert_problem(400, "body-malformed");
    }
    assert_eq!(harness.runs(), 0);
}

#[tokio::test]
async fn an_unidentified_caller_is_refused_before_the_body_is_read() {
    let harness = Harness::new();
    let merchant = Callers::header("x-merchant".parse().unwrap()).unwrap();
    let scope = semel::core::Scope::new("payments").unwrap();
    let layer = semel_tower::IdempotencyLayer::new(&harness.semel, scope, merchant);
    let app = harness.app_with(layer, ok);
    let answer = send(&app, charge("k", "{")).await;
    answer.assert_problem(403, "caller-unidentified");
    assert!(answer.text().contains("x-merchant"), "{}", answer.text());
    assert_eq!(harness.runs(), 0);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let harness = Harness::new().policy(Policy { request_bytes_max: 10, ..Policy::default() });
    let app = harness.app(ok);
    send(&app, charge("k", ORDER)).await.assert_problem(413, "body-too-large");
    let unguarded = Request::post("/charges").body(ORDER.into()).unwrap();
    assert_eq!(send(&app, unguarded).await.status, StatusCode::OK, "without a key it passes");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn another_body_under_the_same_key_is_refused_at_once_also_in_flight() {
    let (harness, gate) = (Harness::new(), Gate::new());
    let app = harness.app({
        let gate = gate.clone();
        move |_| {
            let gate = gate.clone();
            async move {
                gate.wait_open().await;
                "ok"
            }
        }
    });
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, charge("k", ORDER)).await }
    });
    wait_until(|| harness.runs() == 1).await;
    let other = || charge("k", r#"{"amount":1000,"to":"zoe"}"#);
    send(&app, other()).await.assert_problem(422, "key-reused");
    gate.open();
    assert_eq!(first.await.unwrap().text(), "ok");
    send(&app, other()).await.assert_problem(422, "key-reused");
    let respelled = charge("k", r#"{ "to": "zoe", "amount": 1e2 }"#);
    assert!(send(&app, respelled).await.is_replayed());
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_repeat_of_a_running_operation_gets_in_progress_after_its_wait() {
    let policy = Policy { wait: std::time::Duration::from_millis(20), ..Policy::default() };
    let (harness, gate) = (Harness::new().policy(policy), Gate::new());
    let app = harness.app({
        let gate = gate.clone();
        move |_| {
            let gate = gate.clone();
            async move { gate.wait_open().await }
        }
    });
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, charge("k", ORDER)).await }
    });
    wait_until(|| harness.runs() == 1).await;
    let answer = send(&app, charge("k", ORDER)).await;
    answer.assert_problem(409, "in-progress");
    assert_eq!(answer.header("retry-after"), Some("1"));
    let elsewhere = harness.second_process().app(ok);
    send(&elsewhere, charge("k", ORDER)).await.assert_problem(409, "in-progress");
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::OK);
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_store_blocks_requests_unless_the_route_fails_open() {
    let harness = Harness::new();
    harness.store.set(StoreCall::Claim, StoreCondition::Unavailable);
    let answer = send(&harness.app(ok), charge("k", ORDER)).await;
    answer.assert_problem(503, "store-unavailable");
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(harness.runs(), 0);

    let passing = harness.clone();
    let passing = passing.policy(Policy { on_store_down: OnStoreDown::Pass, ..Policy::default() });
    let answer = send(&passing.app(ok), charge("k", ORDER)).await;
    assert_eq!((answer.text(), harness.runs()), ("ok", 1));
}

#[tokio::test]
async fn a_busy_store_is_too_many_in_flight() {
    let harness = Harness::new();
    harness.store.set(StoreCall::Claim, StoreCondition::Busy);
    let answer = send(&harness.app(ok), charge("k", ORDER)).await;
    answer.assert_problem(503, "too-many-in-flight");
    assert_eq!(harness.runs(), 0);
}

#[tokio::test]
async fn a_handler_that_needs_the_lease_says_when_there_is_none() {
    let harness = Harness::new();
    let app = axum::Router::new()
        .route("/", axum::routing::post(|key: IdempotencyKey| async move { key.0.to_string() }))
        .layer(harness.layer());
    let without = Request::post("/").body(axum::body::Body::empty()).unwrap();
    let answer = send(&app, without).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(answer.text().contains("had no key"));
}

#[tokio::test]
async fn a_request_that_never_reached_the_service_may_be_sent_again() {
    let harness = Harness::new();
    let mut service = harness.service(|_| Err(NeverReached));
    for _ in 0..2 {
        let answer = TestResponse::read(service.call(charge("k", ORDER)).await.unwrap()).await;
        answer.assert_problem(502, "upstream-unreachable");
    }
    assert_eq!(harness.runs(), 2);
}

#[tokio::test]
async fn a_request_that_failed_after_it_was_sent_is_held() {
    let harness = Harness::new();
    let mut service = harness.service(|_| Err(std::fmt::Error));
    let answer = TestResponse::read(service.call(charge("k", ORDER)).await.unwrap()).await;
    answer.assert_problem(504, "upstream-timeout");
    let answer = TestResponse::read(service.call(charge("k", ORDER)).await.unwrap()).await;
    answer.assert_problem(423, "outcome-unknown");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_route_that_says_fail_replays_its_failure() {
    let harness =
        Harness::new().policy(Policy { on_unknown: OnUnknown::Fail, ..Policy::default() });
    let mut service = harness.service(|_| Err(std::fmt::Error));
    // The first client gets what every repeat will get, once it is durable.
    for replayed in [false, true] {
        let answer = TestResponse::read(service.call(charge("k", ORDER)).await.unwrap()).await;
        answer.assert_problem(500, "operation-failed");
        assert_eq!(answer.is_replayed(), replayed);
    }
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_panicking_handler_has_an_unknown_outcome() {
    let harness = Harness::new();
    let app = harness.app(|run| async move { assert_eq!(run, 0, "on purpose") });
    send(&app, charge("k", ORDER)).await.assert_problem(504, "upstream-timeout");
    send(&app, charge("k", ORDER)).await.assert_problem(423, "outcome-unknown");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unrecorded_operation_is_not_acknowledged() {
    let harness = Harness::new();
    let app = harness.app(|_| async { "charged" });
    harness.store.set(StoreCall::Finish, StoreCondition::Unavailable);
    send(&app, charge("k", ORDER)).await.assert_problem(504, "outcome-unknown");
    harness.store.set(StoreCall::Finish, StoreCondition::Available);
    wait_until(|| harness.semel.in_flight() == 0).await;
    let answer = TestResponse::read(begin(&app, charge("k", ORDER)).await).await;
    assert_eq!((answer.text(), answer.is_replayed(), harness.runs()), ("charged", true, 1));
}
