//! What a request is about: its host and headers, its caller of several parts, its key in the body.

use axum::{Extension, Router, body::Body, routing::post};
use http::{HeaderName, Request, StatusCode};
use semel::core::{FingerprintHeader, FingerprintRule, Scope, canonical::Pointer};
use semel_tower::{Callers, CaptureSource, IdempotencyLayer, KeyRule, Secret, Subject};

use crate::harness::{Harness, ORDER, TestResponse, charge, send};

const ACCOUNT: HeaderName = HeaderName::from_static("stripe-account");

fn with(lines: &[(&'static str, &'static str)]) -> Request<Body> {
    let mut request = charge("k", ORDER);
    for (name, value) in lines {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    request
}

fn numbered(harness: &Harness, layer: IdempotencyLayer) -> Router {
    harness.app_with(layer, |run| async move { run.to_string() })
}

fn by(harness: &Harness, callers: Callers) -> Router {
    let scope = Scope::new("payments").unwrap();
    numbered(harness, IdempotencyLayer::new(&harness.semel, scope, callers))
}

fn secret() -> Secret {
    Secret::new("0123456789abcdef").unwrap()
}

/// The number of the run, and whether it is a replay.
fn run(answer: &TestResponse) -> (&str, bool) {
    (answer.text(), answer.is_replayed())
}

#[tokio::test]
async fn another_hosts_request_is_never_answered_with_this_ones_answer() {
    let harness = Harness::new();
    let app = numbered(&harness, harness.layer());
    assert_eq!(run(&send(&app, with(&[("host", "shop-a.example")])).await), ("1", false));
    send(&app, with(&[("host", "shop-b.example")])).await.assert_problem(422, "key-reused");
    let spelled = with(&[("host", "SHOP-A.example.:8443")]);
    assert_eq!(run(&send(&app, spelled).await), ("1", true), "one host has one spelling");
    let mut absolute = with(&[("host", "shop-b.example")]);
    *absolute.uri_mut() = "http://shop-a.example/charges".parse().unwrap();
    assert_eq!(run(&send(&app, absolute).await), ("1", true), "the target counts before Host");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn an_address_is_no_host_and_may_change_between_attempts() {
    let harness = Harness::new();
    let app = numbered(&harness, harness.layer());
    assert_eq!(run(&send(&app, with(&[("host", "10.0.0.1:80")])).await), ("1", false));
    assert_eq!(run(&send(&app, with(&[("host", "[::1]:80")])).await), ("1", true));
    assert_eq!(run(&send(&app, with(&[])).await), ("1", true));
}

#[tokio::test]
async fn a_layer_may_ignore_the_host() {
    let harness = Harness::new();
    let app = numbered(&harness, harness.layer().ignore_host());
    assert_eq!(run(&send(&app, with(&[("host", "a.example")])).await), ("1", false));
    assert_eq!(run(&send(&app, with(&[("host", "b.example")])).await), ("1", true));
}

#[tokio::test]
async fn the_forwarded_host_counts_behind_a_proxy_that_is_trusted() {
    let lines = |host| [("host", "inner.example"), ("x-forwarded-host", host)];
    let (one, other) = (lines("shop-a.example"), lines("shop-b.example"));
    let harness = Harness::new();
    let app = numbered(&harness, harness.layer());
    assert_eq!(run(&send(&app, with(&one)).await), ("1", false));
    assert_eq!(run(&send(&app, with(&other)).await), ("1", true), "a mere claim");
    let harness = Harness::new();
    let app = numbered(&harness, harness.layer().forwarded_host());
    assert_eq!(run(&send(&app, with(&one)).await), ("1", false));
    send(&app, with(&other)).await.assert_problem(422, "key-reused");
    let layer = harness.layer().callers(Callers::host()).forwarded_host();
    let app = numbered(&harness, layer);
    assert_eq!(run(&send(&app, with(&one)).await), ("2", false));
    assert_eq!(run(&send(&app, with(&other)).await), ("3", false));
}

#[tokio::test]
async fn a_header_that_a_route_lists_counts() {
    let harness = Harness::new();
    let headers = vec![FingerprintHeader::new("Stripe-Account").unwrap()];
    let rule = FingerprintRule { headers, ..FingerprintRule::default() };
    let app = numbered(&harness, harness.layer().fingerprint(rule));
    let account = |value| with(&[("stripe-account", value)]);
    assert_eq!(run(&send(&app, account("acct_1")).await), ("1", false));
    assert_eq!(run(&send(&app, account(" acct_1 ")).await), ("1", true));
    for other in [account("acct_2"), account(""), with(&[])] {
        send(&app, other).await.assert_problem(422, "key-reused");
    }
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn each_host_has_keys_of_its_own_where_hosts_are_callers() {
    let harness = Harness::new();
    let app = by(&harness, Callers::authorization(&secret()).and(Callers::host()));
    let shop = |host| with(&[("authorization", "Bearer platform"), ("host", host)]);
    for (host, number) in [("shop-a.example", "1"), ("shop-b.example", "2")] {
        assert_eq!(run(&send(&app, shop(host)).await), (number, false));
        assert_eq!(run(&send(&app, shop(host)).await), (number, true));
    }
    send(&app, shop("10.0.0.7")).await.assert_problem(403, "caller-unidentified");
    assert_eq!(harness.runs(), 2);
}

#[tokio::test]
async fn each_account_of_one_credential_has_keys_of_its_own() {
    let harness = Harness::new();
    let account = Callers::header(ACCOUNT).unwrap();
    let app = by(&harness, Callers::authorization(&secret()).and_optional(account));
    let platform = ("authorization", "Bearer platform");
    let requests = || {
        [
            with(&[platform, ("stripe-account", "acct_1")]),
            with(&[platform, ("stripe-account", "acct_2")]),
            with(&[platform]),
            with(&[("authorization", "Bearer other"), ("stripe-account", "acct_1")]),
        ]
    };
    for replayed in [false, true] {
        for (request, number) in requests().into_iter().zip(["1", "2", "3", "4"]) {
            assert_eq!(run(&send(&app, request).await), (number, replayed));
        }
    }
    let unidentified = send(&app, with(&[("stripe-account", "acct_1")])).await;
    unidentified.assert_problem(403, "caller-unidentified");
    assert!(unidentified.text().contains("Authorization"), "{}", unidentified.text());
    assert_eq!(harness.runs(), 4);
}

fn in_body(lines: &[(&'static str, &'static str)], body: &'static str) -> Request<Body> {
    let mut request = with(lines);
    request.headers_mut().remove("idempotency-key");
    *request.body_mut() = Body::from(body);
    request
}

#[tokio::test]
async fn a_key_in_the_body_may_be_several_members_of_any_text() {
    let harness = Harness::new();
    let members = ["/contest", "/user", "/entry"].map(|text| Pointer::parse(text).unwrap());
    let layer = harness.layer().key(KeyRule::json_members(members).required());
    let app = numbered(&harness, layer);
    let bodies = [
        r#"{"contest":"spring cup","user":"Zoë","entry":1}"#,
        r#"{"contest":"spring cup","user":"Zoë","entry":2}"#,
        r#"{"contest":"spring","user":" cupZoë","entry":1}"#,
    ];
    for replayed in [false, true] {
        for (body, number) in bodies.into_iter().zip(["1", "2", "3"]) {
            assert_eq!(run(&send(&app, in_body(&[], body)).await), (number, replayed), "{body}");
        }
    }
    let incomplete = send(&app, in_body(&[], r#"{"contest":"c","user":"u"}"#)).await;
    incomplete.assert_problem(400, "key-malformed");
    assert!(incomplete.text().contains("/entry is missing"));
    let none = send(&app, in_body(&[], "{}")).await;
    none.assert_problem(400, "key-missing");
    assert!(none.text().contains("/contest, /user and /entry"), "{}", none.text());
    assert!(!none.text().contains("Idempotency-Key"), "{}", none.text());
    assert_eq!(harness.runs(), 3);
}

/// Declines every request.
fn declining(harness: &Harness, layer: IdempotencyLayer) -> Router {
    harness.app_with(layer, |run| async move { (StatusCode::PAYMENT_REQUIRED, run.to_string()) })
}

#[tokio::test]
async fn a_decline_is_kept_unless_the_key_is_in_the_body_and_nothing_proves_the_caller() {
    let key = || KeyRule::default().or(KeyRule::json(Pointer::parse("/id").unwrap()));
    let callers = Callers::authorization(&secret())
        .or(Callers::header(HeaderName::from_static("x-merchant")).unwrap())
        .or(Callers::anonymous());
    let auth = ("authorization", "Bearer a");
    let merchant = ("x-merchant", "7");
    let body = r#"{"id":"o-1"}"#;
    for (request, kept) in [
        (&(|| with(&[])) as &dyn Fn() -> Request<Body>, true),
        (&|| with(&[merchant]), true),
        (&|| with(&[auth]), true),
        (&|| in_body(&[], body), false),
        (&|| in_body(&[merchant], body), false),
        (&|| in_body(&[auth], body), true),
    ] {
        let harness = Harness::new();
        let layer = harness.layer().callers(callers.clone()).key(key());
        let app = declining(&harness, layer.clone());
        assert_eq!(run(&send(&app, request()).await), ("1", false));
        let again = send(&app, request()).await;
        assert_eq!(again.is_replayed(), kept, "{:?}", request());
        let harness = Harness::new();
        let layer = harness.layer().callers(callers.clone()).key(key()).keep_under_body_keys();
        let app = declining(&harness, layer);
        send(&app, request()).await;
        assert!(send(&app, request()).await.is_replayed(), "the layer says so");
    }
}

#[tokio::test]
async fn a_missing_key_is_named_in_grpc_as_metadata() {
    let harness = Harness::new();
    let rule = KeyRule::header(HeaderName::from_static("x-request-key")).required();
    let app = numbered(&harness, harness.layer().key(rule));
    let mut call = in_body(&[], "");
    *call.version_mut() = http::Version::HTTP_2;
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let answer = send(&app, call).await;
    assert_eq!(answer.header("idempotency-problem"), Some("key-missing"));
    let message = answer.header("grpc-message").unwrap();
    assert!(message.contains("send the metadata x-request-key"), "{message}");
}

#[tokio::test]
async fn the_service_gets_what_the_request_is_about() {
    let harness = Harness::new();
    let handler = |Extension(subject): Extension<Subject>| async move {
        format!("{} {:?}", subject.about, subject.captured)
    };
    let order = CaptureSource::Json(Pointer::parse("/to").unwrap());
    let app = |layer| Router::new().route("/charges", post(handler)).layer(layer);
    let request = || with(&[("host", "Shop-A.example"), ("x-shop", "shop_1")]);
    let layer = harness.layer().capture("to", order);
    let layer = layer.capture("shop", CaptureSource::Header(HeaderName::from_static("x-shop")));
    let answer = send(&app(layer), request()).await;
    assert_eq!(answer.text(), r#"POST shop-a.example/charges [("to", "zoe"), ("shop", "shop_1")]"#);
    let harness = Harness::new();
    let answer = send(&app(harness.layer().about("POST /charges/**")), request()).await;
    assert_eq!(answer.text(), "POST /charges/** []");
}
