//! `GET /idempotency/{key}`: a caller looks up its own operation, and only that.

use axum::{Router, body::Body};
use http::{Request, StatusCode};
use semel::{
    Semel,
    core::{OnUnknown, Policy},
};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};
use semel_tower::{Callers, KeyRule};
use serde_json::Value;

use crate::harness::{Gate, Harness, ORDER, TestResponse, charge, send, wait_until};

fn as_merchant(name: &str, mut request: Request<Body>) -> Request<Body> {
    request.headers_mut().insert("x-merchant", name.parse().unwrap());
    request
}

fn look_up(key: &str) -> Request<Body> {
    Request::get(format!("/idempotency/{key}")).body(Body::empty()).unwrap()
}

/// The status and the document for merchant 7.
async fn seen(app: &Router, key: &str) -> (u16, Value) {
    let answer = send(app, as_merchant("7", look_up(key))).await;
    document(&answer)
}

fn document(answer: &TestResponse) -> (u16, Value) {
    assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    (answer.status.as_u16(), serde_json::from_slice(&answer.body).unwrap())
}

fn app<F, Fut, R>(harness: &Harness, handler: F) -> Router
where
    F: Fn(u32) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: axum::response::IntoResponse,
{
    let path = "/idempotency/{key}".parse().unwrap();
    harness.app_with(harness.layer().lookup(path), handler)
}

