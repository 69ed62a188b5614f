//! From the first look to keys that are required, on one running gateway.

use crate::{
    common::{ClientRequest, ORDER, Reply, Setup, Upstream, charge},
    operators::reaches,
    reloads::reload,
};

fn would(would: &str, problem: &str) -> String {
    format!("semel_observed_total{{scope=\"default\",would=\"{would}\",problem=\"{problem}\"}}")
}

fn keyless() -> ClientRequest {
    let mut request = charge("k", ORDER);
    request.headers_mut().remove("idempotency-key");
    request
}

#[tokio::test]
async fn observe_then_warn_then_require_without_a_restart() {
    let upstream = Upstream::plain().await;
    let open = Setup::new(&upstream.url());
    let step = |lines: &str| open.clone().defaults(lines);
    let observe = step("mode = \"observe\"");
    let gateway = observe.start().await;
    for _ in 0..2 {
        let answer = gateway.send(charge("k", ORDER)).await;
        assert!(answer.status == 201 && !answer.is_replayed());
        let records = "semel_store_seconds_count{operation=\"record\"}";
        reaches(&gateway, records, 1).await;
    }
    reaches(&gateway, &would("run", ""), 1).await;
    reaches(&gateway, &would("replay", ""), 1).await;
    gateway.send(charge("k", "{}")).await;
    reaches(&gateway, &would("refuse", "key-reused"), 1).await;
    let answer = gateway.send(keyless()).await;
    assert_eq!((answer.status.as_u16(), answer.header("deprecation")), (201, None));
    reaches(&gateway, &would("pass", "key-missing"), 1).await;
    gateway.wait_for_log("would=replay").await;
    assert_eq!(upstream.request_count(), 4);

    step("mode = \"observe\"\nkey = { required = true }").write();
    reload(&gateway).await;
    assert_eq!(gateway.send(keyless()).await.status, 201);
    reaches(&gateway, &would("refuse", "key-missing"), 1).await;

    step("key = { required = \"warn\" }").write();
    reload(&gateway).await;
    // What was observed has run, and does not run again; but its answer was not recorded.
    gateway.send(charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
    let first = gateway.send(charge("g", ORDER)).await;
    assert!(!first.is_replayed());
    gateway.send(charge("g", ORDER)).await.assert_replay_of(&first);
    let warned = gateway.send(keyless()).await;
    assert!(warned.status == 201 && warned.header("deprecation").is_some());
    reaches(&gateway, "semel_requests_total{scope=\"default\",outcome=\"keyless\"}", 1).await;

    step("key = { required = true }").write();
    reload(&gateway).await;
    gateway.send(keyless()).await.assert_problem(400, "key-missing");
    gateway.send(charge("g", ORDER)).await.assert_replay_of(&first);
    assert_eq!(upstream.request_count(), 7);

    // And back.
    observe.write();
    reload(&gateway).await;
    assert!(!gateway.send(charge("k", ORDER)).await.is_replayed());
    assert_eq!(upstream.request_count(), 8);
    reaches(&gateway, &would("replay", ""), 2).await;
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn after_an_upstream_broke_off_a_repeat_would_be_refused() {
    let upstream = Upstream::start(|_| Reply::closed()).await;
    let gateway = Setup::new(&upstream.url()).defaults("mode = \"observe\"").start().await;
    let records = "semel_store_seconds_count{operation=\"record\"}";
    gateway.send(charge("broken", ORDER)).await.assert_problem(504, "upstream-timeout");
    reaches(&gateway, records, 1).await;
    gateway.send(charge("broken", ORDER)).await.assert_problem(504, "upstream-timeout");
    reaches(&gateway, &would("refuse", "outcome-unknown"), 1).await;
    upstream.stop().await;
    for round in 1..=2 {
        gateway.send(charge("away", ORDER)).await.assert_problem(502, "upstream-unreachable");
        reaches(&gateway, &would("unseen", ""), round).await;
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_store_that_takes_no_writes_delays_no_request() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url()).defaults("mode = \"observe\"");
    let gateway = setup.start().await;
    let occupied = setup.block_writes().await;
    for run in 1..=3 {
        assert_eq!(gateway.send(charge("k", ORDER)).await.status, 201);
        assert_eq!(upstream.request_count(), run);
    }
    drop(occupied);
    reaches(&gateway, &would("run", ""), 1).await;
    gateway.assert_clean_shutdown().await;
}
