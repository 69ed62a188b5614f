//! Operators: each act is applied once and invalidates every cache (law 12).

use semel_core::{Fenced, Occupied, OnUnknown, Release, Resolution, Resolved, StateName};

use super::{
    harness::{LEASE, RETENTION, StoreHarness, TICK, answer, claim, rival},
    stage::{AGE, Stage, staged_answer},
};
use crate::with;

/// Everything that can be said of a held record.
fn acts() -> [Resolution; 3] {
    let forget = Resolution::Deleted(StateName::Held);
    [Resolution::Completed(answer("once")), Resolution::Released, forget]
}

pub(crate) async fn a_resolved_answer_is_replayed(harness: &StoreHarness) {
    let staged = Stage::Held.set(harness, "answer").await;
    let answer = answer("it happened");
    let act = Resolution::Completed(answer.clone());
    assert_eq!(harness.resolve(staged.id(), staged.fence(), &act).await, Resolved::Applied);
    let replay = Occupied::Completed { answer, expires_in: RETENTION - AGE };
    assert_eq!(harness.another().await.occupied(&rival(&staged.claim)).await, replay);
}

pub(crate) async fn a_key_released_by_an_operator_is_granted_as_the_next_attempt(
    harness: &StoreHarness,
) {
    let staged = Stage::Held.set(harness, "release").await;
    let act = Resolution::Released;
    assert_eq!(harness.resolve(staged.id(), staged.fence(), &act).await, Resolved::Applied);
    let risen = harness.seen(staged.id()).await.fence;
    let grant = harness.granted(&rival(&staged.claim)).await;
    assert_eq!(grant.attempt, staged.grant.attempt + 1);
    assert!(grant.fence > risen, "{grant:?} after {risen}");
}

pub(crate) async fn a_deleted_key_starts_over(harness: &StoreHarness) {
    let staged = Stage::Completed.set(harness, "forgotten").await;
    let act = Resolution::Deleted(StateName::Completed);
    assert_eq!(harness.resolve(staged.id(), staged.fence(), &act).await, Resolved::Applied);
    assert_eq!(harness.another().await.get(staged.id()).await, None);
    let grant = harness.granted(&super::harness::impostor(&staged.claim)).await;
    assert_eq!(grant.attempt, 1);
    assert!(grant.fence > staged.fence());
}

pub(crate) async fn a_resolution_is_applied_once(harness: &StoreHarness) {
    for (at, act) in acts().iter().enumerate() {
        let staged = Stage::Held.set(harness, &format!("once-{at}")).await;
        assert_eq!(harness.resolve(staged.id(), staged.fence(), act).await, Resolved::Applied);
        let (before, epoch) = (harness.get(staged.id()).await, harness.epoch().await);
        assert_eq!(harness.resolve(staged.id(), staged.fence(), act).await, Resolved::Stale);
        assert_eq!(harness.get(staged.id()).await, before);
        assert_eq!(harness.epoch().await, epoch);
    }
}

pub(crate) async fn an_act_loses_against_a_newer_claim(harness: &StoreHarness) {
    let claim = with(claim("newer"), |it| it.on_unknown = OnUnknown::Rerun);
    let seen = harness.granted(&claim).await.fence;
    harness.advance(LEASE + TICK).await;
    let new = harness.another().await.granted(&rival(&claim)).await;
    let forget = Resolution::Deleted(StateName::InFlight);
    assert_eq!(harness.resolve(&claim.id, seen, &forget).await, Resolved::Stale);
    assert_eq!(harness.complete(&claim.id, new.fence, &staged_answer()).await, Fenced::Applied);
    let forget = Resolution::Deleted(StateName::Completed);
    assert_eq!(harness.resolve(&claim.id, seen, &forget).await, Resolved::Stale);
    assert_eq!(harness.seen(&claim.id).await.fence, new.fence);
}

/// The fence is still the one that was seen, but the state is not: forgetting the late answer would
/// let the operation run twice.
pub(crate) async fn a_deletion_loses_against_a_late_answer(harness: &StoreHarness) {
    for (at, stage) in [Stage::Held, Stage::LapsedHold, Stage::LapsedRerun, Stage::LapsedFail]
        .into_iter()
        .enumerate()
    {
        let staged = stage.set(harness, &format!("late-{at}")).await;
        let (id, fence) = (staged.id(), staged.fence());
        let seen = harness.seen(id).await.state.name();
        let late = harness.another().await.complete(id, fence, &staged_answer()).await;
        assert_eq!(late, Fenced::Applied);
        let before = harness.seen(id).await;
        let result = harness.resolve(id, fence, &Resolution::Deleted(seen)).await;
        assert_eq!(result, Resolved::Stale, "{stage:?}");
        assert_eq!(harness.seen(id).await, before, "{stage:?}");
        let forget = Resolution::Deleted(StateName::Completed);
        assert_eq!(harness.resolve(id, fence, &forget).await, Resolved::Applied, "{stage:?}");
    }
}

pub(crate) async fn an_act_raises_the_epoch_for_all_handles(harness: &StoreHarness) {
    let other = harness.another().await;
    for (at, act) in acts().iter().enumerate() {
        let staged = Stage::Held.set(harness, &format!("epoch-{at}")).await;
        let before = other.epoch().await;
        assert_eq!(harness.epoch().await, before);
        assert_eq!(harness.resolve(staged.id(), staged.fence(), act).await, Resolved::Applied);
        assert_eq!(harness.epoch().await.0, before.0 + 1);
        assert_eq!(other.epoch().await.0, before.0 + 1);
    }
}

pub(crate) async fn writes_of_an_owner_do_not_raise_the_epoch(harness: &StoreHarness) {
    let before = harness.epoch().await;
    let claim = claim("owner");
    for _ in 0..2 {
        let fence = harness.granted(&rival(&claim)).await.fence;
        harness.renew(&claim.id, fence, LEASE).await;
        harness.release(&claim.id, fence, Release::Rerun).await;
    }
    let fence = harness.granted(&claim).await.fence;
    harness.hold(&claim.id, fence).await;
    harness.complete(&claim.id, fence, &staged_answer()).await;
    harness.advance(RETENTION + TICK).await;
    harness.reap_all().await;
    harness.sweep_all().await;
    assert_eq!(harness.epoch().await, before);
}

/// A cache that stores share tells their records apart by it.
pub(crate) async fn all_handles_report_the_same_store_identity(harness: &StoreHarness) {
    let identity = harness.identity().await;
    assert_eq!(harness.identity().await, identity);
    assert_eq!(harness.another().await.identity().await, identity);
}
