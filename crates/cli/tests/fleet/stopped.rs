//! The database is stopped for a while under load, and started again.

use std::time::Duration;

use semel_testkit::{servers::Postgres, torture};
use tokio::time::{Instant, sleep};

use crate::{
    common::{Gateway, ORDER, TEST_TIMEOUT, charge},
    harness,
    load::{self, Load},
};

/// What the first refusal takes at most, unless the machine is busy, so it holds for one gateway:
/// the default timeout of a claim and a second.
const FIRST_REFUSAL: Duration = Duration::from_secs(3);

/// What is answered at once takes less than this, unless the machine is busy: so it holds for most
/// answers, and not for each.
const AT_ONCE: Duration = Duration::from_millis(1000);

/// Sends a new key to a gateway whose database is away, and returns how long the refusal took.
async fn refused(gateway: &Gateway, key: &str) -> Duration {
    let begun = Instant::now();
    gateway.send(charge(key, ORDER)).await.assert_problem(503, "store-unavailable");
    begun.elapsed()
}

#[tokio::test]
async fn torture_of_a_database_that_is_stopped_runs_nothing_twice_and_holds_nothing() {
    let time = Duration::from_secs(if torture() { 60 } else { 5 });
    let mut server = Postgres::start(&[]);
    let database = server.fresh_database();
    let url = server.url(&database);
    let upstream = load::upstream().await;
    let setup = harness::hurried(&upstream);
    let mut gateways = harness::start(&setup, &[url.clone(), url.clone()]).await;
    let load = Load::start(&gateways);
    load.goes_on(100).await;
    let known = gateways[0].send(charge("known-0", ORDER)).await;
    assert_eq!(known.status, 201);

    server.stop();
    let end = Instant::now() + time;
    let [one, other] = [&gateways[0], &gateways[1]];
    let (one, other) = tokio::join!(refused(one, "away-one-0"), refused(other, "away-other-0"));
    assert!(one.min(other) < FIRST_REFUSAL, "{one:?} {other:?}");
    let (mut number, mut refusals, mut replays) = (0, Vec::new(), Vec::new());
    while Instant::now() < end {
        refusals.push(refused(&gateways[0], &format!("away-{number}-0")).await);
        let begun = Instant::now();
        gateways[0].send(charge("known-0", ORDER)).await.assert_replay_of(&known);
        replays.push(begun.elapsed());
        number += 1;
        sleep(Duration::from_millis(100)).await;
    }
    server.start_again();
    for mut all in [refusals, replays] {
        all.sort();
        assert!(all[all.len() / 2] < AT_ONCE, "{all:?}");
    }

    load.goes_on(100).await;
    let ledger = load.end().await;
    gateways.extend(harness::start(&setup, &[url]).await);
    let fresh = gateways.last().unwrap();
    load::holds(&ledger, &upstream, fresh).await;
    // What was refused has not run, and its key is free.
    for number in 0..number {
        let key = format!("away-{number}-0");
        assert!(upstream.requests_with_key(&key).is_empty(), "{key}");
        assert_eq!(fresh.send(charge(&key, ORDER)).await.status, 201, "{key}");
    }
    nothing_is_held(&server, &database).await;
    harness::stop(gateways).await;
}

/// Waits until every operation has ended: those that ended while the database was away are recorded
/// when it is back, and claims that may have been granted are given back.
async fn nothing_is_held(server: &Postgres, database: &str) {
    let open = "SELECT key, state, reason FROM semel_records \
                WHERE state IN ('held', 'in_flight') ORDER BY key";
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let left = server.sql(database, open);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < end && !left.contains("|held|"), "{left}");
        sleep(Duration::from_millis(100)).await;
    }
}
