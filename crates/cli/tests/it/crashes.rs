//! A gateway that is killed or stopped in the middle: what its successor and its neighbour do.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use semel::core::StateName;
use tokio::time::{Instant, sleep};

use crate::{
    common::{
        Client, Gate, Gateway, ORDER, Reply, Setup, TEST_TIMEOUT, TestResponse, Upstream, charge,
        send, wait_until,
    },
    operators::reaches,
};

/// An upstream whose first run of each key waits at the gate, and a setup with a short lease.
async fn short_lease(on_unknown: &str) -> (Upstream, Gate, Setup) {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| match request.run {
            1 => Reply::created(request).blocked_on(&gate),
            _ => Reply::created(request),
        }
    })
    .await;
    let setup = Setup::new(&upstream.url())
        .defaults("lease = \"1s\"\nwait = \"0s\"")
        .defaults(format!("on_unknown = \"{on_unknown}\""));
    (upstream, gate, setup)
}

/// Asks until the lease of the first run has lapsed.
async fn after_the_lease(gateway: &Gateway) -> TestResponse {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let answer = gateway.send(charge("k", ORDER)).await;
        if answer.status.as_u16() != 409 || answer.slug() != "in-progress" {
            return answer;
        }
        assert!(answer.header("retry-after").is_some());
        assert!(Instant::now() < end, "the lease never lapses");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Kills a gateway while `k` runs and starts its successor.
async fn killed(on_unknown: &str) -> (Upstream, Gateway) {
    let (upstream, _gate, setup) = short_lease(on_unknown).await;
    let gateway = setup.start().await;
    let mut client = gateway.connect().await;
    let first = tokio::spawn(async move { client.try_send(charge("k", ORDER)).await });
    wait_until(|| upstream.request_count() == 1).await;
    gateway.kill();
    assert!(first.await.unwrap().is_err(), "no gateway answers any more");
    (upstream, setup.start().await)
}

#[tokio::test]
async fn killed_under_hold_it_is_held_after_the_lease() {
    let (upstream, gateway) = killed("hold").await;
    after_the_lease(&gateway).await.assert_problem(423, "outcome-unknown");
    gateway.send(charge("k", ORDER)).await.assert_problem(423, "outcome-unknown");
    assert_eq!(gateway.state("k").await, Some(StateName::Held));
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn killed_under_rerun_it_runs_again_with_a_higher_fence() {
    let (upstream, gateway) = killed("rerun").await;
    let second = after_the_lease(&gateway).await;
    assert_eq!((second.status.as_u16(), second.is_replayed()), (201, false));
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&second);
    let runs = upstream.requests_with_key("k");
    assert_eq!((runs.len(), runs[0].attempt(), runs[1].attempt()), (2, 1, 2));
    assert!(runs[0].fence() < runs[1].fence());
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn killed_under_fail_it_has_failed_for_good() {
    let (upstream, gateway) = killed("fail").await;
    let second = after_the_lease(&gateway).await;
    second.assert_problem(500, "operation-failed");
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&second);
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_expired_record_is_held_by_maintenance_alone() {
    let (upstream, gateway) = killed("hold").await;
    reaches(&gateway, "semel_lapsed_total", 1).await;
    assert_eq!(gateway.state("k").await, Some(StateName::Held));
    let held = r#"semel_held{scope="default",reason="lease-expired"}"#;
    reaches(&gateway, held, 1).await;
    let names_it =
        |line: &String| line.contains("semel list --state held") && line.contains("lease expired)");
    wait_until(|| gateway.log_lines().iter().any(names_it)).await;
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

/// Stops a gateway while `k` runs there, until its lease has lapsed and a neighbour has said what
/// it makes of it. Then lets it go on and opens the gate.
async fn overtaken(on_unknown: &str) -> (Upstream, Gateway, TestResponse, TestResponse) {
    let (upstream, gate, setup) = short_lease(on_unknown).await;
    let (gateway, neighbour) = (setup.start().await, setup.start().await);
    let late = tokio::spawn(send(gateway.address(), charge("k", ORDER)));
    wait_until(|| upstream.request_count() == 1).await;
    gateway.signal("STOP");
    let answer = after_the_lease(&neighbour).await;
    gateway.signal("CONT");
    gate.open();
    let late = late.await.unwrap();
    gateway.assert_clean_shutdown().await;
    (upstream, neighbour, answer, late)
}

#[tokio::test]
async fn an_owner_that_was_overtaken_gives_what_the_record_says() {
    let (upstream, neighbour, answer, late) = overtaken("rerun").await;
    assert_eq!(answer.text(), "{\"key\": \"k\", \"charge\": 2}\n");
    assert_eq!((late.status, &late.body), (answer.status, &answer.body));
    neighbour.send(charge("k", ORDER)).await.assert_replay_of(&answer);
    assert_eq!(upstream.requests_with_key("k").len(), 2);
    neighbour.assert_clean_shutdown().await;
}

#[tokio::test]
async fn the_late_truth_of_an_owner_beats_a_guess() {
    let (upstream, neighbour, answer, late) = overtaken("hold").await;
    answer.assert_problem(423, "outcome-unknown");
    assert_eq!(late.text(), "{\"key\": \"k\", \"charge\": 1}\n");
    neighbour.send(charge("k", ORDER)).await.assert_replay_of(&late);
    assert_eq!(upstream.requests_with_key("k").len(), 1);
    neighbour.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_final_failure_is_not_undone_by_an_owner_that_comes_late() {
    let (upstream, neighbour, answer, late) = overtaken("fail").await;
    answer.assert_problem(500, "operation-failed");
    late.assert_problem(500, "operation-failed");
    neighbour.send(charge("k", ORDER)).await.assert_replay_of(&answer);
    assert_eq!(upstream.requests_with_key("k").len(), 1);
    neighbour.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_answer_acknowledged_before_a_kill_is_replayed_after_it() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url()).defaults("lease = \"1s\"\nwait = \"0s\"");
    let gateway = setup.start().await;
    let acknowledged: Arc<Mutex<BTreeMap<String, TestResponse>>> = Arc::default();
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..16 {
        let (address, acknowledged) = (gateway.address(), Arc::clone(&acknowledged));
        clients.spawn(async move {
            let mut client = Client::connect(address).await;
            for round in 0.. {
                let key = format!("{number}-{round}");
                let Ok(answer) = client.try_send(charge(&key, ORDER)).await else { break };
                acknowledged.lock().unwrap().insert(key, answer);
            }
        });
    }
    wait_until(|| acknowledged.lock().unwrap().len() > 200).await;
    gateway.kill();
    clients.join_all().await;
    let gateway = setup.start().await;
    let acknowledged = acknowledged.lock().unwrap().clone();
    let mut client = gateway.connect().await;
    for (key, answer) in &acknowledged {
        client.send(charge(key, ORDER)).await.assert_replay_of(answer);
    }
    for request in upstream.requests() {
        assert_eq!(upstream.requests_with_key(request.key()).len(), 1, "{}", request.key());
    }
}
