//! Pages of other origins: preflights, and headers for the origin that asks now.

use axum::{Router, body::Body, response::AppendHeaders};
use http::{Method, Request, StatusCode};
use semel::core::{Caller, Content, Key, RecordId, Scope, StateView, Store as _};
use semel_tower::{Cors, KeyRule};

use crate::harness::{Gate, Harness, ORDER, TestResponse, charge, send, wait_until};

const SHOP: &str = "https://shop.example";
const ADMIN: &str = "https://admin.example";

fn cors() -> Cors {
    Cors::with_credentials([SHOP.parse().unwrap(), ADMIN.parse().unwrap()])
}

fn from(origin: &str, mut request: Request<Body>) -> Request<Body> {
    request.headers_mut().insert("origin", origin.parse().unwrap());
    request
}

fn preflight(origin: &str, path: &str, method: &str) -> Request<Body> {
    let request = Request::options(path).header("access-control-request-method", method);
    from(origin, request.body(Body::empty()).unwrap())
}

/// The allowed origin, if the page may read the headers of the layer.
fn readable_by(answer: &TestResponse) -> Option<&str> {
    let exposed = answer.header("access-control-expose-headers")?;
    assert!(exposed.contains("idempotent-replayed, idempotency-problem"), "{exposed}");
    answer.header("access-control-allow-origin")
}

/// An app whose service has a CORS rule of its own, for one origin.
fn app(harness: &Harness, layer: semel_tower::IdempotencyLayer) -> Router {
    harness.app_with(layer, |run| async move {
        let headers = AppendHeaders([
            ("access-control-allow-origin", SHOP),
            ("access-control-allow-origin", "https://service.example"),
            ("access-control-expose-headers", "x-of-the-service"),
            ("vary", "accept"),
        ]);
        (StatusCode::CREATED, headers, format!("charge {run}"))
    })
}

