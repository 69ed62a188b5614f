//! Whoever waits on one gateway is told by another, where the store itself cannot.

use std::time::Duration;

use semel::core::{Finish, Reason, Release, Store as _};
use tokio::time::Instant;

use crate::fleet::{Fleet, claim, granted, until};

/// A watch that nobody tells ends by itself after a second.
const TOLD: Duration = Duration::from_millis(900);

#[tokio::test]
async fn an_end_on_one_gateway_wakes_those_who_wait_on_another() {
    let fleet = Fleet::new(2).await;
    // A busy machine may tell late; it must tell in time now and then.
    until("the end is told before the watch gives up", async || {
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let claim = claim(&format!("k-{number}"));
        let fence = granted(fleet.fronts[0].claim(&claim).await.unwrap()).fence;
        let begun = Instant::now();
        let Some(changed) = fleet.fronts[1].watch(&claim.id).await.unwrap() else { return false };
        let released = Finish::release(Release::Refused, Reason::Answered(429));
        fleet.finish(0, &claim, fence, &released).await;
        changed.await;
        begun.elapsed() < TOLD
    })
    .await;
}

#[tokio::test]
async fn a_watch_ends_by_itself() {
    let fleet = Fleet::new(1).await;
    let claim = claim("k");
    granted(fleet.fronts[0].claim(&claim).await.unwrap());
    let changed = fleet.fronts[0].watch(&claim.id).await.unwrap();
    changed.expect("Redis can tell").await;
}

#[tokio::test]
async fn a_watch_ends_with_redis_and_there_is_none_without_it() {
    let mut fleet = Fleet::new(1).await;
    let changed = fleet.fronts[0].watch(&claim("k").id).await.unwrap();
    fleet.redis.kill();
    changed.expect("Redis can tell").await;
    fleet.connected(false).await;
    assert!(fleet.fronts[0].watch(&claim("k").id).await.unwrap().is_none());
}
