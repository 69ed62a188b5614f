//! Fences: a write of the past changes nothing, wherever the record stands (laws 5 and 11).

use semel_core::{Claim, Fence, Fenced, Release, Resolution, Resolved, StateName};

use super::{
    harness::{LEASE, RETENTION, StoreHarness, TICK, answer, claim, rival},
    stage::{Stage, Staged, staged_answer},
};

const STATES: [StateName; 4] =
    [StateName::InFlight, StateName::Completed, StateName::Released, StateName::Held];

/// Brings a record to every stage and checks that `write` is refused there and changes nothing.
async fn refused_everywhere(harness: &StoreHarness, write: impl AsyncFn(&Staged) -> bool) {
    for (at, stage) in Stage::ALL.into_iter().enumerate() {
        let staged = stage.set(harness, &format!("stage-{at}")).await;
        let (before, epoch) = (harness.get(staged.id()).await, harness.epoch().await);
        assert!(write(&staged).await, "on {stage:?}");
        assert_eq!(harness.get(staged.id()).await, before, "on {stage:?}");
        assert_eq!(harness.epoch().await, epoch, "on {stage:?}");
    }
}

pub(crate) async fn a_stale_fence_renews_nothing(harness: &StoreHarness) {
    refused_everywhere(harness, async |staged| {
        harness.renew(staged.id(), staged.stale, LEASE).await == Fenced::Lost
    })
    .await;
}

pub(crate) async fn a_stale_fence_completes_nothing(harness: &StoreHarness) {
    refused_everywhere(harness, async |staged| {
        harness.complete(staged.id(), staged.stale, &staged_answer()).await == Fenced::Lost
    })
    .await;
}

pub(crate) async fn a_stale_fence_releases_nothing(harness: &StoreHarness) {
    refused_everywhere(harness, async |staged| {
        let id = staged.id();
        harness.release(id, staged.stale, Release::Rerun).await == Fenced::Lost
            && harness.release(id, staged.stale, Release::NotSent).await == Fenced::Lost
    })
    .await;
}

pub(crate) async fn a_stale_fence_holds_nothing(harness: &StoreHarness) {
    refused_everywhere(harness, async |staged| {
        harness.hold(staged.id(), staged.stale).await == Fenced::Lost
    })
    .await;
}

pub(crate) async fn a_stale_fence_forgets_nothing(harness: &StoreHarness) {
    refused_everywhere(harness, async |staged| {
        harness.forget(staged.id(), staged.stale).await == Fenced::Lost
    })
    .await;
}

pub(crate) async fn a_stale_fence_resolves_nothing(harness: &StoreHarness) {
    refused_everywhere(harness, async |staged| {
        let acts = [Resolution::Completed(answer("x")), Resolution::Released];
        for act in acts.into_iter().chain(STATES.map(Resolution::Deleted)) {
            if harness.resolve(staged.id(), staged.stale, &act).await != Resolved::Stale {
                return false;
            }
        }
        true
    })
    .await;
}

pub(crate) async fn a_fence_that_was_never_issued_does_nothing(harness: &StoreHarness) {
    refused_everywhere(harness, async |staged| {
        let id = staged.id();
        for number in [staged.fence().get() + 1_000_000, u64::MAX] {
            let fence = Fence::new(number).unwrap();
            let result = [
                harness.renew(id, fence, LEASE).await,
                harness.complete(id, fence, &staged_answer()).await,
                harness.release(id, fence, Release::Rerun).await,
                harness.hold(id, fence).await,
                harness.forget(id, fence).await,
            ];
            if result != [Fenced::Lost; 5] {
                return false;
            }
            for act in STATES.map(Resolution::Deleted) {
                if harness.resolve(id, fence, &act).await != Resolved::Stale {
                    return false;
                }
            }
        }
        true
    })
    .await;
}

pub(crate) async fn a_fence_rises_with_every_claim(harness: &StoreHarness) {
    let claim = claim("rises");
    let mut last = None;
    for attempt in 1..=5 {
        let grant = harness.another().await.granted(&rival(&claim)).await;
        assert_eq!(grant.attempt, attempt);
        assert!(Some(grant.fence) > last, "{grant:?} after {last:?}");
        last = Some(grant.fence);
        harness.release(&claim.id, grant.fence, Release::Rerun).await;
    }
}

/// Claims, completes, does away with the record, claims again; the old fence must be below the new
/// one and do nothing.
async fn fence_after(harness: &StoreHarness, away: impl AsyncFn(&Claim, Fence)) {
    let claim = claim("away");
    let old = harness.granted(&claim).await.fence;
    harness.complete(&claim.id, old, &staged_answer()).await;
    away(&claim, old).await;
    assert_eq!(harness.get(&claim.id).await, None);
    assert_eq!(harness.complete(&claim.id, old, &staged_answer()).await, Fenced::Lost);
    for handle in [harness.another().await, harness.another().await] {
        let grant = handle.granted(&rival(&claim)).await;
        assert!(grant.fence > old, "{} after {old}", grant.fence);
        let before = harness.seen(&claim.id).await;
        assert_eq!(harness.complete(&claim.id, old, &staged_answer()).await, Fenced::Lost);
        assert_eq!(harness.seen(&claim.id).await, before);
        harness.release(&claim.id, grant.fence, Release::NotSent).await;
    }
}

pub(crate) async fn a_fence_does_not_fall_after_a_deletion(harness: &StoreHarness) {
    fence_after(harness, async |claim, fence| {
        let forget = Resolution::Deleted(StateName::Completed);
        let forgotten = harness.resolve(&claim.id, fence, &forget).await;
        assert_eq!(forgotten, Resolved::Applied);
    })
    .await;
}

pub(crate) async fn a_fence_does_not_fall_after_a_sweep(harness: &StoreHarness) {
    fence_after(harness, async |_, _| {
        harness.advance(RETENTION + TICK).await;
        assert_eq!(harness.sweep_all().await, 1);
    })
    .await;
}

pub(crate) async fn a_fence_does_not_fall_past_retention(harness: &StoreHarness) {
    fence_after(harness, async |_, _| harness.advance(RETENTION + TICK).await).await;
}

pub(crate) async fn an_owner_from_before_a_sweep_does_not_write(harness: &StoreHarness) {
    let claim = claim("before");
    let old = harness.granted(&claim).await.fence;
    harness.release(&claim.id, old, Release::Rerun).await;
    harness.advance(RETENTION + TICK).await;
    assert_eq!(harness.sweep_all().await, 1);
    let new = harness.granted(&rival(&claim)).await;
    assert_eq!(new.attempt, 1);
    assert_eq!(harness.renew(&claim.id, old, LEASE).await, Fenced::Lost);
    assert_eq!(harness.hold(&claim.id, old).await, Fenced::Lost);
    assert_eq!(harness.complete(&claim.id, new.fence, &staged_answer()).await, Fenced::Applied);
}
