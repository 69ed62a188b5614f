//! Which requests a webhook signature protects, and how it changes the fingerprint.

use axum::{
    Router,
    body::Body,
    routing::{any, post},
};
use data_encoding::{BASE64, HEXLOWER};
use http::{HeaderName, Method, Request, StatusCode};
use semel::core::{Policy, canonical::Pointer};
use semel_testkit::flaky_store::StoreCall;
use semel_tower::{HmacScheme, IdempotencyLayer, KeyRule, Signature, Streaming};

use crate::{
    harness::{Harness, send},
    webhooks::{
        NOW, SECRET, by_github, by_stripe, event, github, inbox, mac, now, source, standard, stripe,
    },
};

const SIGNATURE_INVALID: &str = "signature-invalid";

fn hmac() -> Signature {
    Signature::hmac(HmacScheme::new(HeaderName::from_static("x-signature")), [SECRET]).unwrap()
}

/// A webhook event with a signed body and unsigned headers.
fn signed(headers: &[(&str, &str)], body: &str) -> Request<Body> {
    let signature = HEXLOWER.encode(&mac(SECRET.as_bytes(), &[body]));
    event(&[headers, &[("x-signature", signature.as_str())]].concat(), body)
}

#[tokio::test]
async fn a_route_with_a_signature_is_guarded_even_if_its_layer_observes() {
    let harness = Harness::new();
    let layer = IdempotencyLayer::inbox(&harness.semel, source(), by_github()).observe();
    let app = harness.app_with(layer, |run| async move { run.to_string() });
    send(&app, event(&[("x-github-delivery", "d")], "{}"))
        .await
        .assert_problem(401, SIGNATURE_INVALID);
    let mut forged = github("d", "{}");
    *forged.body_mut() = Body::from("[]");
    send(&app, forged).await.assert_problem(401, SIGNATURE_INVALID);
    assert_eq!((harness.runs(), harness.store.count(StoreCall::Claim)), (0, 0));
    assert_eq!(send(&app, github("d", "{}")).await.text(), "1");
    assert!(send(&app, github("d", "{}")).await.is_replayed(), "it is guarded");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn no_method_passes_unverified() {
    let harness = Harness::new();
    let counted = harness.clone();
    let handler = move |body: String| {
        let run = counted.run();
        async move { format!("{run} {body}") }
    };
    let layer = IdempotencyLayer::inbox(&harness.semel, source(), by_github());
    let app: Router = Router::new().route("/charges", any(handler)).layer(layer);
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::OPTIONS] {
        let with = |mut request: Request<Body>| {
            *request.method_mut() = method.clone();
            request
        };
        let before = harness.runs();
        send(&app, with(event(&[], "{}"))).await.assert_problem(401, SIGNATURE_INVALID);
        let mut forged = with(github("d", "{}"));
        *forged.body_mut() = Body::from("[]");
        send(&app, forged).await.assert_problem(401, SIGNATURE_INVALID);
        assert_eq!(harness.runs(), before, "{method}");
        // Requests with other methods are not guarded, so each one runs, with its body.
        for run in [before + 1, before + 2] {
            let answer = send(&app, with(github("d", "{}"))).await;
            assert_eq!((answer.status, answer.text()), (StatusCode::OK, &*format!("{run} {{}}")));
        }
    }
}

