//! Forgotten and released records, and the owner token: a stale duplicate of a claim creates no
//! ghost, and a fence alone writes nothing (laws 5, 6 and 7).

use semel_core::{
    Claimant, Fenced, Finish, ListQuery, Occupied, Reason, Release, StateView,
    store::RELEASED_RETENTION_MAX,
};

use super::{
    harness::{
        FORGOTTEN, LEASE, RELEASED, RETENTION, StoreHarness, TICK, claim, id, impostor, owner,
        rival, seconds,
    },
    stage::{Stage, staged_answer},
};
use crate::with;

pub(crate) async fn another_owner_with_the_same_fence_writes_nothing(harness: &StoreHarness) {
    for (at, stage) in Stage::ALL.into_iter().enumerate() {
        let staged = stage.set(harness, &format!("owner-{at}")).await;
        let (id, before) = (staged.id(), harness.get(staged.id()).await);
        let by = Claimant::new(staged.fence(), owner());
        assert_eq!(harness.renew_by(id, by, LEASE).await, Fenced::Lost, "on {stage:?}");
        for finish in [
            Finish::complete(staged_answer()),
            Finish::release(Release::Rerun, RELEASED),
            Finish::release(Release::NotSent, RELEASED),
            Finish::release(Release::Refused, RELEASED),
            Finish::hold(Reason::OperationError),
            Finish::forget(FORGOTTEN),
        ] {
            let result = harness.finish_by(id, by, &finish).await;
            assert_eq!(result, Fenced::Lost, "{finish:?} on {stage:?}");
        }
        assert_eq!(harness.get(id).await, before, "on {stage:?}");
    }
}

pub(crate) async fn a_stale_duplicate_claim_after_a_forget_is_not_granted(harness: &StoreHarness) {
    let claim = claim("ghost");
    let fence = harness.granted(&claim).await.fence;
    assert_eq!(harness.forget(&claim.id, fence).await, Fenced::Applied);
    // Through another handle, as after a retransmission.
    assert_eq!(harness.another().await.occupied(&claim).await, Occupied::Ended);
    let next = harness.granted(&impostor(&claim)).await;
    assert_eq!(next.attempt, 1);
    assert!(next.fence > fence, "{} after {fence}", next.fence);
    assert_eq!(harness.occupied(&claim).await, Occupied::FingerprintMismatch);
}

pub(crate) async fn a_stale_duplicate_claim_after_a_release_is_not_granted(harness: &StoreHarness) {
    let claim = claim("released");
    let fence = harness.granted(&claim).await.fence;
    harness.release(&claim.id, fence, Release::Refused).await;
    assert_eq!(harness.another().await.occupied(&claim).await, Occupied::Ended);
    assert_eq!(harness.granted(&rival(&claim)).await.attempt, 2);
}

pub(crate) async fn a_forget_can_be_repeated_after_a_lost_reply(harness: &StoreHarness) {
    let claim = claim("lost-reply");
    let fence = harness.granted(&claim).await.fence;
    assert_eq!(harness.forget(&claim.id, fence).await, Fenced::Applied);
    let before = harness.seen(&claim.id).await;
    assert_eq!(harness.another().await.forget(&claim.id, fence).await, Fenced::Applied);
    assert_eq!(harness.seen(&claim.id).await, before);
    // Once another owner has the key, the old owner's forget frees nothing.
    harness.granted(&rival(&claim)).await;
    let before = harness.seen(&claim.id).await;
    assert_eq!(harness.forget(&claim.id, fence).await, Fenced::Lost);
    assert_eq!(harness.seen(&claim.id).await, before);
}

pub(crate) async fn a_first_run_that_was_not_sent_is_forgotten(harness: &StoreHarness) {
    let claim = claim("not-sent");
    let fence = harness.granted(&claim).await.fence;
    harness.release(&claim.id, fence, Release::NotSent).await;
    let seen = harness.seen(&claim.id).await;
    assert_eq!((seen.fingerprint, seen.attempt), (None, 0));
    assert_eq!(harness.granted(&impostor(&claim)).await.attempt, 1);
}

pub(crate) async fn what_was_refused_or_forgotten_is_kept_for_an_hour(harness: &StoreHarness) {
    let day = seconds(24 * 60 * 60);
    for (at, finish) in [
        Finish::release(Release::Refused, RELEASED),
        Finish::release(Release::NotSent, RELEASED),
        Finish::forget(FORGOTTEN),
    ]
    .into_iter()
    .enumerate()
    {
        let claim = with(claim(&format!("hour-{at}")), |claim| claim.retention = day);
        let fence = harness.granted(&claim).await.fence;
        harness.finish(&claim.id, fence, &finish).await;
        let expires_in = RELEASED_RETENTION_MAX;
        let seen = harness.seen(&claim.id).await;
        assert_eq!(seen.state, StateView::Released { expires_in }, "{finish:?}");
    }
    let rerun = with(claim("rerun"), |claim| claim.retention = day);
    let fence = harness.granted(&rerun).await.fence;
    harness.release(&rerun.id, fence, Release::Rerun).await;
    let seen = harness.seen(&rerun.id).await;
    assert_eq!(seen.state, StateView::Released { expires_in: day });

    harness.advance(RELEASED_RETENTION_MAX).await;
    assert_eq!(harness.sweep_all().await, 0);
    harness.advance(TICK).await;
    assert_eq!(harness.sweep_all().await, 3, "a sweep finds what expires before its retention");
    assert!(harness.get(&rerun.id).await.is_some());
}

/// Callers that no service knows, each with a key of its own, as fast as the store takes them.
pub(crate) async fn thousands_of_refused_records_are_swept_after_an_hour(harness: &StoreHarness) {
    const CALLERS: u32 = 3000;
    const AT_ONCE: u32 = 250;
    for first in (0..CALLERS).step_by(AT_ONCE as usize) {
        let mut refused = tokio::task::JoinSet::new();
        for number in first..first + AT_ONCE {
            let handle = harness.handle();
            refused.spawn(async move {
                let claim = with(claim("random"), |claim| {
                    claim.id = id("payments", &format!("token-{number}"), "random");
                    claim.retention = seconds(24 * 60 * 60);
                });
                let fence = handle.granted(&claim).await.fence;
                let finish = Finish::release(Release::Refused, Reason::Answered(401));
                assert_eq!(handle.finish(&claim.id, fence, &finish).await, Fenced::Applied);
            });
        }
        refused.join_all().await;
    }
    harness.advance(RELEASED_RETENTION_MAX + TICK).await;
    assert_eq!(harness.sweep_all().await, CALLERS);
    assert_eq!(harness.list(&ListQuery::new()).await, []);
}

pub(crate) async fn a_short_retention_is_not_stretched_to_an_hour(harness: &StoreHarness) {
    let claim = claim("short");
    let fence = harness.granted(&claim).await.fence;
    harness.forget(&claim.id, fence).await;
    let seen = harness.seen(&claim.id).await;
    assert_eq!(seen.state, StateView::Released { expires_in: RETENTION });
}

pub(crate) async fn the_fences_of_a_new_store_start_at_the_wall_clock(harness: &StoreHarness) {
    // In microseconds, 2017 or later: a store that was lost and made again issues higher fences.
    const YEAR_2017: u64 = 1_483_228_800_000_000;
    let fence = harness.granted(&claim("first")).await.fence;
    assert!(fence.get() > YEAR_2017, "{fence}");
}
