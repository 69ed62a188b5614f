//! The errors of the gateway in the dialects of providers.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::common::{ClientRequest, Gateway, ORDER, Reply, Setup, TestResponse, Upstream, charge};

const OTHER: &str = r#"{"amount":2}"#;

fn json_of(answer: &TestResponse) -> Value {
    serde_json::from_slice(&answer.body).unwrap()
}

#[track_caller]
fn is_error(answer: &TestResponse, status: u16, slug: &str) {
    let found = (answer.status.as_u16(), answer.header("idempotency-problem"));
    assert_eq!(found, (status, Some(slug)), "{answer:?}");
    assert_eq!(json_of(answer)["status"], status, "{answer:?}");
}

/// The key in a header of this name.
fn keyed(name: &'static str, key: &str, body: &str) -> ClientRequest {
    let mut request = charge("k", body);
    request.headers_mut().remove("idempotency-key");
    request.headers_mut().insert(name, key.parse().unwrap());
    request
}

async fn in_dialect(upstream: &Upstream, lines: &str) -> Gateway {
    Setup::new(&upstream.url()).defaults(lines).start().await
}

#[tokio::test]
async fn a_dialect_says_where_the_key_is_and_what_an_error_looks_like() {
    let upstream = Upstream::plain().await;
    let gateway = in_dialect(&upstream, "dialect = \"paypal\"").await;
    let first = gateway.send(keyed("paypal-request-id", "p-1", ORDER)).await;
    gateway.send(keyed("paypal-request-id", "p-1", ORDER)).await.assert_replay_of(&first);
    let reused = gateway.send(keyed("paypal-request-id", "p-1", OTHER)).await;
    is_error(&reused, 422, "key-reused");
    assert_eq!(reused.header("content-type"), Some("application/json"));
    assert_eq!(json_of(&reused)["name"], "PAYPAL_REQUEST_ID_PREVIOUSLY_USED");
    let long = gateway.send(keyed("paypal-request-id", &"x".repeat(109), ORDER)).await;
    is_error(&long, 400, "key-malformed");
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;

    let gateway = in_dialect(&upstream, "dialect = \"square\"").await;
    let body = |amount: u64, key: &str| json!({ "idempotency_key": key, "amount": amount });
    let pay = |amount: u64, key: &str| keyed("x-note", "n", &body(amount, key).to_string());
    let first = gateway.send(pay(1, "s-1")).await;
    gateway.send(pay(1, "s-1")).await.assert_replay_of(&first);
    let reused = gateway.send(pay(2, "s-1")).await;
    is_error(&reused, 400, "key-reused");
    let error = json!({
        "category": "INVALID_REQUEST_ERROR",
        "code": "IDEMPOTENCY_KEY_REUSED",
        "detail": json_of(&reused)["detail"],
    });
    assert_eq!(json_of(&reused)["errors"], json!([error]));
    is_error(&gateway.send(pay(1, &"x".repeat(46))).await, 400, "key-malformed");
    assert_eq!(upstream.request_count(), 2);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_route_changes_the_status_of_one_error_and_is_warned() {
    let upstream = Upstream::plain().await;
    let lines = "dialect = \"adyen\"\nstatuses = { key-reused = 409, response-not-retained = 404 }";
    let gateway = in_dialect(&upstream, &format!("{lines}\nrecord = \"status\"")).await;
    gateway.send(charge("k", ORDER)).await;
    let reused = gateway.send(charge("k", OTHER)).await;
    is_error(&reused, 409, "key-reused");
    assert_eq!(reused.header("x-should-retry"), Some("false"));
    assert_eq!(reused.header("transient-error"), Some("false"));
    is_error(&gateway.send(charge("k", ORDER)).await, 404, "response-not-retained");
    assert_eq!(upstream.request_count(), 1);
    let warnings: Vec<String> =
        gateway.log_lines().into_iter().filter(|line| line.contains("is final")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("`key-reused` is final, and many SDKs retry its status 409"));
    gateway.assert_clean_shutdown().await;
}

/// The gateway in front neither records the error of the one behind nor runs the operation again:
/// it passes the error on, and the key stays free.
#[tokio::test]
async fn a_gateway_understands_the_errors_of_a_gateway_that_speaks_another_dialect() {
    for (behind, status) in [
        ("dialect = \"stripe\"", 400),
        ("dialect = \"square\"\nkey = \"Idempotency-Key\"", 400),
        ("dialect = \"paypal\"\nkey = \"Idempotency-Key\"", 422),
        ("dialect = \"adyen\"\nstatuses = { key-reused = 451 }", 451),
        ("", 422),
    ] {
        for front in ["", "dialect = \"stripe\""] {
            let upstream = Upstream::plain().await;
            let behind = in_dialect(&upstream, behind).await;
            let front = Setup::new(&format!("http://{}", behind.address())).defaults(front);
            let front = front.start().await;
            // The same caller, beside the gateway in front.
            behind.send(charge("k", ORDER)).await;
            for _ in 0..2 {
                let reused = front.send(charge("k", OTHER)).await;
                is_error(&reused, status, "key-reused");
                assert!(!reused.is_replayed(), "{reused:?}");
            }
            assert_eq!(upstream.request_count(), 1);
            front.assert_clean_shutdown().await;
            behind.assert_clean_shutdown().await;
        }
    }
}

#[tokio::test]
async fn a_key_that_is_held_behind_in_another_dialect_is_held_in_front_too() {
    let upstream = Upstream::start(|_| Reply::closed()).await;
    let behind = in_dialect(&upstream, "dialect = \"stripe\"").await;
    let front = Gateway::in_front_of(&format!("http://{}", behind.address())).await;
    is_error(&behind.send(charge("k", ORDER)).await, 504, "upstream-timeout");
    let held = behind.send(charge("k", ORDER)).await;
    is_error(&held, 400, "outcome-unknown");
    assert_eq!(json_of(&held)["error"]["type"], "idempotency_error");
    is_error(&front.send(charge("k", ORDER)).await, 400, "outcome-unknown");
    is_error(&front.send(charge("k", ORDER)).await, 423, "outcome-unknown");
    assert_eq!(upstream.request_count(), 1);
    front.assert_clean_shutdown().await;
    behind.assert_clean_shutdown().await;
}

#[tokio::test]
async fn answers_and_replays_say_in_each_dialect_when_their_record_expires() {
    let upstream = Upstream::plain().await;
    for dialect in ["ietf", "stripe"] {
        let lines = format!("dialect = \"{dialect}\"\nretention = \"1h\"");
        let setup = Setup::new(&upstream.url()).defaults(lines);
        let gateway = setup.start().await;
        let before = Timestamp::now().as_second();
        let first = gateway.send(charge("k", ORDER)).await;
        let after = Timestamp::now().as_second();
        // The date is rounded down, and retention counts from the claim.
        let expected = before + 3599..=after + 3600;
        let is_right = |answer: &TestResponse| {
            let expires = answer.expires().and_then(|expires| i64::try_from(expires).ok());
            expires.is_some_and(|expires| expected.contains(&expires))
        };
        assert!(is_right(&first), "{expected:?}: {first:?}");
        gateway.assert_clean_shutdown().await;
        // A new process knows it from its store, and from its memory the next time.
        let gateway = setup.start().await;
        for _ in 0..3 {
            let replay = gateway.send(charge("k", ORDER)).await;
            replay.assert_replay_of(&first);
            assert!(is_right(&replay), "{expected:?}: {replay:?}");
        }
        assert_eq!(gateway.send(charge("k", OTHER)).await.expires(), None);
        gateway.assert_clean_shutdown().await;
    }
    assert_eq!(upstream.request_count(), 2);
}
