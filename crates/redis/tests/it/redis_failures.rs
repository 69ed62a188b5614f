//! A failure of Redis costs at most a read of the store.

use std::time::Duration;

use semel::core::{Resolution, StateName, Store as _};
use semel_redis::Options;
use semel_testkit::servers::Redis;
use tokio::time::timeout;

use crate::harness::{TestFleet, assert_replays, claim, granted};

const FORGET: Resolution = Resolution::Deleted(StateName::Completed);

/// Far more than a request may wait for Redis, even on a busy machine.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs and replays a few keys, each within the timeout.
async fn serves(fleet: &TestFleet, name: &str) {
    for number in 0..5 {
        let key = format!("{name}-{number}");
        timeout(CLAIM_TIMEOUT, fleet.run(0, &key, &key)).await.expect("a claim is delayed");
        let repeat =
            timeout(CLAIM_TIMEOUT, fleet.repeat(1, &key)).await.expect("a repeat is delayed");
        assert_replays(&repeat, &key);
    }
}

#[tokio::test]
async fn without_redis_the_store_answers_and_with_it_redis_does_again() {
    let mut fleet = TestFleet::new(2).await;
    fleet.run(0, "k", "paid").await;
    assert_replays(&fleet.until_hit(1, "k").await, "paid");
    fleet.redis.kill();
    serves(&fleet, "killed").await;
    fleet.connected(false).await;
    fleet.redis.start_again();
    fleet.connected(true).await;
    assert_replays(&fleet.until_hit(1, "k").await, "paid");
}

#[tokio::test]
async fn redis_may_be_down_at_the_start() {
    let mut redis = Redis::start();
    let options = Options::parse(&redis.url()).unwrap();
    redis.kill();
    let store = semel::MemoryStore::new();
    let front =
        semel_redis::RedisCache::connect(std::sync::Arc::new(store), options).await.unwrap();
    granted(front.claim(&claim("k")).await.unwrap());
    redis.start_again();
    crate::harness::until("it is found", async || front.counts().connected).await;
}

#[tokio::test]
async fn a_hanging_redis_is_not_used_until_it_replies() {
    let mut fleet = TestFleet::new(2).await;
    fleet.redis.pause();
    serves(&fleet, "paused").await;
    fleet.connected(false).await;
    let lookups = fleet.fronts[1].counts().lookups;
    serves(&fleet, "out").await;
    assert!(fleet.fronts[1].counts().lookups <= lookups, "it is asked though it does not answer");
    fleet.redis.resume();
    fleet.connected(true).await;
    fleet.run(0, "after", "paid").await;
    assert_replays(&fleet.until_hit(1, "after").await, "paid");
}

#[tokio::test]
async fn a_flushed_answer_is_read_from_the_store_and_cached_again() {
    let fleet = TestFleet::new(2).await;
    fleet.run(0, "k", "paid").await;
    assert_replays(&fleet.until_hit(1, "k").await, "paid");
    fleet.redis.flush();
    let asked = fleet.asked();
    assert_replays(&fleet.repeat_after_epoch(1, "k").await, "paid");
    assert_eq!(fleet.asked(), asked + 1);
    assert_replays(&fleet.until_hit(0, "k").await, "paid");
}

#[tokio::test]
async fn an_old_snapshot_replays_no_old_answers() {
    let mut fleet = TestFleet::new(2).await;
    let grant = fleet.run(0, "k", "old").await;
    fleet.run(0, "other", "still true").await;
    fleet.entries(2).await;
    let snapshot = fleet.redis.snapshot();
    fleet.fronts[0].resolve(&claim("k").id, grant.fence, &FORGET).await.unwrap();
    fleet.run(0, "k", "new").await;
    fleet.redis.restore(&snapshot);
    fleet.connected(true).await;
    for front in [0, 1] {
        assert_replays(&fleet.repeat_after_epoch(front, "k").await, "new");
        assert_replays(&fleet.repeat_after_epoch(front, "other").await, "still true");
    }
}

#[tokio::test]
async fn a_redis_that_refuses_the_password_is_not_used() {
    let redis = Redis::start_with(&[("user", "semel on >right ~semel:* &semel:* +@all")]);
    let url = redis.url().replace("redis://", "redis://semel:wrong@");
    let store = std::sync::Arc::new(semel::MemoryStore::new());
    let front =
        semel_redis::RedisCache::connect(store, Options::parse(&url).unwrap()).await.unwrap();
    for number in 0..20 {
        granted(front.claim(&claim(&format!("k-{number}"))).await.unwrap());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!front.counts().connected);
}

#[tokio::test]
async fn a_full_redis_is_still_read() {
    let fleet = TestFleet::new(2).await;
    fleet.run(0, "k", "paid").await;
    fleet.entries(1).await;
    fleet.redis.command("CONFIG SET maxmemory 1");
    fleet.run(0, "more", "paid too").await;
    assert_replays(&fleet.until_hit(1, "k").await, "paid");
    assert_replays(&fleet.repeat_after_epoch(1, "more").await, "paid too");
    assert!(fleet.fronts[1].counts().connected);
}

#[tokio::test]
async fn a_redis_that_became_a_replica_is_not_used() {
    let fleet = TestFleet::new(2).await;
    fleet.redis.command("REPLICAOF 127.0.0.1 1");
    serves(&fleet, "replica").await;
    fleet.redis.command("REPLICAOF NO ONE");
    fleet.connected(true).await;
    fleet.run(0, "k", "paid").await;
    assert_replays(&fleet.until_hit(1, "k").await, "paid");
}
