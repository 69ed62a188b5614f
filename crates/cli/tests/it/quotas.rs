//! Quotas: what a client leaves in the store is bounded, and only new keys are refused.

use std::time::Duration;

use semel::core::StateName;
use tokio::time::{Instant, sleep};

use crate::{
    common::{
        ClientRequest, Gate, Gateway, ORDER, Reply, Setup, TEST_TIMEOUT, Upstream, charge, local,
        send, wait_until,
    },
    operators::reaches,
};

const MERCHANTS: &str = "caller = [{ header = \"X-Merchant\" }]";

fn of(merchant: &str, key: &str) -> ClientRequest {
    let mut request = charge(key, ORDER);
    request.headers_mut().insert("x-merchant", merchant.parse().unwrap());
    request
}

/// A gateway for merchants, with these limits.
async fn limited(upstream: &Upstream, limits: &str) -> Gateway {
    let setup = Setup::new(&upstream.url()).defaults(MERCHANTS);
    setup.tables(format!("[limits]\n{limits}")).start().await
}

#[tokio::test]
async fn a_request_that_only_says_grpc_leaves_no_held_record() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let says_grpc = || {
        let mut request = charge("g1", ORDER);
        request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        request
    };
    let first = gateway.send(says_grpc()).await;
    assert_eq!(first.status.as_u16(), 201);
    assert_eq!(gateway.state("g1").await, Some(StateName::Completed));
    gateway.send(says_grpc()).await.assert_replay_of(&first);
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_caller_over_its_quota_gets_429_while_another_goes_on() {
    let upstream = Upstream::plain().await;
    let gateway = limited(&upstream, "records_per_caller = 3").await;
    let first = gateway.send(of("a", "1")).await;
    for key in ["2", "3"] {
        assert_eq!(gateway.send(of("a", key)).await.status.as_u16(), 201);
    }
    for _ in 0..2 {
        let refused = gateway.send(of("a", "4")).await;
        refused.assert_problem(429, "too-many-records");
        assert_eq!(refused.header("retry-after"), Some("10"));
        assert_eq!(refused.header("x-should-retry"), Some("true"));
    }
    gateway.send(of("a", "1")).await.assert_replay_of(&first);
    assert_eq!(gateway.send(of("b", "4")).await.status.as_u16(), 201);
    assert_eq!(upstream.request_count(), 4);
    reaches(&gateway, "semel_quota_used{quota=\"caller_records\"}", 3).await;
    reaches(&gateway, "semel_quota_limit{quota=\"caller_records\"}", 3).await;
    let counter = "semel_requests_total{scope=\"default\",outcome=\"too-many-records\"}";
    reaches(&gateway, counter, 2).await;
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_caller_whose_outcomes_are_unknown_gets_429_while_another_goes_on() {
    let upstream = Upstream::start(|request| match request.header("x-merchant") {
        Some("a") => Reply::new(500, "broken"),
        _ => Reply::created(request),
    })
    .await;
    let gateway = limited(&upstream, "held_per_caller = 2").await;
    for key in ["1", "2"] {
        assert_eq!(gateway.send(of("a", key)).await.status.as_u16(), 500);
    }
    gateway.send(of("a", "3")).await.assert_problem(429, "too-many-records");
    gateway.send(of("a", "1")).await.assert_problem(423, "outcome-unknown");
    assert_eq!(gateway.send(of("b", "3")).await.status.as_u16(), 201);
    assert_eq!(upstream.request_count(), 3);
    reaches(&gateway, "semel_quota_used{quota=\"caller_held\"}", 2).await;
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_caller_with_too_many_bytes_gets_429_while_another_goes_on() {
    let upstream = Upstream::start(|_| Reply::new(200, vec![b'x'; 10_000])).await;
    let gateway = limited(&upstream, "store_size_per_caller = \"20000B\"").await;
    let first = gateway.send(of("a", "1")).await;
    assert_eq!(gateway.send(of("a", "2")).await.status.as_u16(), 200);
    gateway.send(of("a", "3")).await.assert_problem(429, "too-many-records");
    gateway.send(of("a", "1")).await.assert_replay_of(&first);
    assert_eq!(gateway.send(of("b", "3")).await.status.as_u16(), 200);
    assert_eq!(upstream.request_count(), 3);
    reaches(&gateway, "semel_quota_limit{quota=\"caller_bytes\"}", 20_000).await;
    // Two answers with their heads. The usage is measured every few seconds.
    let in_range = async || {
        let metrics = send(gateway.api(), local("/metrics")).await;
        let used = "semel_quota_used{quota=\"caller_bytes\"} ";
        let used = metrics.text().lines().find_map(|line| line.strip_prefix(used)).unwrap();
        (20_000..21_000).contains(&used.parse::<u64>().unwrap())
    };
    let end = Instant::now() + TEST_TIMEOUT;
    while !in_range().await {
        assert!(Instant::now() < end, "the bytes are not counted");
        sleep(Duration::from_millis(50)).await;
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_address_whose_anonymous_outcomes_are_unknown_gets_429_while_another_goes_on() {
    let upstream = Upstream::start(|request| match request.key() {
        "good" => Reply::created(request),
        _ => Reply::new(502, "broken"),
    })
    .await;
    let setup = Setup::new(&upstream.url()).defaults("caller = \"anonymous\"");
    let setup = setup.gateway("trusted_proxies = [\"127.0.0.1\"]");
    let gateway = setup.tables("[limits]\nheld_per_caller = 2").start().await;
    let from = |address: &str, key: &str| {
        let mut request = charge(key, ORDER);
        request.headers_mut().insert("x-forwarded-for", address.parse().unwrap());
        request
    };
    for key in ["1", "2"] {
        assert_eq!(gateway.send(from("192.0.2.1", key)).await.status.as_u16(), 502);
    }
    gateway.send(from("192.0.2.1", "3")).await.assert_problem(429, "too-many-records");
    gateway.send(from("192.0.2.1", "1")).await.assert_problem(423, "outcome-unknown");
    assert_eq!(gateway.send(from("192.0.2.2", "good")).await.status.as_u16(), 201);
    assert_eq!(upstream.request_count(), 3);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_full_store_refuses_new_keys_with_503_while_replays_and_what_runs_go_on() {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| match request.key() {
            "slow" => Reply::created(request).blocked_on(&gate),
            _ => Reply::created(request),
        }
    })
    .await;
    // Nothing is cached, so that a replay comes from the store.
    let gateway = limited(&upstream, "records = 3\ncache_bytes = \"0B\"").await;
    let first = gateway.send(of("a", "1")).await;
    assert_eq!(gateway.send(of("b", "1")).await.status.as_u16(), 201);
    let running = tokio::spawn(send(gateway.address(), of("a", "slow")));
    wait_until(|| upstream.request_count() == 3).await;
    reaches(&gateway, "semel_quota_used{quota=\"records\"}", 3).await;
    for merchant in ["a", "c"] {
        let refused = gateway.send(of(merchant, "new")).await;
        refused.assert_problem(503, "store-full");
        assert_eq!(refused.header("retry-after"), Some("10"));
    }
    gateway.send(of("a", "1")).await.assert_replay_of(&first);
    gate.open();
    let slow = running.await.unwrap();
    assert_eq!(slow.status.as_u16(), 201);
    gateway.send(of("a", "slow")).await.assert_replay_of(&slow);
    assert_eq!(upstream.request_count(), 3);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_store_with_more_bytes_than_it_may_have_is_full() {
    let upstream = Upstream::plain().await;
    let gateway = limited(&upstream, "store_size = \"1B\"").await;
    let mut number = 0;
    // What it holds is measured every few seconds.
    loop {
        number += 1;
        let answer = gateway.send(of("a", &number.to_string())).await;
        if answer.status.as_u16() == 503 {
            answer.assert_problem(503, "store-full");
            break;
        }
        assert_eq!(answer.status.as_u16(), 201);
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(upstream.request_count(), number - 1);
    gateway.assert_clean_shutdown().await;
}
