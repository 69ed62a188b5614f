//! Keys of different callers are separate.

use http::{HeaderName, HeaderValue};
use semel::core::{Caller, Scope};
use semel_tower::{BoxError, Callers, IdempotencyLayer, KeyRule, Secret};

use crate::harness::{Harness, ORDER, charge, send};

fn by(header: &'static str, value: &'static str) -> http::Request<axum::body::Body> {
    let mut request = charge("k", ORDER);
    request.headers_mut().insert(header, value.parse().unwrap());
    request
}

#[tokio::test]
async fn each_caller_has_keys_of_its_own() {
    let harness = Harness::new();
    let secret = Secret::new("0123456789abcdef").unwrap();
    let callers = Callers::authorization(&secret)
        .or(Callers::credential_header(HeaderName::from_static("x-api-key"), &secret))
        .or(Callers::header(HeaderName::from_static("x-merchant")).unwrap())
        .or(Callers::cookie("sid", &secret))
        .or(Callers::anonymous());
    let layer = IdempotencyLayer::new(&harness.semel, Scope::new("payments").unwrap(), callers);
    let app = harness.app_with(layer, |run| async move { run.to_string() });
    let requests = || {
        [
            by("authorization", "Bearer one"),
            by("authorization", "Bearer two"),
            by("authorization", "Basic one"),
            by("x-api-key", "one"),
            by("x-merchant", "one"),
            by("cookie", "sid=one"),
            charge("k", ORDER),
        ]
    };
    for (request, run) in requests().into_iter().zip(1..) {
        let answer = send(&app, request).await;
        assert_eq!((answer.text(), answer.is_replayed()), (run.to_string().as_str(), false));
    }
    for (request, run) in requests().into_iter().zip(1..) {
        let answer = send(&app, request).await;
        assert_eq!((answer.text(), answer.is_replayed()), (run.to_string().as_str(), true));
    }
    assert_eq!(harness.runs(), 7);
}

#[tokio::test]
async fn a_credential_that_changes_is_refused_and_nothing_runs() {
    let harness = Harness::new();
    let secret = Secret::new("0123456789abcdef").unwrap();
    let callers = Callers::authorization(&secret).or(Callers::anonymous());
    let layer = IdempotencyLayer::new(&harness.semel, Scope::new("payments").unwrap(), callers);
    let app = harness.app_with(layer, |_| async { "ok" });
    for value in ["Bearer eyJhbGciOiJIUzI1NiJ9.e30.c2ln", "Digest a=b"] {
        send(&app, by("authorization", value)).await.assert_problem(403, "caller-unidentified");
    }
    let answer = send(&app, by("x-api-key", "one")).await;
    answer.assert_problem(403, "caller-unidentified");
    assert!(answer.text().contains("x-api-key"));
    assert_eq!(harness.runs(), 0);
}

#[tokio::test]
async fn scopes_have_keys_of_their_own() {
    let harness = Harness::new();
    let app = |name| {
        let scope = Scope::new(name).unwrap();
        let layer = IdempotencyLayer::new(&harness.semel, scope, Callers::anonymous());
        harness.app_with(layer, |run| async move { run.to_string() })
    };
    assert_eq!(send(&app("payments"), charge("k", ORDER)).await.text(), "1");
    assert_eq!(send(&app("refunds"), charge("k", ORDER)).await.text(), "2");
    assert_eq!(send(&app("payments"), charge("k", ORDER)).await.text(), "1");
}

#[tokio::test]
async fn a_name_that_cannot_be_used_is_not_anonymous() {
    let harness = Harness::new();
    let tenant = Callers::from_fn(|request| {
        let tenant = request.headers.get("x-tenant");
        tenant.map(|tenant| Caller::new(tenant.to_str()?).map_err(BoxError::from)).transpose()
    });
    let scope = Scope::new("payments").unwrap();
    let layer = IdempotencyLayer::new(&harness.semel, scope, tenant.or(Callers::anonymous()));
    let app = harness.app_with(layer, |run| async move { run.to_string() });
    for name in ["müller", "jäger", ""] {
        let mut request = charge("k", ORDER);
        let name = HeaderValue::from_bytes(name.as_bytes()).unwrap();
        request.headers_mut().insert("x-tenant", name);
        send(&app, request).await.assert_problem(403, "caller-unidentified");
    }
    assert_eq!(harness.runs(), 0);
}

#[tokio::test]
async fn the_header_of_the_key_is_no_credential() {
    let harness = Harness::new();
    let name = HeaderName::from_static("x-order-key");
    let layer = harness.layer().key(KeyRule::header(name).or(KeyRule::default()));
    let app = harness.app_with(layer, |run| async move { run.to_string() });
    let request = || {
        let mut request = by("x-order-key", "o-1");
        request.headers_mut().remove("idempotency-key");
        request
    };
    assert_eq!(send(&app, request()).await.text(), "1");
    assert!(send(&app, request()).await.is_replayed());
    let other = harness.app(|run| async move { run.to_string() });
    send(&other, by("x-order-key", "o-1")).await.assert_problem(403, "caller-unidentified");
    assert_eq!(harness.runs(), 1);
}