#[tokio::test]
async fn an_outer_layer_of_the_same_scope_does_not_disable_verification() {
    let harness = Harness::new();
    let counted = harness.clone();
    let handler = move |body: String| {
        counted.run();
        async move { body }
    };
    let app: Router = Router::new()
        .route("/charges", post(handler))
        .layer(harness.layer().signature(by_github()))
        .layer(harness.layer());
    let keyed = |mut request: Request<Body>, key: &str| {
        request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        request
    };
    send(&app, keyed(event(&[], "{}"), "a")).await.assert_problem(401, SIGNATURE_INVALID);
    let mut forged = keyed(github("d", "{}"), "b");
    *forged.body_mut() = Body::from("[]");
    send(&app, forged).await.assert_problem(401, SIGNATURE_INVALID);
    assert_eq!(harness.runs(), 0);
    assert_eq!(send(&app, keyed(github("d", "{}"), "c")).await.text(), "{}");
    assert!(send(&app, keyed(github("d", "{}"), "c")).await.is_replayed());
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_redelivery_gets_only_the_status_if_the_answer_was_not_retained() {
    let large = || (StatusCode::ACCEPTED, Body::from(vec![b' '; 2 << 20]));
    let streams = || (StatusCode::ACCEPTED, Body::from("a stream"));
    for streaming in [false, true] {
        let harness = Harness::new();
        let layer = IdempotencyLayer::inbox(&harness.semel, source(), by_github())
            .policy(Policy::default());
        let app = harness.app_with(layer, move |_| async move {
            let (status, body) = if streaming { streams() } else { large() };
            let mut response = http::Response::new(body);
            *response.status_mut() = status;
            if streaming {
                response.extensions_mut().insert(Streaming);
            }
            response
        });
        assert!(!send(&app, github("d", "{}")).await.body.is_empty());
        let again = send(&app, github("d", "{}")).await;
        assert_eq!((again.status, again.text()), (StatusCode::ACCEPTED, ""));
        assert!(again.is_replayed());
        assert_eq!(again.header("idempotency-problem"), None);
        assert_eq!(harness.runs(), 1);
    }
}

#[tokio::test]
async fn the_query_of_an_event_is_not_part_of_the_fingerprint() {
    let harness = Harness::new();
    let app = inbox(&harness, by_github());
    for (query, replayed) in [("", false), ("?attempt=2", true)] {
        let mut request = github("d", "{}");
        *request.uri_mut() = format!("/charges{query}").parse().unwrap();
        let answer = send(&app, request).await;
        assert_eq!((answer.text(), answer.is_replayed()), ("1", replayed));
    }
}

#[tokio::test]
async fn another_body_with_an_unsigned_event_id_is_refused_as_key_reused() {
    let harness = Harness::new();
    let app = inbox(&harness, by_github());
    assert_eq!(send(&app, github("d", r#"{"a":1}"#)).await.text(), "1");
    send(&app, github("d", r#"{"a":2}"#)).await.assert_problem(422, "key-reused");
    let harness = Harness::new();
    let named = KeyRule::header(HeaderName::from_static("x-event-id")).required();
    let layer = IdempotencyLayer::inbox(&harness.semel, source(), hmac()).key(named);
    let app = harness.app_with(layer, |run| async move { run.to_string() });
    let event = |body| signed(&[("x-event-id", "e")], body);
    assert_eq!(send(&app, event(r#"{"a":1}"#)).await.text(), "1");
    send(&app, event(r#"{"a":2}"#)).await.assert_problem(422, "key-reused");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn another_body_with_a_signed_event_id_is_replayed() {
    let secret = format!("whsec_{}", BASE64.encode(SECRET.as_bytes()));
    let by_standard = Signature::standard_webhooks([secret]).unwrap().clock(now);
    let harness = Harness::new();
    let in_body = KeyRule::json(Pointer::parse("/id").unwrap()).required();
    let json_key_app = IdempotencyLayer::inbox(&harness.semel, source(), hmac()).key(in_body);
    let json_key_app = harness.app_with(json_key_app, |run| async move { run.to_string() });
    let (one, other) = (r#"{"id":"e","n":1}"#, r#"{"id":"e","n":2}"#);
    type Signed<'a> = &'a dyn Fn(&'static str) -> Request<Body>;
    let apps: [(Router, Signed<'_>); 3] = [
        (inbox(&Harness::new(), by_standard), &|body| standard("m", NOW, body)),
        (inbox(&Harness::new(), by_stripe()), &|body| stripe(SECRET, NOW, body)),
        (json_key_app, &|body| signed(&[], body)),
    ];
    for (app, event) in apps {
        assert_eq!(send(&app, event(one)).await.text(), "1");
        let again = send(&app, event(other)).await;
        assert_eq!((again.text(), again.is_replayed()), ("1", true));
    }
}

#[tokio::test]
async fn unsigned_headers_do_not_override_the_signed_id_of_a_cloud_event() {
    let harness = Harness::new();
    let layer = IdempotencyLayer::inbox(&harness.semel, source(), hmac())
        .key(KeyRule::cloud_event().required());
    let app = harness.app_with(layer, |run| async move { run.to_string() });
    let event = |headers: &[(&str, &str)], data: u32| {
        let body = format!(r#"{{"source":"/a","id":"1","data":{data}}}"#);
        let mut request = signed(headers, &body);
        let kind = "application/cloudevents+json".parse().unwrap();
        request.headers_mut().insert("content-type", kind);
        request
    };
    assert_eq!(send(&app, event(&[], 1)).await.text(), "1");
    assert!(send(&app, event(&[], 2)).await.is_replayed(), "its id is signed");
    let renamed = event(&[("ce-source", "/a"), ("ce-id", "2")], 1);
    assert!(send(&app, renamed).await.is_replayed());
    assert_eq!(harness.runs(), 1);
}
