//! Signed webhooks by configuration alone: what is forged never reaches the upstream.

use std::fs;

use data_encoding::{BASE64, HEXLOWER};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::Request;
use http_body_util::Full;
use semel::core::StateName;
use sha2::Sha256;

use crate::{
    common::{ClientRequest, Gateway, ReceivedRequest, Reply, Setup, Upstream},
    reloads::reload,
};

const SECRET: &str = "a secret of the sender";
const NEXT_SECRET: &str = "the secret that comes after it";

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

fn mac(secret: &str, text: &str) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.chain_update(text).finalize().into_bytes().to_vec()
}

fn event(headers: &[(&str, &str)], body: &str) -> ClientRequest {
    let request = Request::post("/hook").header("content-type", "application/json");
    let add = |request: http::request::Builder, line: &(&str, &str)| request.header(line.0, line.1);
    headers.iter().fold(request, add).body(Full::from(body.to_owned())).unwrap()
}

fn stripe(secret: &str, at: i64, body: &str) -> ClientRequest {
    let v1 = HEXLOWER.encode(&mac(secret, &format!("{at}.{body}")));
    event(&[("stripe-signature", &format!("t={at},v1={v1}"))], body)
}

fn github(secret: &str, delivery: &str, body: &str) -> ClientRequest {
    let signature = format!("sha256={}", HEXLOWER.encode(&mac(secret, body)));
    event(&[("x-github-delivery", delivery), ("x-hub-signature-256", &signature)], body)
}

fn standard(secret: &str, id: &str, at: i64, body: &str) -> ClientRequest {
    let v1 = BASE64.encode(&mac(secret, &format!("{id}.{at}.{body}")));
    let (at, v1) = (at.to_string(), format!("v1,{v1}"));
    event(&[("webhook-id", id), ("webhook-timestamp", &at), ("webhook-signature", &v1)], body)
}

/// A gateway with one route, whose signature is of this scheme.
fn setup(upstream: &Upstream, signature: &str) -> Setup {
    let whsec = format!("whsec_{}", BASE64.encode(SECRET.as_bytes()));
    let route = format!("[[route]]\nmatch = \"POST /hook\"\nscope = \"hook\"\n{signature}");
    Setup::new(&upstream.url())
        .tables(route)
        .environment("HOOK_SECRET", SECRET)
        .environment("NEXT_HOOK_SECRET", NEXT_SECRET)
        .environment("WHSEC", &whsec)
}

/// Sends an event twice, as two attempts, and then a forgery of another.
async fn runs_once(
    gateway: &Gateway,
    upstream: &Upstream,
    attempts: [ClientRequest; 2],
    forged: ClientRequest,
) {
    let (headers, body) = (attempts[0].headers().clone(), attempts[0].body().clone());
    let [first, again] = attempts;
    let first = gateway.send(first).await;
    assert_eq!((first.status.as_u16(), first.is_replayed()), (201, false), "{first:?}");
    gateway.send(again).await.assert_replay_of(&first);
    gateway.send(forged).await.assert_problem(401, "signature-invalid");
    let [request] = &upstream.requests()[..] else { panic!("{:?}", upstream.requests()) };
    for (name, value) in &headers {
        assert_eq!(request.headers.get(name), Some(value), "the upstream can verify it too");
    }
    let mut sent = body;
    let sent = http_body_util::BodyExt::frame(&mut sent).await.unwrap().unwrap();
    assert_eq!(&request.body, sent.data_ref().unwrap(), "byte for byte");
    assert_eq!(gateway.records().await.len(), 1, "a forgery leaves no record");
}

