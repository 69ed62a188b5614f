//! Requests that the gateway refuses; none of them reaches the upstream.

use std::time::Duration;

use http::Request;
use http_body_util::Full;
use tokio::time::sleep;

use crate::common::{
    ClientRequest, Gate, Gateway, ORDER, Reply, Setup, Upstream, charge, send, wait_until,
};

fn without_key() -> ClientRequest {
    let request = Request::post("/charges").header("content-type", "application/json");
    request.body(Full::from(ORDER)).unwrap()
}

#[tokio::test]
async fn a_route_that_requires_a_key_refuses_a_request_without() {
    let upstream = Upstream::plain().await;
    let gateway = Setup::new(&upstream.url())
        .gateway("docs = \"https://example.org/retries\"")
        .defaults("key = { header = \"Idempotency-Key\", required = true }")
        .start()
        .await;
    let answer = gateway.send(without_key()).await;
    answer.assert_problem(400, "key-missing");
    let link = "<https://example.org/retries>; rel=\"describedby\"";
    assert_eq!(answer.header("link"), Some(link));
    assert_eq!(upstream.request_count(), 0);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn the_log_says_how_to_admit_anonymous_callers() {
    let upstream = Upstream::plain().await;
    let gateway =
        Setup::new(&upstream.url()).defaults("caller = [\"authorization\"]").start().await;
    for key in ["a", "b"] {
        gateway.send(charge(key, ORDER)).await.assert_problem(403, "caller-unidentified");
    }
    gateway.wait_for_log("--caller anonymous").await;
    let log =
        || gateway.log_lines().iter().filter(|line| line.contains("--caller anonymous")).count();
    assert_eq!((log(), upstream.request_count()), (1, 0));
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_malformed_key_is_refused_and_not_treated_as_absent() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    for key in ["", "a b", "a, b", "\"a", "\"a\";x=1 b", &"x".repeat(256)] {
        gateway.send(charge(key, ORDER)).await.assert_problem(400, "key-malformed");
    }
    let mut twice = charge("a", ORDER);
    twice.headers_mut().append("idempotency-key", "a".parse().unwrap());
    gateway.send(twice).await.assert_problem(400, "key-malformed");
    assert_eq!(upstream.request_count(), 0);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn the_longest_key_is_the_same_with_and_without_quotes() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let key = "k".repeat(255);
    let first = gateway.send(charge(&key, ORDER)).await;
    gateway.send(charge(&format!("\"{key}\""), ORDER)).await.assert_replay_of(&first);
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_body_that_is_not_valid_json_is_refused() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    for body in ["{", r#"{"amount":1,"amount":2}"#, "{}{}"] {
        gateway.send(charge("k", body)).await.assert_problem(400, "body-malformed");
    }
    assert_eq!(upstream.request_count(), 0);
    assert_eq!(gateway.send(charge("k", ORDER)).await.status.as_u16(), 201, "the key is free");
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_with_a_key_and_forwarded_without() {
    let upstream = Upstream::plain().await;
    let gateway = Setup::new(&upstream.url()).defaults("request_max = \"20B\"").start().await;
    gateway.send(charge("k", ORDER)).await.assert_problem(413, "body-too-large");
    assert_eq!(upstream.request_count(), 0);
    assert_eq!(gateway.send(without_key()).await.status.as_u16(), 201);
    assert_eq!(upstream.requests()[0].body, ORDER);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_unidentified_caller_is_refused_and_its_token_is_not_echoed() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url()).defaults("caller = [\"authorization\"]");
    let gateway = setup.start().await;
    let mut token = charge("k", ORDER);
    let jwt = "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl";
    token.headers_mut().insert("authorization", jwt.parse().unwrap());
    for request in [charge("k", ORDER), token] {
        let answer = gateway.send(request).await;
        answer.assert_problem(403, "caller-unidentified");
        assert!(!answer.text().contains("eyJ"), "{}", answer.text());
    }
    assert_eq!(upstream.request_count(), 0);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn without_the_store_nothing_runs_unless_the_route_passes_requests() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url()).defaults("lease = \"2s\"").tables(
        "[[route]]\nmatch = \"POST /charges\"\nscope = \"charges\"\n\
         [[route]]\nmatch = \"POST /clicks\"\nscope = \"clicks\"\non_store_down = \"pass\"",
    );
    let gateway = setup.start().await;
    let known = gateway.send(charge("known", ORDER)).await;
    let block = setup.block_writes().await;
    // Lets a write that was already in progress finish.
    sleep(Duration::from_millis(50)).await;
    let answer = gateway.send(charge("k", ORDER)).await;
    answer.assert_problem(503, "store-unavailable");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(upstream.request_count(), 1);
    let mut click = charge("k", ORDER);
    *click.uri_mut() = "/clicks".parse().unwrap();
    assert_eq!(gateway.send(click).await.status.as_u16(), 201);
    assert_eq!(upstream.request_count(), 2);
    assert_eq!(upstream.requests()[1].header("idempotency-fence"), None, "it is not guarded");
    drop(block);
    let later = charge("k", ORDER);
    let mut answer = gateway.send(later.clone()).await;
    while answer.status.as_u16() == 503 {
        sleep(Duration::from_millis(100)).await;
        answer = gateway.send(later.clone()).await;
    }
    // The claim without a reply may have been granted; it was never run then.
    assert!([201, 409, 423].contains(&answer.status.as_u16()), "{answer:?}");
    gateway.send(charge("known", ORDER)).await.assert_replay_of(&known);
    drop(gateway);
}

#[tokio::test]
async fn an_answer_that_cannot_be_recorded_is_not_acknowledged_and_recorded_later() {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| Reply::created(request).blocked_on(&gate)
    })
    .await;
    let setup = Setup::new(&upstream.url()).defaults("lease = \"9s\"");
    let gateway = setup.start().await;
    let first = tokio::spawn(send(gateway.address(), charge("k", ORDER)));
    wait_until(|| upstream.request_count() == 1).await;
    let block = setup.block_writes().await;
    gate.open();
    let first = first.await.unwrap();
    first.assert_problem(504, "outcome-unknown");
    drop(block);
    let mut answer = gateway.send(charge("k", ORDER)).await;
    while !answer.is_replayed() {
        assert!([409, 423, 503, 504].contains(&answer.status.as_u16()), "{answer:?}");
        answer = gateway.send(charge("k", ORDER)).await;
    }
    assert_eq!((answer.status.as_u16(), answer.text()), (201, "{\"key\": \"k\", \"charge\": 1}\n"));
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}
