//! What is refused before anything runs.

use http::{Request, StatusCode};
use semel::core::{OnStoreDown, OnUnknown, Policy, canonical::Pointer};
use semel_testkit::unsteady::{Verb, Weather};
use semel_tower::{Callers, IdempotencyKey, KeyRule, NeverReached};
use tower_service::Service;

use crate::bench::{Answer, Bench, Gate, ORDER, begin, charge, send, until};

async fn ok(_run: u32) -> &'static str {
    "ok"
}

#[tokio::test]
async fn a_route_that_requires_a_key_refuses_a_request_without() {
    let bench = Bench::new();
    let layer = bench.layer().key(KeyRule::default().required()).docs("https://example.org/d");
    let app = bench.app_with(layer, ok);
    let answer = send(&app, Request::post("/charges").body("x".into()).unwrap()).await;
    answer.is_problem(400, "key-missing");
    assert_eq!(answer.header("link"), Some("<https://example.org/d>; rel=\"describedby\""));
    assert_eq!(bench.runs(), 0);
}

#[tokio::test]
async fn a_key_that_one_of_two_rules_requires_is_required() {
    let bench = Bench::new();
    let in_body = KeyRule::json(Pointer::parse("/id").unwrap());
    let app = bench.app_with(bench.layer().key(KeyRule::default().or(in_body.required())), ok);
    let answer = send(&app, Request::post("/charges").body("{}".into()).unwrap()).await;
    answer.is_problem(400, "key-missing");
    assert_eq!(bench.runs(), 0);
}

#[tokio::test]
async fn a_malformed_key_is_never_taken_for_absent() {
    let bench = Bench::new();
    let app = bench.app(ok);
    for key in ["", "a b", "a, b", "\"a", &"x".repeat(256)] {
        send(&app, charge(key, ORDER)).await.is_problem(400, "key-malformed");
    }
    let mut twice = charge("a", ORDER);
    twice.headers_mut().append("idempotency-key", "a".parse().unwrap());
    send(&app, twice).await.is_problem(400, "key-malformed");
    assert_eq!(bench.runs(), 0);
}

#[tokio::test]
async fn a_body_that_is_not_what_it_says_is_refused() {
    let bench = Bench::new();
    let app = bench.app(ok);
    for body in ["{", r#"{"amount":1,"amount":2}"#] {
        send(&app, charge("k", body)).await.is_problem(400, "body-malformed");
    }
    assert_eq!(bench.runs(), 0);
}

#[tokio::test]
async fn a_caller_who_cannot_be_told_is_refused_before_the_body_is_read() {
    let bench = Bench::new();
    let merchant = Callers::header("x-merchant".parse().unwrap()).unwrap();
    let scope = semel::core::Scope::new("payments").unwrap();
    let layer = semel_tower::IdempotencyLayer::new(&bench.semel, scope, merchant);
    let app = bench.app_with(layer, ok);
    let answer = send(&app, charge("k", "{")).await;
    answer.is_problem(403, "caller-unidentified");
    assert!(answer.text().contains("x-merchant"), "{}", answer.text());
    assert_eq!(bench.runs(), 0);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let bench = Bench::new().policy(Policy { request_bytes_max: 10, ..Policy::default() });
    let app = bench.app(ok);
    send(&app, charge("k", ORDER)).await.is_problem(413, "body-too-large");
    let unguarded = Request::post("/charges").body(ORDER.into()).unwrap();
    assert_eq!(send(&app, unguarded).await.status, StatusCode::OK, "without a key it passes");
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn another_body_under_the_same_key_is_refused_at_once_also_in_flight() {
    let (bench, gate) = (Bench::new(), Gate::new());
    let app = bench.app({
        let gate = gate.clone();
        move |_| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                "ok"
            }
        }
    });
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, charge("k", ORDER)).await }
    });
    until(|| bench.runs() == 1).await;
    let other = || charge("k", r#"{"amount":1000,"to":"zoe"}"#);
    send(&app, other()).await.is_problem(422, "key-reused");
    gate.open();
    assert_eq!(first.await.unwrap().text(), "ok");
    send(&app, other()).await.is_problem(422, "key-reused");
    let spelled_anew = charge("k", r#"{ "to": "zoe", "amount": 1e2 }"#);
    assert!(send(&app, spelled_anew).await.is_replayed());
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn a_repeat_of_what_still_runs_is_told_so_after_its_wait() {
    let policy = Policy { wait: std::time::Duration::from_millis(20), ..Policy::default() };
    let (bench, gate) = (Bench::new().policy(policy), Gate::new());
    let app = bench.app({
        let gate = gate.clone();
        move |_| {
            let gate = gate.clone();
            async move { gate.pass().await }
        }
    });
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, charge("k", ORDER)).await }
    });
    until(|| bench.runs() == 1).await;
    let answer = send(&app, charge("k", ORDER)).await;
    answer.is_problem(409, "in-progress");
    assert_eq!(answer.header("retry-after"), Some("1"));
    let elsewhere = bench.neighbour().app(ok);
    send(&elsewhere, charge("k", ORDER)).await.is_problem(409, "in-progress");
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::OK);
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_its_store_nothing_runs_unless_the_route_says_so() {
    let bench = Bench::new();
    bench.store.set(Verb::Claim, Weather::Away);
    let answer = send(&bench.app(ok), charge("k", ORDER)).await;
    answer.is_problem(503, "store-unavailable");
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(bench.runs(), 0);

    let passing = bench.clone();
    let passing = passing.policy(Policy { on_store_down: OnStoreDown::Pass, ..Policy::default() });
    let answer = send(&passing.app(ok), charge("k", ORDER)).await;
    assert_eq!((answer.text(), bench.runs()), ("ok", 1));
}

