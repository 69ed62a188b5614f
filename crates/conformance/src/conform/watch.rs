//! A store with notifications wakes the requests that wait for an owner in another process.
//!
//! A store without notifications passes: it is polled instead. A watch that never
//! ends is caught by the time-out of the case.

use semel_core::{Fenced, Release, Resolution, Resolved, StateName};

use super::harness::{StoreHarness, answer, claim};

pub(crate) async fn a_waiter_is_notified_of_an_answer(harness: &StoreHarness) {
    let claim = claim("watched");
    let grant = harness.granted(&claim).await;
    let waiter = harness.another().await;
    let Some(changed) = waiter.watch(&claim.id).await else { return };
    let result = harness.complete(&claim.id, grant.fence, &answer("done")).await;
    assert_eq!(result, Fenced::Applied);
    changed.await;
    assert_eq!(waiter.seen(&claim.id).await.state.name(), StateName::Completed);
}

pub(crate) async fn a_waiter_is_notified_of_a_release(harness: &StoreHarness) {
    let claim = claim("watched");
    let grant = harness.granted(&claim).await;
    let waiter = harness.another().await;
    let Some(changed) = waiter.watch(&claim.id).await else { return };
    let result = harness.release(&claim.id, grant.fence, Release::Rerun).await;
    assert_eq!(result, Fenced::Applied);
    changed.await;
}

pub(crate) async fn a_waiter_is_notified_of_a_hold_and_of_its_resolution(harness: &StoreHarness) {
    let claim = claim("watched");
    let grant = harness.granted(&claim).await;
    let waiter = harness.another().await;
    let Some(changed) = waiter.watch(&claim.id).await else { return };
    assert_eq!(harness.hold(&claim.id, grant.fence).await, Fenced::Applied);
    changed.await;
    let Some(changed) = waiter.watch(&claim.id).await else { return };
    let result = harness.resolve(&claim.id, grant.fence, &Resolution::Released).await;
    assert_eq!(result, Resolved::Applied);
    changed.await;
}

pub(crate) async fn every_waiter_is_notified(harness: &StoreHarness) {
    let claim = claim("watched");
    let grant = harness.granted(&claim).await;
    let (one, other) = (harness.another().await, harness.another().await);
    let Some(left) = one.watch(&claim.id).await else { return };
    drop(left);
    let Some(first) = one.watch(&claim.id).await else { return };
    let Some(second) = one.watch(&claim.id).await else { return };
    let Some(third) = other.watch(&claim.id).await else { return };
    harness.complete(&claim.id, grant.fence, &answer("done")).await;
    for changed in [first, second, third] {
        changed.await;
    }
}
