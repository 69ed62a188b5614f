//! The database fails over: the primary is killed, and a standby takes over. A synchronous one has
//! everything; an asynchronous one does not, and the former primary comes back.

use std::time::Duration;

use semel_testkit::{
    servers::{Postgres, ReplicatedPair},
    wire::Proxy,
};
use tokio::time::{Instant, sleep};

use crate::{
    common::{
        Gate, Gateway, ORDER, ReceivedRequest, Reply, TEST_TIMEOUT, TestResponse, Upstream, charge,
        send, wait_until,
    },
    harness,
    load::{self, Load},
};

#[tokio::test]
async fn a_killed_primary_loses_nothing_that_its_standby_had_to_confirm() {
    let mut primary = Postgres::start(&[]);
    let database = primary.fresh_database();
    let wire = Proxy::start(primary.port());
    let standby = primary.standby_through(wire.port());
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/{database}?target_session_attrs=read-write",
        primary.port(),
        standby.port()
    );
    let upstream = load::upstream().await;
    let setup = harness::hurried(&upstream);
    let mut gateways = harness::start(&setup, &[url.clone(), url.clone(), url.clone()]).await;
    let load = Load::start(&gateways);
    load.goes_on(200).await;

    // The standby is cut off first. What the primary commits from here on is on one disk only, and
    // must not be acknowledged.
    wire.silence(true);
    // Real time must pass in which the primary commits what no standby has.
    sleep(Duration::from_secs(1)).await;
    primary.kill();
    wire.cut();
    standby.promote();

    load.goes_on(200).await;
    let ledger = load.end().await;
    gateways.extend(harness::start(&setup, &[url]).await);
    load::holds(&ledger, &upstream, gateways.last().unwrap()).await;
    harness::stop(gateways).await;
}

/// Sends a key until the gateway has found a server that takes its claim. While the gateway gives
/// back an earlier claim of this key whose reply was lost, the answer is `in-progress`.
async fn charged(gateway: &Gateway, key: &str) -> TestResponse {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let answer = gateway.send(charge(key, ORDER)).await;
        if !matches!(answer.status.as_u16(), 409 | 503) {
            assert_eq!(answer.status, 201, "{answer:?}");
            return answer;
        }
        assert!(Instant::now() < end, "{answer:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn after_an_asynchronous_failover_fences_rise_and_neither_zombie_nor_former_primary_counts() {
    let mut pair = ReplicatedPair::start();
    let gates = [Gate::new(), Gate::new()];
    let upstream = Upstream::start({
        let gates = gates.clone();
        move |request| match (request.key(), gates.get(request.run - 1)) {
            ("zombie", Some(gate)) => Reply::created(request).blocked_on(gate),
            _ => Reply::created(request),
        }
    })
    .await;
    let setup = harness::on(&upstream).defaults("wait = \"0s\"");
    let gateways = harness::start(&setup, &[pair.url(), pair.url()]).await;
    let [first, second] = &gateways[..] else { panic!("two gateways") };
    let known = charged(first, "known").await;
    pair.replicate();

    // From here on the standby gets nothing: these claims are acknowledged, and lost.
    pair.wire.silence(true);
    let zombie = tokio::spawn(send(first.address(), charge("zombie", ORDER)));
    wait_until(|| upstream.requests_with_key("zombie").len() == 1).await;
    for number in 0..20 {
        charged(second, &format!("lost-{number}")).await;
    }
    let highest = upstream.requests().iter().map(ReceivedRequest::fence).max().unwrap();
    pair.fail_over();

    // The key of the zombie is free again: the page on failure semantics says so.
    let late = async {
        wait_until(|| upstream.requests_with_key("zombie").len() == 2).await;
        gates[0].open();
        // It has lost its record to a run that has not ended.
        zombie.await.unwrap().assert_problem(409, "in-progress");
        gates[1].open();
    };
    let (owner, ()) = tokio::join!(charged(second, "zombie"), late);
    let runs = upstream.requests_with_key("zombie");
    assert_eq!(runs.len(), 2);
    assert!(owner.text().contains(&format!("\"charge\": {}}}", runs[1].number)), "{owner:?}");
    for gateway in &gateways {
        charged(gateway, "zombie").await.assert_replay_of(&owner);
        charged(gateway, "known").await.assert_replay_of(&known);
    }
    assert!(runs[1].fence() > highest, "{} after {highest}", runs[1].fence());

    // The former primary is back, takes writes, and is the first in the URL.
    pair.restart_former_primary();
    pair.disconnect();
    for (gateway, key) in gateways.iter().zip(["back-1", "back-2"]) {
        charged(gateway, key).await;
        let records = (pair.primary.records(key), pair.standby.records(key));
        assert_eq!(records, ("0".to_owned(), "1".to_owned()), "{key}");
        assert!(upstream.requests_with_key(key)[0].fence() > highest);
    }
    let ran = upstream.request_count();
    pair.standby.stop();
    for gateway in &gateways {
        gateway.send(charge("refused", ORDER)).await.assert_problem(503, "store-unavailable");
        gateway.wait_for_log("a former primary: it continues timeline 1").await;
    }
    assert_eq!(upstream.request_count(), ran);
    assert_eq!(pair.primary.records("refused"), "0");
    pair.standby.start_again();
    charged(first, "refused").await;
    harness::stop(gateways).await;
}
