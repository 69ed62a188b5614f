//! How long a finished record is kept (law 9), which has nothing to do with its lease.

use std::time::Duration;

use semel_core::{
    Answer, Claim, Fenced, Occupied, OnUnknown, Release, Resolution, Resolved, StateView,
};

use super::{
    harness::{LEASE, RETENTION, StoreHarness, TICK, answer, claim, rival, seconds},
    stage::staged_answer,
};
use crate::with;

/// How long a finished record will be kept.
async fn expires_in(harness: &StoreHarness, claim: &Claim) -> Duration {
    match harness.seen(&claim.id).await.state {
        StateView::Completed { expires_in, .. } | StateView::Released { expires_in } => expires_in,
        other @ (StateView::InFlight { .. } | StateView::Held) => panic!("not finished: {other:?}"),
    }
}

pub(crate) async fn an_answer_is_kept_to_its_last_millisecond(harness: &StoreHarness) {
    let claim = claim("last");
    let fence = harness.granted(&claim).await.fence;
    harness.complete(&claim.id, fence, &staged_answer()).await;
    harness.advance(RETENTION).await;
    let last = Occupied::Completed { answer: staged_answer(), expires_in: seconds(0) };
    assert_eq!(harness.occupied(&rival(&claim)).await, last);
    assert_eq!(expires_in(harness, &claim).await, seconds(0));
    assert_eq!(harness.sweep_all().await, 0);
    harness.advance(TICK).await;
    assert_eq!(harness.get(&claim.id).await, None);
    assert_eq!(harness.granted(&rival(&claim)).await.attempt, 1);
}

pub(crate) async fn retention_counts_from_the_claim(harness: &StoreHarness) {
    let claim = claim("claim");
    let fence = harness.granted(&claim).await.fence;
    harness.advance(seconds(9)).await;
    harness.complete(&claim.id, fence, &staged_answer()).await;
    assert_eq!(expires_in(harness, &claim).await, RETENTION - seconds(9));
    harness.advance(seconds(1)).await;
    // Asking again for the same write changes nothing, the expiry included.
    assert_eq!(harness.complete(&claim.id, fence, &staged_answer()).await, Fenced::Applied);
    assert_eq!(expires_in(harness, &claim).await, RETENTION - seconds(10));
}

/// A claim that is granted and kept alive until `age`.
async fn long_run(harness: &StoreHarness, claim: &Claim, age: Duration) -> semel_core::Fence {
    let fence = harness.granted(claim).await.fence;
    harness.renew(&claim.id, fence, age).await;
    harness.advance(age).await;
    fence
}

pub(crate) async fn an_answer_after_half_the_retention_restarts_retention(harness: &StoreHarness) {
    let claim = claim("long");
    let fence = long_run(harness, &claim, RETENTION / 2 + TICK).await;
    harness.complete(&claim.id, fence, &staged_answer()).await;
    assert_eq!(expires_in(harness, &claim).await, RETENTION);

    let claim = rival(&super::harness::claim("longer"));
    let fence = long_run(harness, &claim, RETENTION * 3).await;
    harness.complete(&claim.id, fence, &staged_answer()).await;
    assert_eq!(expires_in(harness, &claim).await, RETENTION);
}

pub(crate) async fn an_answer_at_half_the_retention_keeps_the_expiry(harness: &StoreHarness) {
    let claim = claim("half");
    let fence = long_run(harness, &claim, RETENTION / 2).await;
    harness.complete(&claim.id, fence, &staged_answer()).await;
    assert_eq!(expires_in(harness, &claim).await, RETENTION / 2);
}

pub(crate) async fn a_release_after_half_the_retention_restarts_retention(harness: &StoreHarness) {
    let claim = claim("released");
    let fence = long_run(harness, &claim, RETENTION / 2 + TICK).await;
    harness.release(&claim.id, fence, Release::Rerun).await;
    assert_eq!(expires_in(harness, &claim).await, RETENTION);
    harness.advance(RETENTION + TICK).await;
    assert_eq!(harness.granted(&rival(&claim)).await.attempt, 1);
}

