//! Keys that the server issues.

use std::time::Duration;

use axum::{Router, body::Body};
use http::{Request, StatusCode};
use semel::core::Policy;
use semel_testkit::flaky_store::{StoreCall, StoreCondition};
use semel_tower::{IssuedKeys, Secret};
use serde_json::Value;

use crate::harness::{Harness, ORDER, TestResponse, charge, send};

const PATH: &str = "/idempotency-tokens";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn rule(lifetime: Duration) -> IssuedKeys {
    let secret = Secret::new("a secret that all processes share").unwrap();
    IssuedKeys::new(&secret, PATH, lifetime).required()
}

fn app_of(harness: &Harness, lifetime: Duration) -> Router {
    harness.app_with(harness.layer().issued_keys(rule(lifetime)), |run| async move {
        (StatusCode::CREATED, run.to_string())
    })
}

fn as_merchant(name: &str, mut request: Request<Body>) -> Request<Body> {
    request.headers_mut().insert("x-merchant", name.parse().unwrap());
    request
}

async fn ask(app: &Router, merchant: &str) -> TestResponse {
    send(app, as_merchant(merchant, Request::post(PATH).body(Body::empty()).unwrap())).await
}

async fn token(app: &Router, merchant: &str) -> String {
    let answer = ask(app, merchant).await;
    assert_eq!(
        (answer.status, answer.header("cache-control")),
        (201.try_into().unwrap(), Some("no-store"))
    );
    let document: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(document["scope"], "payments");
    assert!(document["expires_at"].as_str().unwrap().ends_with('Z'), "{document}");
    document["token"].as_str().unwrap().to_owned()
}

async fn pay(app: &Router, merchant: &str, key: &str) -> TestResponse {
    send(app, as_merchant(merchant, charge(key, ORDER))).await
}

fn assert_refused(answer: &TestResponse) {
    answer.assert_problem(422, "token-invalid");
    assert_eq!(answer.header("x-should-retry"), Some("false"));
}

#[tokio::test]
async fn an_issued_key_runs_once_for_its_caller_and_for_no_other() {
    let harness = Harness::new();
    let app = app_of(&harness, DAY);
    let key = token(&app, "7").await;
    assert_ne!(key, token(&app, "7").await);
    assert_refused(&pay(&app, "8", &key).await);
    let first = pay(&app, "7", &key).await;
    pay(&app, "7", &key).await.assert_replay_of(&first);
    for foreign in ["order-7", "st1.AAAA", &key.to_lowercase(), &format!("{key}A")] {
        assert_refused(&pay(&app, "7", foreign).await);
    }
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn an_anonymous_caller_gets_no_key() {
    let harness = Harness::new();
    let answer =
        send(&app_of(&harness, DAY), Request::post(PATH).body(Body::empty()).unwrap()).await;
    answer.assert_problem(403, "caller-unidentified");
}

#[tokio::test]
async fn a_key_is_verified_without_a_store_call() {
    let harness = Harness::new();
    let app = app_of(&harness, DAY);
    let key = token(&app, "7").await;
    assert_refused(&pay(&app, "8", &key).await);
    for call in [StoreCall::Get, StoreCall::Claim] {
        assert_eq!(harness.store.count(call), 0);
    }
    // A valid one costs the claim that every key costs.
    assert_eq!(pay(&app, "7", &key).await.status, 201);
    assert_eq!(
        (harness.store.count(StoreCall::Get), harness.store.count(StoreCall::Claim)),
        (0, 1)
    );
}

#[tokio::test]
async fn an_expired_key_is_not_used_for_the_first_time_and_leaves_no_record() {
    let harness = Harness::new();
    // A key that expires when it is issued.
    let app = app_of(&harness, Duration::ZERO);
    let key = token(&app, "7").await;
    assert_refused(&pay(&app, "7", &key).await);
    assert_eq!((harness.runs(), harness.store.count(StoreCall::Claim)), (0, 0));
    harness.store.set_all(StoreCondition::Unavailable);
    pay(&app, "7", &key).await.assert_problem(503, "store-unavailable");
}

#[tokio::test]
async fn an_operation_is_replayed_after_its_key_expired() {
    let harness = Harness::new();
    let app = app_of(&harness, Duration::from_secs(2));
    let key = token(&app, "7").await;
    let first = pay(&app, "7", &key).await;
    let restarted = app_of(&harness.second_process(), Duration::from_secs(2));
    // Only the wall clock can show that a key has expired.
    while seconds_left(&key) > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    pay(&app, "7", &key).await.assert_replay_of(&first);
    pay(&restarted, "7", &key).await.assert_replay_of(&first);
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_record_is_kept_until_its_key_has_expired() {
    let retention = Duration::from_secs(60);
    let harness = Harness::new().policy(Policy { retention, ..Policy::default() });
    let app = app_of(&harness, DAY);
    let key = token(&app, "7").await;
    let first = pay(&app, "7", &key).await;
    tokio::time::advance(Duration::from_secs(23 * 60 * 60)).await;
    pay(&app, "7", &key).await.assert_replay_of(&first);
    assert_eq!(harness.runs(), 1);
}

/// The seconds until a key expires.
fn seconds_left(key: &str) -> u64 {
    let bytes = data_encoding::BASE64URL_NOPAD.decode(&key.as_bytes()[4..]).unwrap();
    let expiry = u64::from_be_bytes(bytes[5..13].try_into().unwrap());
    #[expect(clippy::disallowed_methods, reason = "the expiry of a key is in wall time")]
    let now = std::time::SystemTime::now();
    expiry.saturating_sub(now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs())
}
