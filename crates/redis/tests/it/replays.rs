//! An operation completed on one gateway is replayed on another without a store read.

use std::time::Duration;

use semel::core::{Occupied, Store as _};
use semel_redis::Options;
use semel_testkit::{servers::Redis, with};

use crate::harness::{TestFleet, assert_replays, claim, fingerprint, granted, occupied, until};

#[tokio::test]
async fn a_replay_on_another_gateway_costs_no_read_of_the_store() {
    let fleet = TestFleet::new(3).await;
    fleet.run(0, "k", "paid").await;
    fleet.entries(1).await;
    assert_eq!(fleet.asked(), 1);
    for front in [0, 1, 2] {
        assert_replays(&fleet.repeat_after_epoch(front, "k").await, "paid");
    }
    assert_eq!(fleet.asked(), 1, "only the first claim reached the store");
    assert_eq!(fleet.fronts[2].counts().hits, 1);
}

#[tokio::test]
async fn another_request_under_a_completed_key_is_refused_without_asking_the_store() {
    let fleet = TestFleet::new(2).await;
    fleet.run(0, "k", "paid").await;
    fleet.entries(1).await;
    let other = with(claim("k"), |it| it.fingerprint = fingerprint(2));
    fleet.fronts[1].epoch().await.unwrap();
    assert_eq!(
        occupied(fleet.fronts[1].claim(&other).await.unwrap()),
        Occupied::FingerprintMismatch
    );
    assert_eq!(fleet.asked(), 1);
}

#[tokio::test]
async fn an_answer_read_by_one_gateway_is_cached_for_the_others() {
    let redis = Redis::start();
    let options = Options::parse(&redis.url()).unwrap().cache_on_claim_only();
    let fleet = TestFleet::with(redis, 2, &options).await;
    fleet.run(0, "k", "paid").await;
    assert_replays(&fleet.repeat_after_epoch(0, "k").await, "paid");
    assert_eq!(fleet.asked(), 2);
    fleet.entries(1).await;
    assert_replays(&fleet.repeat_after_epoch(1, "k").await, "paid");
    assert_eq!(fleet.asked(), 2);
}

#[tokio::test]
async fn a_replay_reports_the_remaining_retention() {
    let fleet = TestFleet::new(2).await;
    fleet.run(0, "k", "paid").await;
    let met = fleet.until_hit(1, "k").await;
    let Occupied::Completed { expires_in, .. } = met else { panic!("{met:?}") };
    assert!(expires_in < claim("k").retention, "{expires_in:?}");
    assert!(expires_in > claim("k").retention / 2, "{expires_in:?}");
}

#[tokio::test]
async fn an_entry_expires_before_its_record() {
    let fleet = TestFleet::new(1).await;
    for (key, retention) in [("short", 20), ("long", 24 * 3600)] {
        let claim = with(claim(key), |it| it.retention = Duration::from_secs(retention));
        let fence = granted(fleet.fronts[0].claim(&claim).await.unwrap()).fence;
        fleet.complete(0, &claim, fence, "x").await;
        fleet.entries(1).await;
        let name = fleet.names().await.remove(0);
        let millis: u64 =
            redis::cmd("PTTL").arg(&name).query_async(&mut fleet.connection().await).await.unwrap();
        // Five seconds before the record, and never later than in ten minutes.
        let most = if key == "short" { 15_000 } else { 600_000 };
        assert!(millis > 0 && millis <= most, "{key}: {millis}");
        fleet.redis.flush();
    }
}

#[tokio::test]
async fn a_record_that_soon_expires_is_not_written() {
    let fleet = TestFleet::new(1).await;
    let claim = with(claim("k"), |it| it.retention = Duration::from_secs(4));
    let fence = granted(fleet.fronts[0].claim(&claim).await.unwrap()).fence;
    fleet.complete(0, &claim, fence, "x").await;
    assert_eq!(fleet.fronts[0].counts().writes, 0);
}

#[tokio::test]
async fn a_large_answer_is_replayed_by_the_store() {
    let fleet = TestFleet::new(2).await;
    let body = "x".repeat(100 << 10);
    fleet.run(0, "k", &body).await;
    assert_replays(&fleet.repeat_after_epoch(1, "k").await, &body);
    assert_eq!((fleet.asked(), fleet.fronts[1].counts().writes), (2, 0));
}

#[tokio::test]
async fn an_entry_under_the_wrong_key_is_ignored() {
    let fleet = TestFleet::new(2).await;
    fleet.run(0, "two", "of two").await;
    fleet.entries(1).await;
    let two = fleet.names().await.remove(0);
    fleet.redis.flush();
    fleet.run(0, "one", "of one").await;
    fleet.entries(1).await;
    let one = fleet.names().await.remove(0);
    assert_ne!(one, two);
    let mut connection = fleet.connection().await;
    let () = redis::cmd("RENAME").arg(&one).arg(&two).query_async(&mut connection).await.unwrap();
    assert_replays(&fleet.repeat_after_epoch(1, "two").await, "of two");
    assert_eq!(fleet.fronts[1].counts().hits, 0);
}

#[tokio::test]
async fn a_corrupt_entry_is_ignored_and_replaced() {
    let fleet = TestFleet::new(2).await;
    fleet.run(0, "k", "paid").await;
    fleet.entries(1).await;
    let name = fleet.names().await.remove(0);
    let mut connection = fleet.connection().await;
    let () = redis::cmd("SETRANGE")
        .arg(&name)
        .arg(60)
        .arg("#")
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_replays(&fleet.repeat_after_epoch(1, "k").await, "paid");
    assert_eq!((fleet.asked(), fleet.fronts[1].counts().hits), (2, 0));
    assert_replays(&fleet.until_hit(1, "k").await, "paid");
}

#[tokio::test]
async fn two_stores_on_one_redis_are_isolated() {
    let first = TestFleet::new(1).await;
    first.run(0, "k", "of the first").await;
    first.entries(1).await;
    let second = TestFleet::on(first.redis, 2).await;
    second.run(0, "k", "of the second").await;
    assert_replays(&second.until_hit(1, "k").await, "of the second");
}

#[tokio::test]
async fn concurrent_lookups_share_a_command() {
    let fleet = std::sync::Arc::new(TestFleet::new(2).await);
    fleet.run(0, "k", "paid").await;
    fleet.entries(1).await;
    fleet.fronts[1].epoch().await.unwrap();
    let commands = async || -> String {
        let mut connection = fleet.connection().await;
        redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await.unwrap()
    };
    let (mut waiting, lookups) = (Vec::new(), 500);
    for _ in 0..lookups {
        let fleet = std::sync::Arc::clone(&fleet);
        waiting.push(tokio::spawn(async move { fleet.repeat(1, "k").await }));
    }
    for replay in waiting {
        assert_replays(&replay.await.unwrap(), "paid");
    }
    until("the questions are counted", async || commands().await.contains("cmdstat_mget")).await;
    let stats = commands().await;
    let line = stats.lines().find(|line| line.starts_with("cmdstat_mget")).unwrap();
    let calls = line.split(['=', ',']).nth(1).unwrap().parse::<u64>().unwrap();
    let counted = fleet.fronts.iter().map(|front| front.counts().lookups).sum::<u64>();
    assert!(counted >= lookups && calls < lookups / 2, "{calls} commands for {counted} lookups");
}