#[tokio::test]
async fn the_caller_gets_the_state_and_the_answer_and_nothing_runs() {
    let harness = Harness::new();
    let gate = Gate::new();
    let opened = gate.clone();
    let app = app(&harness, move |run| {
        let gate = opened.clone();
        async move {
            gate.wait_open().await;
            (StatusCode::CREATED, [("location", "/charges/1"), ("x-trace", "t")], run.to_string())
        }
    });
    assert_eq!(seen(&app, "a%2Fb").await, (404, serde_json::json!({ "state": "absent" })));
    let running = app.clone();
    let first =
        tokio::spawn(async move { send(&running, as_merchant("7", charge("a/b", ORDER))).await });
    wait_until(|| harness.runs() == 1).await;
    let running = send(&app, as_merchant("7", look_up("a%2Fb"))).await;
    assert_eq!(running.header("retry-after"), Some("1"));
    let (status, running) = document(&running);
    assert_eq!((status, running["state"].as_str()), (200, Some("in_flight")));
    gate.open();
    let first = first.await.unwrap();
    let (status, completed) = seen(&app, "a%2Fb").await;
    assert_eq!((status, completed["state"].as_str()), (200, Some("completed")));
    assert_eq!(completed["attempt"], 1);
    assert!(completed["claimed_at"].as_str().unwrap() < completed["expires_at"].as_str().unwrap());
    let answer = &completed["answer"];
    assert_eq!(
        (answer["status"].as_u64(), answer["body"].as_str()),
        (Some(201), Some(first.text()))
    );
    let headers: Vec<(String, String)> = serde_json::from_value(answer["headers"].clone()).unwrap();
    let named = |name: &str| headers.iter().any(|(one, _)| one == name);
    assert!(named("location") && !named("x-trace"), "{headers:?}");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn the_record_of_another_caller_is_absent_and_an_anonymous_one_is_refused() {
    let harness = Harness::new();
    let app = app(&harness, |run| async move { format!("charge {run}") });
    send(&app, as_merchant("7", charge("k", ORDER))).await;
    send(&app, charge("k", ORDER)).await;
    assert_eq!(seen(&app, "k").await.1["answer"]["body"], "charge 1");
    let absent = send(&app, as_merchant("8", look_up("unknown"))).await;
    let other = send(&app, as_merchant("8", look_up("k"))).await;
    assert_eq!(other, absent);
    assert_eq!(other.status, StatusCode::NOT_FOUND);
    let anonymous = send(&app, look_up("k")).await;
    anonymous.assert_problem(403, "caller-unidentified");
    let malformed = send(&app, as_merchant("7", look_up("%zz"))).await;
    malformed.assert_problem(400, "key-malformed");
    assert_eq!(harness.runs(), 2);
}

#[tokio::test]
async fn clients_of_one_host_do_not_see_the_operations_of_each_other() {
    for callers in [Callers::host(), Callers::host().and(Callers::anonymous())] {
        let harness = Harness::new();
        let layer = harness.layer().callers(callers).lookup("/idempotency/{key}".parse().unwrap());
        let app = harness.app_with(layer, |run| async move { format!("charge {run}") });
        let at_shop = |mut request: Request<Body>| {
            request.headers_mut().insert("host", "shop.example".parse().unwrap());
            request
        };
        assert_eq!(send(&app, at_shop(charge("k", ORDER))).await.text(), "charge 1");
        let other = send(&app, at_shop(look_up("k"))).await;
        other.assert_problem(403, "caller-unidentified");
    }
}

#[tokio::test]
async fn a_key_from_a_body_is_found_by_its_text() {
    let harness = Harness::new();
    let key = KeyRule::default().or(KeyRule::json("/order".parse().unwrap()));
    let layer = harness.layer().key(key).lookup("/idempotency/{key}".parse().unwrap());
    let app = harness.app_with(layer, |run| async move { format!("charge {run}") });
    let texts = [("a%b", "a%25b"), ("x,y", "x%2Cy"), ("PO 4711", "PO%204711"), ("ü", "%C3%BC")];
    for (number, (text, encoded)) in texts.into_iter().enumerate() {
        assert_eq!(seen(&app, encoded).await.0, 404, "{text}");
        let request = Request::post("/charges").header("content-type", "application/json");
        let body = serde_json::json!({ "order": text }).to_string();
        send(&app, as_merchant("7", request.body(body.into()).unwrap())).await;
        let (status, document) = seen(&app, encoded).await;
        let answer = format!("charge {}", number + 1);
        assert_eq!((status, document["answer"]["body"].as_str()), (200, Some(&*answer)), "{text}");
    }
}

#[tokio::test]
async fn every_end_is_shown() {
    let ends = [
        (OnUnknown::Hold, StatusCode::INTERNAL_SERVER_ERROR, "held", Value::Null),
        (OnUnknown::Rerun, StatusCode::INTERNAL_SERVER_ERROR, "released", Value::Null),
        (OnUnknown::Hold, StatusCode::TOO_MANY_REQUESTS, "released", Value::Null),
        (OnUnknown::Fail, StatusCode::INTERNAL_SERVER_ERROR, "completed", 500.into()),
        (OnUnknown::Hold, StatusCode::PAYMENT_REQUIRED, "completed", 402.into()),
    ];
    for (on_unknown, status, state, shown) in ends {
        let harness = Harness::new().policy(Policy { on_unknown, ..Policy::default() });
        let app = app(&harness, move |_| async move { status });
        send(&app, as_merchant("7", charge("k", ORDER))).await;
        let (found, document) = seen(&app, "k").await;
        assert_eq!((found, document["state"].as_str()), (200, Some(state)), "{status}");
        assert_eq!(document["answer"]["status"], shown);
    }
}

#[tokio::test]
async fn bytes_and_answers_that_are_not_retained_are_shown_as_such() {
    let policy = Policy { response_bytes_max: 4, ..Policy::default() };
    let harness = Harness::new().policy(policy);
    let app = app(&harness, |run| async move { vec![0xff; if run == 1 { 3 } else { 5 }] });
    send(&app, as_merchant("7", charge("short", ORDER))).await;
    send(&app, as_merchant("7", charge("long", ORDER))).await;
    let short = &seen(&app, "short").await.1["answer"];
    assert_eq!((short["body_base64"].as_str(), &short["body"]), (Some("////"), &Value::Null));
    let long = &seen(&app, "long").await.1["answer"];
    assert_eq!((long["status"].as_u64(), long["retained"].as_bool()), (Some(200), Some(false)));
}

#[tokio::test]
async fn look_ups_count_as_waiting_requests_of_the_caller_and_need_the_store() {
    let mut harness = Harness::new();
    harness.semel = Semel::builder(harness.store.clone()).per_caller_max(1).build();
    let app = app(&harness, |run| async move { format!("charge {run}") });
    harness.store.set(StoreCall::Get, StoreCondition::Hanging);
    let hanging = app.clone();
    let first = tokio::spawn(async move { seen(&hanging, "k").await });
    wait_until(|| harness.semel.waiting() == 1).await;
    let second = send(&app, as_merchant("7", look_up("k"))).await;
    second.assert_problem(503, "too-many-in-flight");
    harness.store.set(StoreCall::Get, StoreCondition::Unavailable);
    let unavailable = send(&app, as_merchant("8", look_up("k"))).await;
    unavailable.assert_problem(503, "store-unavailable");
    harness.store.set(StoreCall::Get, StoreCondition::Available);
    assert_eq!(first.await.unwrap().0, 404);
    assert_eq!(harness.semel.waiting(), 0);
}
