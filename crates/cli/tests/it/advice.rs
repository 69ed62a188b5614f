//! What clients and operators learn about a request, through the binary: whether to retry, whether
//! the answer could be kept, whether anything guarded the operation.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use crate::{
    common::{ClientRequest, Gateway, ORDER, Reply, Setup, Upstream, charge, get, wait_until},
    operators::reaches,
};

/// A charge that is sent elsewhere.
fn post(path: &str, key: &str) -> ClientRequest {
    let mut request = charge(key, ORDER);
    *request.uri_mut() = path.parse().unwrap();
    request
}

/// The outcomes in the request log, with their statuses.
fn logged(gateway: &Gateway, key: &str) -> Vec<(String, u64)> {
    let json = |line: &String| serde_json::from_str::<Value>(line).ok();
    let lines: Vec<Value> = gateway.log_lines().iter().filter_map(json).collect();
    let requests = lines.iter().filter(|line| line["message"] == "request" && line["key"] == key);
    requests
        .map(|line| {
            (line["outcome"].as_str().unwrap().to_owned(), line["status"].as_u64().unwrap())
        })
        .collect()
}

#[tokio::test]
async fn a_timeout_is_retried_where_a_retry_runs_again_or_the_method_is_idempotent() {
    let upstream = Upstream::start(|_| Reply::closed()).await;
    let routes = ["hold", "rerun", "fail"].map(|on_unknown| {
        format!(
            "[[route]]\nmatch = \"POST /{on_unknown}\"\nscope = \"{on_unknown}\"\n\
             on_unknown = \"{on_unknown}\""
        )
    });
    let gateway = Setup::new(&upstream.url()).tables(routes.join("\n")).start().await;
    let mut keyless = post("/hold", "none");
    keyless.headers_mut().remove("idempotency-key");
    for (request, retry) in [
        (post("/hold", "k"), "false"),
        (post("/rerun", "k"), "true"),
        (post("/fail", "k"), "false"),
        (keyless, "false"),
        (post("/unguarded", "k"), "false"),
        (get("/unguarded"), "true"),
    ] {
        let path = request.uri().clone();
        let answer = gateway.send(request).await;
        assert!([500, 504].contains(&answer.status.as_u16()), "{answer:?}");
        answer.slug();
        assert_eq!(answer.header("x-should-retry"), Some(retry), "{path}");
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_answer_that_was_not_retained_is_an_outcome_of_its_own() {
    let upstream = Upstream::start(|_| Reply::new(200, "more than four")).await;
    let setup = Setup::new(&upstream.url()).defaults("response_max = \"4B\"");
    let gateway = setup.argument("--log=json").start().await;
    assert_eq!(gateway.send(charge("k", ORDER)).await.text(), "more than four");
    gateway.send(charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
    let outcome =
        |word: &str| format!("semel_requests_total{{scope=\"default\",outcome={word:?}}}");
    reaches(&gateway, &outcome("response-not-retained"), 1).await;
    reaches(&gateway, &outcome("replayed"), 0).await;
    wait_until(|| logged(&gateway, "k").len() == 2).await;
    let expected = [("executed", 200), ("response-not-retained", 410)];
    assert_eq!(logged(&gateway, "k"), expected.map(|(word, status)| (word.to_owned(), status)));
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_unguarded_execution_is_marked_counted_and_logged() {
    let upstream = Upstream::plain().await;
    let defaults = "lease = \"2s\"\non_store_down = \"pass\"";
    let setup = Setup::new(&upstream.url()).defaults(defaults).argument("--log=json");
    let gateway = setup.start().await;
    let guarded = gateway.send(charge("before", ORDER)).await;
    assert_eq!(guarded.header("idempotency-guarded"), None);
    let turn = setup.block_writes().await;
    // What was being written when the turn was taken is through.
    sleep(Duration::from_millis(50)).await;
    let passed = gateway.send(charge("k", ORDER)).await;
    assert_eq!(passed.status.as_u16(), 201);
    assert_eq!(passed.header("idempotency-guarded"), Some("false"));
    reaches(&gateway, r#"semel_requests_total{scope="default",outcome="passed"}"#, 1).await;
    wait_until(|| !logged(&gateway, "k").is_empty()).await;
    assert_eq!(logged(&gateway, "k"), [("passed".to_owned(), 201)]);
    drop(turn);
}

#[tokio::test]
async fn an_upstream_cannot_forge_the_gateways_headers() {
    let upstream = Upstream::start(|request| {
        Reply::created(request)
            .header("idempotency-problem", "in-progress")
            .header("idempotent-replayed", "true")
            .header("idempotency-guarded", "false")
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let first = gateway.send(charge("k", ORDER)).await;
    assert_eq!(first.status.as_u16(), 201);
    for name in ["idempotency-problem", "idempotent-replayed", "idempotency-guarded"] {
        assert_eq!(first.header(name), None, "{name}");
    }
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&first);
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_gateway_understands_the_problems_of_a_gateway_behind_it() {
    let nowhere = Upstream::plain().await.stop().await;
    let behind = Gateway::in_front_of(&format!("http://{nowhere}")).await;
    let front = Gateway::in_front_of(&format!("http://{}", behind.address())).await;
    // Nothing was done, so the key stays free in front too.
    for _ in 0..2 {
        let answer = front.send(charge("k", ORDER)).await;
        answer.assert_problem(502, "upstream-unreachable");
        assert_eq!(answer.header("idempotency-problem"), Some("upstream-unreachable"));
    }
    let upstream = Upstream::at(nowhere, Reply::created).await;
    assert_eq!(front.send(charge("k", ORDER)).await.status.as_u16(), 201);
    assert_eq!(upstream.request_count(), 1);
    front.assert_clean_shutdown().await;
    behind.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_invalid_request_has_an_error_member_too() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let mut strange = charge("k", ORDER);
    strange.headers_mut().append("host", "a".parse().unwrap());
    strange.headers_mut().append("host", "b".parse().unwrap());
    let answer = gateway.send(strange).await;
    assert_eq!(answer.status.as_u16(), 400);
    let document: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(document["error"]["type"], "invalid_request_error");
    assert_eq!(document["error"]["code"], "bad_request");
    assert_eq!(document["error"]["message"], document["detail"]);
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert_eq!(upstream.request_count(), 0);
    gateway.assert_clean_shutdown().await;
}