#[tokio::test]
async fn a_preflight_is_answered_before_any_other_check() {
    let harness = Harness::new();
    let key = KeyRule::default().required();
    let app = app(&harness, harness.layer().key(key).cors(cors()));
    let answer = send(&app, preflight(SHOP, "/charges", "POST")).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(answer.header("access-control-allow-origin"), Some(SHOP));
    assert_eq!(answer.header("access-control-allow-credentials"), Some("true"));
    assert_eq!(answer.header("access-control-allow-methods"), Some("POST, PATCH, GET, HEAD"));
    let allowed = answer.header("access-control-allow-headers").unwrap();
    assert_eq!(allowed, "content-type, authorization, idempotency-key, x-merchant");
    let other = send(&app, preflight("https://other.example", "/charges", "POST")).await;
    assert_eq!(other.status, StatusCode::NO_CONTENT);
    assert_eq!(other.header("access-control-allow-origin"), None);
    assert_eq!(harness.runs(), 0);
    // Without these headers OPTIONS is a request like any other.
    let options = Request::options("/charges").body(Body::empty()).unwrap();
    assert_eq!(send(&app, options).await.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_replay_has_the_headers_for_the_origin_that_asks_now() {
    let harness = Harness::new();
    let app = app(&harness, harness.layer().cors(cors()));
    let first = send(&app, from(SHOP, charge("k", ORDER))).await;
    assert_eq!(readable_by(&first), Some(SHOP));
    assert_eq!(first.headers.get_all("access-control-allow-origin").iter().count(), 1);
    assert_eq!(first.headers.get_all("vary").iter().count(), 2);
    let exposed = first.header("access-control-expose-headers").unwrap();
    assert!(!exposed.contains("x-of-the-service"), "{exposed}");
    let second = send(&app, from(ADMIN, charge("k", ORDER))).await;
    assert!(second.is_replayed());
    assert_eq!((readable_by(&second), second.text()), (Some(ADMIN), "charge 1"));
    let other = send(&app, from("https://other.example", charge("k", ORDER))).await;
    assert!(other.is_replayed());
    assert_eq!(readable_by(&other), None);
    let no_page = send(&app, charge("k", ORDER)).await;
    let is_cors = |name: &http::HeaderName| name.as_str().starts_with("access-control-");
    assert!(!no_page.headers.keys().any(is_cors), "{no_page:?}");
    assert_eq!(no_page.headers.get_all("vary").iter().count(), 2);
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn nothing_of_it_is_recorded() {
    let harness = Harness::new();
    let app = app(&harness, harness.layer().cors(cors()));
    send(&app, from(SHOP, charge("k", ORDER))).await;
    let key = Key::new("k").unwrap();
    let id = RecordId::new(Scope::new("payments").unwrap(), Caller::anonymous(), key);
    let record = harness.store.get(&id).await.unwrap().unwrap();
    let StateView::Completed { answer, .. } = record.state else { panic!("{record:?}") };
    let Content::Response(stored) = answer.read().unwrap() else { panic!("{answer:?}") };
    let names: Vec<&[u8]> = stored.headers.iter().map(|field| &*field.name).collect();
    assert!(names.contains(&&b"vary"[..]), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with(b"access-control-")), "{names:?}");
}

#[tokio::test]
async fn a_joined_request_has_the_headers_for_its_own_origin() {
    let harness = Harness::new();
    let gate = Gate::new();
    let opened = gate.clone();
    let app = harness.app_with(harness.layer().cors(cors()), move |run| {
        let gate = opened.clone();
        async move {
            gate.wait_open().await;
            (AppendHeaders([("access-control-allow-origin", SHOP)]), run.to_string())
        }
    });
    let ask = |origin: &'static str| {
        let app = app.clone();
        tokio::spawn(async move { send(&app, from(origin, charge("k", ORDER))).await })
    };
    let first = ask(SHOP);
    wait_until(|| harness.runs() == 1).await;
    let (second, third) = (ask(ADMIN), ask("https://other.example"));
    wait_until(|| harness.semel.waiting() == 2).await;
    gate.open();
    assert_eq!(readable_by(&first.await.unwrap()), Some(SHOP));
    assert_eq!(readable_by(&second.await.unwrap()), Some(ADMIN));
    assert_eq!(readable_by(&third.await.unwrap()), None);
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_page_can_read_a_problem_and_what_is_not_guarded() {
    let harness = Harness::new();
    let app = app(&harness, harness.layer().key(KeyRule::default().required()).cors(cors()));
    let keyless = Request::post("/charges").body(Body::empty()).unwrap();
    let missing = send(&app, from(SHOP, keyless)).await;
    missing.assert_problem(400, "key-missing");
    assert_eq!(readable_by(&missing), Some(SHOP));
    send(&app, from(SHOP, charge("k", ORDER))).await;
    let reused = send(&app, from(ADMIN, charge("k", "{}"))).await;
    reused.assert_problem(422, "key-reused");
    assert_eq!(readable_by(&reused), Some(ADMIN));
    let get = Request::get("/charges").body(Body::empty()).unwrap();
    let passed = send(&app, from(ADMIN, get)).await;
    assert_eq!(
        (passed.status, readable_by(&passed)),
        (StatusCode::METHOD_NOT_ALLOWED, Some(ADMIN))
    );
}

#[tokio::test]
async fn an_observing_layer_and_one_without_a_rule_leave_the_headers_to_the_service() {
    for layer in [
        |harness: &Harness| harness.layer(),
        |harness: &Harness| harness.layer().cors(cors()).observe(),
    ] {
        let harness = Harness::new();
        let app = app(&harness, layer(&harness));
        let answer = send(&app, from(ADMIN, charge("k", ORDER))).await;
        assert_eq!(answer.header("access-control-allow-origin"), Some(SHOP));
        let preflighted = send(&app, preflight(SHOP, "/charges", Method::POST.as_str())).await;
        assert_eq!(preflighted.status, StatusCode::METHOD_NOT_ALLOWED);
    }
}
