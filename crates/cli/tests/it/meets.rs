//! What a request meets: the first table of states, row by row.

use std::time::Duration;

use semel::core::StateName;
use tokio::{task::JoinHandle, time::sleep};

use crate::common::{
    Gate, Gateway, ORDER, Reply, Setup, TestResponse, Upstream, charge, send, wait_until,
};

const OTHER: &str = r#"{"amount":1000,"to":"zoe"}"#;

/// A request on its way.
fn on_its_way(gateway: &Gateway, key: &'static str) -> JoinHandle<TestResponse> {
    tokio::spawn(send(gateway.address(), charge(key, ORDER)))
}

#[tokio::test]
async fn a_new_key_runs_once_as_attempt_one_and_is_replayed() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let first = gateway.send(charge("k", ORDER)).await;
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&first);
    // Spelled in another way it is the same request.
    let spelled_otherwise = charge("k", r#"{ "to": "z\u006fe", "amount": 1e2 }"#);
    gateway.send(spelled_otherwise).await.assert_replay_of(&first);
    let runs = upstream.requests_with_key("k");
    assert_eq!((runs.len(), runs[0].attempt()), (1, 1));
    assert_eq!(runs[0].body, ORDER);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_replay_outlives_a_restart() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let gateway = setup.start().await;
    let first = gateway.send(charge("k", ORDER)).await;
    gateway.assert_clean_shutdown().await;
    let gateway = setup.start().await;
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&first);
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn past_retention_a_key_is_new_again() {
    let upstream = Upstream::start(|request| match request.key() {
        "released" if request.run == 1 => Reply::new(429, "not now"),
        _ => Reply::created(request),
    })
    .await;
    let setup = Setup::new(&upstream.url()).defaults("lease = \"1s\"\nretention = \"1s\"");
    let gateway = setup.start().await;
    for key in ["completed", "released"] {
        gateway.send(charge(key, ORDER)).await;
    }
    // Where less than half of its retention was left at the end, it has restarted.
    sleep(Duration::from_millis(2500)).await;
    for key in ["completed", "released"] {
        let answer = gateway.send(charge(key, OTHER)).await;
        assert_eq!((answer.status.as_u16(), answer.is_replayed()), (201, false), "{key}");
        let attempts: Vec<u64> =
            upstream.requests_with_key(key).iter().map(|run| run.attempt()).collect();
        assert_eq!(attempts, [1, 1], "{key}");
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_released_key_runs_again_with_the_next_attempt_and_a_higher_fence() {
    let upstream = Upstream::start(|request| match request.run {
        1 | 2 => Reply::new(429, "not now"),
        _ => Reply::created(request),
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    for _ in 0..2 {
        let answer = gateway.send(charge("k", ORDER)).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (429, "not now"));
        assert_eq!(gateway.state("k").await, Some(StateName::Released));
    }
    let third = gateway.send(charge("k", ORDER)).await;
    assert_eq!(third.status.as_u16(), 201);
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&third);
    let runs = upstream.requests_with_key("k");
    let attempts: Vec<u64> = runs.iter().map(|run| run.attempt()).collect();
    assert_eq!(attempts, [1, 2, 3]);
    assert!(runs.is_sorted_by(|one, two| one.fence() < two.fence()));
    gateway.assert_clean_shutdown().await;
}

/// Twenty who join one that runs get what it gets.
async fn joiners_get(status: u16) {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| Reply::new(status, format!("run {}", request.run)).blocked_on(&gate)
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let first = on_its_way(&gateway, "k");
    wait_until(|| upstream.request_count() == 1).await;
    let joiners: Vec<_> = (0..20).map(|_| on_its_way(&gateway, "k")).collect();
    crate::operators::reaches(&gateway, "semel_waiting", 20).await;
    gate.open();
    let first = first.await.unwrap();
    assert_eq!((first.status.as_u16(), first.text()), (status, "run 1"));
    for joiner in joiners {
        let joiner = joiner.await.unwrap();
        assert_eq!((joiner.status, &joiner.body), (first.status, &first.body));
    }
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn joined_requests_get_a_recorded_answer() {
    joiners_get(201).await;
}

#[tokio::test]
async fn joined_requests_get_an_unrecorded_answer_without_another_execution() {
    joiners_get(503).await;
}

#[tokio::test]
async fn a_waiter_that_times_out_gets_a_retry_after() {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| Reply::created(request).blocked_on(&gate)
    })
    .await;
    let setup = Setup::new(&upstream.url()).defaults("wait = \"200ms\"");
    let (gateway, elsewhere) = (setup.start().await, setup.start().await);
    let first = on_its_way(&gateway, "k");
    wait_until(|| upstream.request_count() == 1).await;
    for place in [&gateway, &elsewhere] {
        let answer = place.send(charge("k", ORDER)).await;
        answer.assert_problem(409, "in-progress");
        let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=30).contains(&seconds), "{seconds}");
    }
    gate.open();
    let first = first.await.unwrap();
    for place in [&gateway, &elsewhere] {
        place.send(charge("k", ORDER)).await.assert_replay_of(&first);
    }
    assert_eq!(upstream.request_count(), 1);
    elsewhere.assert_clean_shutdown().await;
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn with_no_wait_at_all_the_answer_is_at_once() {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| Reply::created(request).blocked_on(&gate)
    })
    .await;
    let gateway = Setup::new(&upstream.url()).defaults("wait = \"0s\"").start().await;
    let first = on_its_way(&gateway, "k");
    wait_until(|| upstream.request_count() == 1).await;
    gateway.send(charge("k", ORDER)).await.assert_problem(409, "in-progress");
    gate.open();
    assert_eq!(first.await.unwrap().status.as_u16(), 201);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_waiter_on_another_gateway_gets_a_replay() {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| Reply::created(request).blocked_on(&gate)
    })
    .await;
    let setup = Setup::new(&upstream.url()).defaults("wait = \"50s\"");
    let (gateway, elsewhere) = (setup.start().await, setup.start().await);
    let first = on_its_way(&gateway, "k");
    wait_until(|| upstream.request_count() == 1).await;
    let waiter = on_its_way(&elsewhere, "k");
    crate::operators::reaches(&elsewhere, "semel_waiting", 1).await;
    gate.open();
    let first = first.await.unwrap();
    waiter.await.unwrap().assert_replay_of(&first);
    assert_eq!(upstream.request_count(), 1);
    elsewhere.assert_clean_shutdown().await;
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_waiter_on_another_gateway_for_a_released_record_runs_nothing() {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |_| Reply::new(429, "no").blocked_on(&gate)
    })
    .await;
    let setup = Setup::new(&upstream.url()).defaults("wait = \"50s\"");
    let (gateway, elsewhere) = (setup.start().await, setup.start().await);
    let first = on_its_way(&gateway, "k");
    wait_until(|| upstream.request_count() == 1).await;
    let waiter = on_its_way(&elsewhere, "k");
    crate::operators::reaches(&elsewhere, "semel_waiting", 1).await;
    gate.open();
    assert_eq!(first.await.unwrap().text(), "no");
    let waiter = waiter.await.unwrap();
    waiter.assert_problem(409, "in-progress");
    assert!(waiter.header("retry-after").is_some());
    assert_eq!(upstream.request_count(), 1);
    elsewhere.assert_clean_shutdown().await;
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn another_request_under_the_same_key_is_refused_in_every_state() {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| match request.key() {
            "completed" => Reply::created(request),
            "released" => Reply::new(500, ""),
            "held" => Reply::closed(),
            _ => Reply::created(request).blocked_on(&gate),
        }
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    for key in ["completed", "released", "held"] {
        gateway.send(charge(key, ORDER)).await;
    }
    let running = on_its_way(&gateway, "in_flight");
    wait_until(|| upstream.request_count() == 4).await;
    let before = gateway.records().await;
    for key in ["in_flight", "completed", "released", "held"] {
        gateway.send(charge(key, OTHER)).await.assert_problem(422, "key-reused");
    }
    // Another path or method is another request too.
    let mut elsewhere = charge("completed", ORDER);
    *elsewhere.uri_mut() = "/refunds".parse().unwrap();
    gateway.send(elsewhere).await.assert_problem(422, "key-reused");
    let mut patch = charge("completed", ORDER);
    *patch.method_mut() = http::Method::PATCH;
    gateway.send(patch).await.assert_problem(422, "key-reused");
    let unchanged = |records: Vec<semel::core::Summary>| {
        let record = |it: semel::core::Summary| (it.id.key.to_string(), it.state, it.fence.get());
        let mut records: Vec<_> = records.into_iter().map(record).collect();
        records.sort_unstable();
        records
    };
    assert_eq!(unchanged(gateway.records().await), unchanged(before));
    assert_eq!(upstream.request_count(), 4);
    gate.open();
    assert_eq!(running.await.unwrap().status.as_u16(), 201);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_held_key_stays_held() {
    let upstream = Upstream::start(|_| Reply::closed()).await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    gateway.send(charge("k", ORDER)).await.assert_problem(504, "upstream-timeout");
    for _ in 0..3 {
        gateway.send(charge("k", ORDER)).await.assert_problem(423, "outcome-unknown");
    }
    assert_eq!(gateway.state("k").await, Some(StateName::Held));
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}