pub(crate) async fn a_resolution_after_half_the_retention_restarts_retention(
    harness: &StoreHarness,
) {
    let acts = [Resolution::Completed(answer("resolved")), Resolution::Released];
    for (at, act) in acts.iter().enumerate() {
        let claim = claim(&format!("resolved-{at}"));
        let fence = harness.granted(&claim).await.fence;
        harness.hold(&claim.id, fence).await;
        harness.advance(RETENTION * 5).await;
        assert_eq!(harness.resolve(&claim.id, fence, act).await, Resolved::Applied);
        assert_eq!(expires_in(harness, &claim).await, RETENTION);
    }
}

pub(crate) async fn a_failure_after_half_the_retention_restarts_retention(harness: &StoreHarness) {
    let [met, reaped] = ["met", "reaped"].map(|key| {
        with(claim(key), |it| {
            it.on_unknown = OnUnknown::Fail;
            it.lease = RETENTION;
        })
    });
    harness.granted(&met).await;
    harness.granted(&reaped).await;
    harness.advance(RETENTION + TICK).await;
    let result = harness.occupied(&rival(&met)).await;
    let kept = Occupied::Completed { answer: Answer::failed(), expires_in: RETENTION };
    assert_eq!(result, kept);
    assert_eq!(harness.reap_all().await, 1);
    harness.advance(seconds(1)).await;
    for claim in [met, reaped] {
        assert_eq!(expires_in(harness, &claim).await, RETENTION - seconds(1), "{}", claim.id);
    }
}

pub(crate) async fn a_renewal_does_not_change_the_expiry(harness: &StoreHarness) {
    let claim = claim("renewed");
    let fence = harness.granted(&claim).await.fence;
    harness.advance(seconds(9)).await;
    harness.renew(&claim.id, fence, LEASE * 100).await;
    harness.complete(&claim.id, fence, &staged_answer()).await;
    assert_eq!(expires_in(harness, &claim).await, RETENTION - seconds(9));
}

pub(crate) async fn a_new_claim_restarts_retention(harness: &StoreHarness) {
    let claim = claim("again");
    let fence = harness.granted(&claim).await.fence;
    harness.release(&claim.id, fence, Release::Rerun).await;
    harness.advance(RETENTION - TICK).await;
    let fence = harness.granted(&rival(&claim)).await.fence;
    harness.complete(&claim.id, fence, &staged_answer()).await;
    assert_eq!(expires_in(harness, &claim).await, RETENTION);
}

pub(crate) async fn a_held_record_never_expires(harness: &StoreHarness) {
    let claim = claim("held");
    let fence = harness.granted(&claim).await.fence;
    harness.hold(&claim.id, fence).await;
    harness.advance(RETENTION * 1000).await;
    assert_eq!(harness.sweep_all().await, 0);
    assert_eq!(harness.occupied(&rival(&claim)).await, Occupied::Held);
    assert_eq!(harness.seen(&claim.id).await.state, StateView::Held);
    assert_eq!(harness.complete(&claim.id, fence, &staged_answer()).await, Fenced::Applied);
}

pub(crate) async fn a_running_record_never_expires(harness: &StoreHarness) {
    let short = with(claim("running"), |it| {
        it.retention = seconds(1);
        it.on_unknown = OnUnknown::Rerun;
    });
    let fence = harness.granted(&short).await.fence;
    harness.advance(seconds(5)).await;
    assert_eq!(harness.sweep_all().await, 0);
    let result = harness.occupied(&rival(&short)).await;
    assert_eq!(result, Occupied::InFlight { lease_left: LEASE - seconds(5) });
    // Nor when its lease has lapsed: the attempt is still remembered.
    harness.advance(RETENTION).await;
    assert_eq!(harness.sweep_all().await, 0);
    assert_eq!(harness.seen(&short.id).await.fence, fence);
    assert_eq!(harness.granted(&rival(&short)).await.attempt, 2);
}

pub(crate) async fn a_record_with_zero_retention_expires_at_once(harness: &StoreHarness) {
    let claim = with(claim("none"), |it| it.retention = seconds(0));
    let fence = harness.granted(&claim).await.fence;
    assert_eq!(harness.complete(&claim.id, fence, &staged_answer()).await, Fenced::Applied);
    assert_eq!(expires_in(harness, &claim).await, seconds(0));
    harness.advance(TICK).await;
    assert_eq!(harness.granted(&rival(&claim)).await.attempt, 1);
}
