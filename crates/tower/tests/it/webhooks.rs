//! Signed webhooks: each event runs once, and a forgery uses up no key.

use std::time::{Duration, SystemTime};

use axum::{Router, body::Body};
use data_encoding::{BASE64, HEXLOWER};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderName, Request, StatusCode};
use semel::{
    Semel,
    core::{Keep, ListQuery, Policy, Scope, Store as _},
};
use semel_testkit::flaky_store::StoreCall;
use semel_tower::{ClientContext, HmacScheme, IdempotencyLayer, KeyRule, Sender, Signature};
use sha2::Sha256;

use crate::harness::{Gate, Harness, data, send, stream, wait_until};

pub(crate) const SECRET: &str = "a secret of the sender";
const NEXT_SECRET: &str = "the secret that comes after it";
/// The time of the tests.
pub(crate) const NOW: u64 = 1_700_000_000;

pub(crate) fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOW)
}

pub(crate) fn mac(secret: &[u8], parts: &[&str]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    for part in parts {
        mac.update(part.as_bytes());
    }
    mac.finalize().into_bytes().to_vec()
}

pub(crate) fn event(headers: &[(&str, &str)], body: &str) -> Request<Body> {
    let mut request = Request::post("/charges").header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

pub(crate) fn github(delivery: &str, body: &str) -> Request<Body> {
    let signature = format!("sha256={}", HEXLOWER.encode(&mac(SECRET.as_bytes(), &[body])));
    event(&[("x-github-delivery", delivery), ("x-hub-signature-256", &signature)], body)
}

fn stripe_line(secret: &str, at: u64, body: &str) -> String {
    let v1 = mac(secret.as_bytes(), &[&at.to_string(), ".", body]);
    format!("t={at},v1={}", HEXLOWER.encode(&v1))
}

pub(crate) fn stripe(secret: &str, at: u64, body: &str) -> Request<Body> {
    event(&[("stripe-signature", &stripe_line(secret, at, body))], body)
}

pub(crate) fn standard(id: &str, at: u64, body: &str) -> Request<Body> {
    let v1 = mac(SECRET.as_bytes(), &[id, ".", &at.to_string(), ".", body]);
    let (at, v1) = (at.to_string(), format!("v1,{}", BASE64.encode(&v1)));
    event(&[("webhook-id", id), ("webhook-timestamp", &at), ("webhook-signature", &v1)], body)
}

pub(crate) fn source() -> Scope {
    Scope::new("webhooks.test").unwrap()
}

pub(crate) fn by_stripe() -> Signature {
    Signature::stripe([SECRET, NEXT_SECRET]).unwrap().clock(now)
}

pub(crate) fn by_github() -> Signature {
    Signature::github([SECRET]).unwrap().clock(now)
}

/// An inbox that answers with the number of the run.
pub(crate) fn inbox(harness: &Harness, signature: Signature) -> Router {
    let layer = IdempotencyLayer::inbox(&harness.semel, source(), signature);
    harness.app_with(layer, |run| async move { run.to_string() })
}

async fn records(harness: &Harness) -> usize {
    harness.store.list(&ListQuery::default()).await.unwrap().items.len()
}

#[tokio::test]
async fn a_redelivery_of_github_runs_once() {
    let harness = Harness::new();
    let app = inbox(&harness, by_github());
    let first = send(&app, github("d-1", r#"{"action":"opened"}"#)).await;
    assert_eq!((first.status, first.text()), (StatusCode::OK, "1"));
    let again = send(&app, github("d-1", r#"{"action":"opened"}"#)).await;
    assert_eq!((again.status, again.text(), again.is_replayed()), (StatusCode::OK, "1", true));
    assert_eq!(send(&app, github("d-2", r#"{"action":"opened"}"#)).await.text(), "2");
    assert_eq!(harness.runs(), 2);
}

#[tokio::test]
async fn a_retry_of_stripe_with_a_new_time_and_signature_runs_once() {
    let harness = Harness::new();
    let app = inbox(&harness, by_stripe());
    let body = r#"{"id":"evt_1","type":"charge.succeeded"}"#;
    for (secret, at) in [(SECRET, NOW), (SECRET, NOW + 60), (NEXT_SECRET, NOW - 60)] {
        let answer = send(&app, stripe(secret, at, body)).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, "1"));
    }
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_standard_webhook_is_known_by_its_id() {
    let harness = Harness::new();
    let secret = format!("whsec_{}", BASE64.encode(SECRET.as_bytes()));
    let signature = Signature::standard_webhooks([secret]).unwrap().clock(now);
    let app = inbox(&harness, signature);
    assert_eq!(send(&app, standard("msg_1", NOW, "one")).await.text(), "1");
    assert!(send(&app, standard("msg_1", NOW + 9, "one")).await.is_replayed());
    assert_eq!(send(&app, standard("msg_2", NOW, "one")).await.text(), "2");
    assert_eq!(harness.runs(), 2);
}

#[tokio::test]
async fn a_body_that_changed_in_a_redelivery_is_still_the_same_event() {
    let harness = Harness::new();
    let app = inbox(&harness, by_stripe());
    let send = |body: &'static str| send(&app, stripe(SECRET, NOW, body));
    assert_eq!(send(r#"{"id":"evt_1","pending_webhooks":2}"#).await.text(), "1");
    let again = send(r#"{"pending_webhooks":1,"id":"evt_1","livemode":true}"#).await;
    assert_eq!((again.status, again.text()), (StatusCode::OK, "1"));
    assert!(again.is_replayed());
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_forgery_burns_nothing_and_the_genuine_event_runs() {
    let harness = Harness::new();
    let app = inbox(&harness, by_stripe());
    let body = r#"{"id":"evt_1","amount":100}"#;
    let genuine = stripe_line(SECRET, NOW, body);
    let forgeries = [
        event(&[], body),
        stripe("not a secret of the sender", NOW, body),
        stripe(SECRET, NOW - 301, body),
        stripe(SECRET, NOW + 301, body),
        event(&[("stripe-signature", &genuine)], r#"{"id":"evt_1","amount":1}"#),
        event(&[("stripe-signature", &genuine), ("stripe-signature", &genuine)], body),
        event(&[("stripe-signature", "garbage")], body),
    ];
    for forgery in forgeries {
        send(&app, forgery).await.assert_problem(401, "signature-invalid");
    }
    assert_eq!(harness.store.count(StoreCall::Claim), 0, "the store was not asked");
    assert_eq!((harness.runs(), records(&harness).await), (0, 0));
    let answer = send(&app, event(&[("stripe-signature", &genuine)], body)).await;
    assert_eq!((answer.status, answer.text(), harness.runs()), (StatusCode::OK, "1", 1));
    let forged = event(&[("stripe-signature", "t=1,v1=00")], body);
    send(&app, forged).await.assert_problem(401, "signature-invalid");
    assert!(send(&app, event(&[("stripe-signature", &genuine)], body)).await.is_replayed());
}

#[tokio::test]
async fn an_unsigned_request_does_not_pass_without_a_key_either() {
    let harness = Harness::new();
    let layer = harness.layer().signature(by_github());
    let app = harness.app_with(layer, |run| async move { run.to_string() });
    send(&app, event(&[], "{}")).await.assert_problem(401, "signature-invalid");
    let mut forged = github("d", "{}");
    *forged.body_mut() = Body::from("{ }");
    send(&app, forged).await.assert_problem(401, "signature-invalid");
    assert_eq!(harness.runs(), 0);
    assert_eq!(send(&app, github("d", "{}")).await.text(), "1", "no key is needed here");
    assert_eq!(send(&app, github("d", "{}")).await.text(), "2");
}

#[tokio::test]
async fn an_inbox_needs_the_id_of_the_event() {
    let harness = Harness::new();
    let app = inbox(&harness, by_stripe());
    send(&app, stripe(SECRET, NOW, "{}")).await.assert_problem(400, "key-missing");
    let mut unnamed = github("d", "{}");
    unnamed.headers_mut().remove("x-github-delivery");
    send(&inbox(&harness, by_github()), unnamed).await.assert_problem(400, "key-missing");
    assert_eq!(harness.runs(), 0);
}

#[tokio::test]
async fn the_raw_bytes_are_signed_and_the_key_is_read_from_the_decoded_ones() {
    let harness = Harness::new();
    let app = inbox(&harness, by_stripe());
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut encoder, br#"{"id":"evt_1"}"#).unwrap();
    let coded = encoder.finish().unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(format!("{NOW}.").as_bytes());
    mac.update(&coded);
    let line = format!("t={NOW},v1={}", HEXLOWER.encode(&mac.finalize().into_bytes()));
    let request = Request::post("/charges")
        .header("content-encoding", "gzip")
        .header("content-type", "application/json")
        .header("stripe-signature", line)
        .body(Body::from(coded))
        .unwrap();
    assert_eq!(send(&app, request).await.text(), "1");
    assert!(send(&app, stripe(SECRET, NOW, r#"{"id":"evt_1"}"#)).await.is_replayed());
}

#[tokio::test]
async fn an_error_is_kept_under_a_key_from_the_body_if_it_is_signed_and_the_policy_says_so() {
    let body = r#"{"id":"evt_1"}"#;
    for (keep, runs) in [(Keep::Success, 2), (Keep::Deterministic, 1)] {
        let harness = Harness::new();
        let layer = IdempotencyLayer::inbox(&harness.semel, source(), by_stripe())
            .policy(Policy { keep: keep.clone(), ..Policy::default() });
        let app = harness.app_with(layer, |_| async { StatusCode::UNPROCESSABLE_ENTITY });
        for _ in 0..2 {
            let answer = send(&app, stripe(SECRET, NOW, body)).await;
            assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
        }
        assert_eq!(harness.runs(), runs, "{keep:?}");
    }
}

#[tokio::test]
async fn a_duplicate_of_a_running_event_gets_retry_advice() {
    let harness = Harness::new();
    let gate = Gate::new();
    let layer = IdempotencyLayer::inbox(&harness.semel, source(), by_github())
        .policy(Policy { wait: Duration::ZERO, ..Policy::default() });
    let behind = gate.clone();
    let app = harness.app_with(layer, move |run| {
        let gate = behind.clone();
        async move {
            gate.wait_open().await;
            run.to_string()
        }
    });
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, github("d", "{}")).await }
    });
    wait_until(|| harness.runs() == 1).await;
    let busy = send(&app, github("d", "{}")).await;
    busy.assert_problem(409, "in-progress");
    assert!(busy.header("retry-after").is_some());
    gate.open();
    assert_eq!(first.await.unwrap().text(), "1");
    assert_eq!(send(&app, github("d", "{}")).await.text(), "1");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_credential_beside_a_signature_does_not_matter() {
    let harness = Harness::new();
    let app = inbox(&harness, by_github());
    let mut request = github("d", "{}");
    request.headers_mut().insert("authorization", "Digest a=b".parse().unwrap());
    *request.uri_mut() = "/charges?token=abc".parse().unwrap();
    assert_eq!(send(&app, request).await.text(), "1");
}

#[tokio::test]
async fn a_forged_event_that_does_not_come_takes_no_place_from_a_genuine_one() {
    let mut harness = Harness::new();
    // One body may be arriving.
    harness.semel = Semel::builder(harness.store.clone()).in_flight_max(1).build();
    let app = inbox(&harness, by_github());
    let send_slowly = |sender, body: &'static str| {
        let (frames, stream) = stream();
        let (app, mut request) = (app.clone(), github("d", body));
        *request.body_mut() = stream;
        let mut client = ClientContext::default();
        client.sender = sender;
        request.extensions_mut().insert(client);
        (frames, tokio::spawn(async move { send(&app, request).await }))
    };
    let sender = |connection| Sender::new([192, 0, 2, 1].into(), connection);
    let (_forged, refused) = send_slowly(sender(1), "[]");
    wait_until(|| harness.semel.arriving() == 1).await;
    assert_eq!(send(&app, github("d", "{}")).await.text(), "1", "what comes at once needs none");
    let (genuine, slow) = send_slowly(sender(2), "{}");
    refused.await.unwrap().assert_problem(503, "too-many-in-flight");
    genuine.send(data("{")).await.unwrap();
    genuine.send(data("}")).await.unwrap();
    drop(genuine);
    assert_eq!(slow.await.unwrap().text(), "1");
    assert_eq!((harness.semel.arriving(), harness.semel.evicted(), harness.runs()), (0, 1, 1));
}

fn cloud_event(source: &str, id: &str) -> Request<Body> {
    event(&[("ce-source", source), ("ce-id", id)], r#"{"amount":100}"#)
}

fn structured(source: &str, id: &str) -> Request<Body> {
    let body = format!(r#"{{"specversion":"1.0","source":"{source}","id":"{id}"}}"#);
    let mut request = event(&[], &body);
    let kind = "application/cloudevents+json".parse().unwrap();
    request.headers_mut().insert("content-type", kind);
    request
}

#[tokio::test]
async fn a_cloud_event_is_known_by_its_source_and_its_id() {
    for event in [cloud_event, structured] {
        let harness = Harness::new();
        let layer = harness.layer().key(KeyRule::cloud_event().required());
        let app = harness.app_with(layer, |run| async move { run.to_string() });
        assert_eq!(send(&app, event("/orders", "1")).await.text(), "1");
        assert_eq!(send(&app, event("/refunds", "1")).await.text(), "2", "another source");
        assert_eq!(send(&app, event("/orders", "2")).await.text(), "3", "another id");
        assert!(send(&app, event("/orders", "1")).await.is_replayed());
        assert_eq!(harness.runs(), 3);
    }
}

#[tokio::test]
async fn half_a_cloud_event_is_no_event_without_a_key() {
    let harness = Harness::new();
    let app = harness.app_with(harness.layer().key(KeyRule::cloud_event()), |_| async { "ran" });
    let half = event(&[("ce-id", "1")], "{}");
    send(&app, half).await.assert_problem(400, "key-malformed");
    assert_eq!(harness.runs(), 0);
    assert_eq!(send(&app, event(&[], "{}")).await.text(), "ran");
}

#[tokio::test]
async fn any_other_sender_says_where_the_id_of_its_event_is() {
    let harness = Harness::new();
    let name = HeaderName::from_static;
    let scheme = HmacScheme::new(name("x-signature"));
    let signature = Signature::hmac(scheme, [SECRET]).unwrap();
    let layer = IdempotencyLayer::inbox(&harness.semel, source(), signature)
        .key(KeyRule::header(name("x-event-id")).required());
    let app = harness.app_with(layer, |run| async move { run.to_string() });
    let signed = HEXLOWER.encode(&mac(SECRET.as_bytes(), &["{}"]));
    let event = || event(&[("x-signature", &signed), ("x-event-id", "e")], "{}");
    assert_eq!(send(&app, event()).await.text(), "1");
    assert!(send(&app, event()).await.is_replayed());
}