#[tokio::test]
async fn a_busy_store_is_too_many_in_flight() {
    let bench = Bench::new();
    bench.store.set(Verb::Claim, Weather::Busy);
    let answer = send(&bench.app(ok), charge("k", ORDER)).await;
    answer.is_problem(503, "too-many-in-flight");
    assert_eq!(bench.runs(), 0);
}

#[tokio::test]
async fn a_handler_that_needs_the_lease_says_when_there_is_none() {
    let bench = Bench::new();
    let app = axum::Router::new()
        .route("/", axum::routing::post(|key: IdempotencyKey| async move { key.0.to_string() }))
        .layer(bench.layer());
    let without = Request::post("/").body(axum::body::Body::empty()).unwrap();
    let answer = send(&app, without).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(answer.text().contains("had no key"));
}

#[tokio::test]
async fn what_never_reached_the_service_may_be_sent_again() {
    let bench = Bench::new();
    let mut service = bench.service(|_| Err(NeverReached));
    for _ in 0..2 {
        let answer = Answer::read(service.call(charge("k", ORDER)).await.unwrap()).await;
        answer.is_problem(502, "upstream-unreachable");
    }
    assert_eq!(bench.runs(), 2);
}

#[tokio::test]
async fn what_was_sent_and_broke_is_held() {
    let bench = Bench::new();
    let mut service = bench.service(|_| Err(std::fmt::Error));
    let answer = Answer::read(service.call(charge("k", ORDER)).await.unwrap()).await;
    answer.is_problem(504, "upstream-timeout");
    let answer = Answer::read(service.call(charge("k", ORDER)).await.unwrap()).await;
    answer.is_problem(423, "outcome-unknown");
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn a_route_that_says_fail_replays_its_failure() {
    let bench = Bench::new().policy(Policy { on_unknown: OnUnknown::Fail, ..Policy::default() });
    let mut service = bench.service(|_| Err(std::fmt::Error));
    // The first client gets what every repeat will get, once it is durable.
    for replayed in [false, true] {
        let answer = Answer::read(service.call(charge("k", ORDER)).await.unwrap()).await;
        answer.is_problem(500, "operation-failed");
        assert_eq!(answer.is_replayed(), replayed);
    }
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn what_panics_is_unknown() {
    let bench = Bench::new();
    let app = bench.app(|run| async move { assert_eq!(run, 0, "on purpose") });
    send(&app, charge("k", ORDER)).await.is_problem(504, "upstream-timeout");
    send(&app, charge("k", ORDER)).await.is_problem(423, "outcome-unknown");
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_recorded_is_not_acknowledged() {
    let bench = Bench::new();
    let app = bench.app(|_| async { "charged" });
    bench.store.set(Verb::Record, Weather::Away);
    send(&app, charge("k", ORDER)).await.is_problem(504, "outcome-unknown");
    bench.store.set(Verb::Record, Weather::Fair);
    until(|| bench.semel.in_flight() == 0).await;
    let answer = Answer::read(begin(&app, charge("k", ORDER)).await).await;
    assert_eq!((answer.text(), answer.is_replayed(), bench.runs()), ("charged", true, 1));
}
