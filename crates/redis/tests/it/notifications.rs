//! A waiter on one gateway is notified by another, for stores without notifications.

use std::time::Duration;

use semel::core::{Finish, Reason, Release, Store as _};
use tokio::time::Instant;

use crate::harness::{TestFleet, claim, granted, until};

/// Less than the second after which a watch times out.
const NOTIFIED_WITHIN: Duration = Duration::from_millis(900);

#[tokio::test]
async fn an_end_on_one_gateway_wakes_waiters_on_another() {
    let fleet = TestFleet::new(2).await;
    // A busy machine may be late; one message in time is enough.
    until("the end is announced before the watch times out", async || {
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let claim = claim(&format!("k-{number}"));
        let fence = granted(fleet.fronts[0].claim(&claim).await.unwrap()).fence;
        let begun = Instant::now();
        let Some(changed) = fleet.fronts[1].watch(&claim.id).await.unwrap() else { return false };
        let released = Finish::release(Release::Refused, Reason::Answered(429));
        fleet.finish(0, &claim, fence, &released).await;
        changed.await;
        begun.elapsed() < NOTIFIED_WITHIN
    })
    .await;
}

#[tokio::test]
async fn a_watch_ends_by_itself() {
    let fleet = TestFleet::new(1).await;
    let claim = claim("k");
    granted(fleet.fronts[0].claim(&claim).await.unwrap());
    let changed = fleet.fronts[0].watch(&claim.id).await.unwrap();
    changed.expect("Redis announces changes").await;
}

#[tokio::test]
async fn a_watch_ends_with_redis_and_there_is_none_without_it() {
    let mut fleet = TestFleet::new(1).await;
    let changed = fleet.fronts[0].watch(&claim("k").id).await.unwrap();
    fleet.redis.kill();
    changed.expect("Redis announces changes").await;
    fleet.connected(false).await;
    assert!(fleet.fronts[0].watch(&claim("k").id).await.unwrap().is_none());
}
