//! Gateways whose way to the database leads through `PgBouncer` in transaction mode.

use std::time::Duration;

use semel_testkit::servers::{self, PgBouncer};
use tokio::time::{Instant, sleep};

use crate::{
    common::{
        Gate, Gateway, ORDER, Reply, TEST_TIMEOUT, TestResponse, Upstream, charge, wait_until,
    },
    harness, together,
};

#[tokio::test]
async fn fifty_at_once_through_a_pooler_run_once_and_get_equal_answers() {
    let postgres = servers::postgres();
    let pooler = PgBouncer::start(postgres);
    let database = postgres.fresh_database();
    let (median, gateways) = together::fifty_at_once(&pooler.url(&database)).await;
    eprintln!("through a pooler, others had their answer {median:?} after the first (median)");
    harness::stop(gateways).await;
}

#[tokio::test]
async fn a_gateway_killed_behind_a_pooler_leaves_a_held_key_under_hold() {
    let (upstream, answer) = killed("hold").await;
    answer.assert_problem(423, "outcome-unknown");
    assert_eq!(upstream.request_count(), 1);
}

#[tokio::test]
async fn a_gateway_killed_behind_a_pooler_is_overtaken_under_rerun() {
    let (upstream, answer) = killed("rerun").await;
    assert_eq!(answer.text(), "{\"key\": \"k\", \"charge\": 2}\n");
    let runs = upstream.requests_with_key("k");
    assert_eq!((runs.len(), runs[0].attempt(), runs[1].attempt()), (2, 1, 2));
    assert!(runs[0].fence() < runs[1].fence());
}

/// Kills the gateway that runs a key, and gives what its neighbour makes of that key in the end.
async fn killed(on_unknown: &str) -> (Upstream, TestResponse) {
    let postgres = servers::postgres();
    let pooler = PgBouncer::start(postgres);
    let url = pooler.url(&postgres.fresh_database());
    let gate = Gate::new();
    let upstream = Upstream::start(move |request| match request.run {
        1 => Reply::created(request).blocked_on(&gate),
        _ => Reply::created(request),
    })
    .await;
    let setup = harness::hurried(&upstream).defaults(format!("on_unknown = \"{on_unknown}\""));
    let mut gateways = harness::start(&setup, &[url.clone(), url]).await;
    let mut client = gateways[0].connect().await;
    let first = tokio::spawn(async move { client.try_send(charge("k", ORDER)).await });
    wait_until(|| upstream.request_count() == 1).await;
    gateways.remove(0).kill();
    assert!(first.await.unwrap().is_err(), "no gateway answers any more");
    let answer = after_the_lease(&gateways[0]).await;
    harness::stop(gateways).await;
    (upstream, answer)
}

/// Asks until the lease of the first run has lapsed.
async fn after_the_lease(gateway: &Gateway) -> TestResponse {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let answer = gateway.send(charge("k", ORDER)).await;
        if answer.status.as_u16() != 409 || answer.slug() != "in-progress" {
            return answer;
        }
        assert!(Instant::now() < end, "the lease never lapses");
        sleep(Duration::from_millis(50)).await;
    }
}