#[tokio::test]
async fn a_retry_of_stripe_runs_once_and_a_forgery_never() {
    let upstream = Upstream::plain().await;
    let line =
        "signature = { scheme = \"stripe\", secret_env = [\"HOOK_SECRET\", \"NEXT_HOOK_SECRET\"] }";
    let gateway = setup(&upstream, line).start().await;
    let body = "{ \"id\": \"evt_1\",  \"amount\": 1.50 }";
    let attempts = [stripe(SECRET, now() - 30, body), stripe(NEXT_SECRET, now(), body)];
    let forged = stripe("another secret altogether", now(), "{\"id\":\"evt_2\"}");
    runs_once(&gateway, &upstream, attempts, forged).await;
    let unsigned = event(&[], "{\"id\":\"evt_2\"}");
    gateway.send(unsigned).await.assert_problem(401, "signature-invalid");
    let old = stripe(SECRET, now() - 3600, "{\"id\":\"evt_2\"}");
    let old = gateway.send(old).await;
    old.assert_problem(401, "signature-invalid");
    assert!(old.text().contains("seconds old"), "{old:?}");
    assert_eq!(upstream.request_count(), 1, "what is not signed does not reach the upstream");
    let genuine = stripe(SECRET, now(), "{\"id\":\"evt_2\"}");
    assert_eq!(gateway.send(genuine).await.status.as_u16(), 201, "the forgery burnt nothing");
    assert_eq!(upstream.request_count(), 2);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_redelivery_of_github_runs_once_and_a_forgery_never() {
    let upstream = Upstream::plain().await;
    let line = "signature = { scheme = \"github\", secret_env = \"HOOK_SECRET\" }";
    let gateway = setup(&upstream, line).start().await;
    let attempts = [(); 2].map(|()| github(SECRET, "d-1", "{\"try\":1}"));
    let forged = github(NEXT_SECRET, "d-2", "{}");
    runs_once(&gateway, &upstream, attempts, forged).await;
    let other = github(SECRET, "d-1", "{\"try\":2}");
    gateway.send(other).await.assert_problem(422, "key-reused");
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_retry_of_a_standard_webhook_runs_once_and_a_forgery_never() {
    let upstream = Upstream::plain().await;
    let line = "signature = { scheme = \"standard-webhooks\", secret_env = \"WHSEC\" }";
    let gateway = setup(&upstream, line).start().await;
    let attempts = [(now() - 9), now()].map(|at| standard(SECRET, "msg_1", at, "{}"));
    let forged = standard(NEXT_SECRET, "msg_2", now(), "{}");
    runs_once(&gateway, &upstream, attempts, forged).await;
    gateway.assert_clean_shutdown().await;
}

/// Senders deliver at least once, so an inbox may run an event again: signed routes default to
/// `on_unknown = "rerun"`.
#[tokio::test]
async fn an_inbox_whose_handler_fails_twice_ends_completed_without_an_operator() {
    let upstream = Upstream::start(|request| match request.number {
        1 | 2 => Reply::new(500, "the database is away"),
        _ => Reply::new(204, ""),
    })
    .await;
    let line = "signature = { scheme = \"github\", secret_env = \"HOOK_SECRET\" }";
    let gateway = setup(&upstream, line).start().await;
    let deliver = async || gateway.send(github(SECRET, "d-1", "{}")).await;
    for _ in 0..2 {
        assert_eq!(deliver().await.status.as_u16(), 500);
    }
    let done = deliver().await;
    assert_eq!((done.status.as_u16(), done.is_replayed()), (204, false), "{done:?}");
    deliver().await.assert_replay_of(&done);
    let attempts: Vec<u64> = upstream.requests().iter().map(ReceivedRequest::attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
    let records = gateway.records().await;
    let [record] = &records[..] else { panic!("{records:?}") };
    assert_eq!(record.state, StateName::Completed);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_secret_in_a_file_is_replaced_without_a_restart() {
    let upstream = Upstream::plain().await;
    let line = "signature = { scheme = \"github\", secret_file = [\"old\", \"new\"] }";
    let setup = setup(&upstream, line);
    let write = |name: &str, secret: &str| {
        fs::write(setup.file().with_file_name(name), format!("{secret}\n")).unwrap();
    };
    write("old", SECRET);
    write("new", SECRET);
    let gateway = setup.start().await;
    let status =
        async |secret, delivery| gateway.send(github(secret, delivery, "{}")).await.status.as_u16();
    assert_eq!((status(SECRET, "1").await, status(NEXT_SECRET, "2").await), (201, 401));
    write("new", NEXT_SECRET);
    reload(&gateway).await;
    assert_eq!((status(SECRET, "3").await, status(NEXT_SECRET, "4").await), (201, 201));
    write("old", NEXT_SECRET);
    reload(&gateway).await;
    assert_eq!((status(SECRET, "5").await, status(NEXT_SECRET, "6").await), (401, 201));
    write("old", "short");
    gateway.signal("HUP");
    gateway.wait_for_log("holds no secret for a signature").await;
    assert_eq!(status(NEXT_SECRET, "7").await, 201, "the previous configuration stays in use");
    assert!(!gateway.log_lines().iter().any(|line| line.contains("\"short\"")));
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn cloud_events_of_different_sources_are_different_whatever_their_ids() {
    let upstream = Upstream::plain().await;
    let line = "key = { cloudevents = true, required = true }\ncaller = \"anonymous\"";
    let gateway = setup(&upstream, line).start().await;
    let sent = |source: &str| event(&[("ce-source", source), ("ce-id", "1")], "{}");
    let first = gateway.send(sent("/orders")).await;
    assert_eq!(first.status.as_u16(), 201);
    assert!(!gateway.send(sent("/refunds")).await.is_replayed());
    gateway.send(sent("/orders")).await.assert_replay_of(&first);
    gateway.send(event(&[("ce-id", "1")], "{}")).await.assert_problem(400, "key-malformed");
    gateway.send(event(&[], "{}")).await.assert_problem(400, "key-missing");
    assert_eq!(upstream.request_count(), 2);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_unverified_request_of_a_signed_route_is_not_forwarded() {
    let upstream = Upstream::plain().await;
    let route = "[[route]]\nmatch = \"/hook\"\nscope = \"hook\"\n\
                 signature = { scheme = \"github\", secret_env = \"HOOK_SECRET\" }";
    let gateway = Setup::new(&upstream.url())
        .defaults("mode = \"observe\"")
        .tables(route)
        .environment("HOOK_SECRET", SECRET)
        .start()
        .await;
    for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PROPFIND"] {
        let with = |mut sent: ClientRequest| {
            *sent.method_mut() = method.parse().unwrap();
            sent
        };
        let unsigned = with(event(&[("x-github-delivery", method)], "{}"));
        gateway.send(unsigned).await.assert_problem(401, "signature-invalid");
        let forged = with(github("another secret altogether", method, "{}"));
        gateway.send(forged).await.assert_problem(401, "signature-invalid");
    }
    assert!(upstream.requests().is_empty(), "{:?}", upstream.requests());
    for method in ["POST", "PROPFIND"] {
        let mut genuine = github(SECRET, method, "{}");
        *genuine.method_mut() = method.parse().unwrap();
        assert_eq!(gateway.send(genuine).await.status.as_u16(), 201);
    }
    let again = gateway.send(github(SECRET, "POST", "{}")).await;
    assert!(again.is_replayed(), "it is guarded, whatever the defaults say");
    assert_eq!(upstream.requests().len(), 2);
}
