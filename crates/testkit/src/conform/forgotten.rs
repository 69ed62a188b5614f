//! Forgotten and released records, and the owner token: a stale duplicate of a claim creates no
//! ghost, and a fence alone writes nothing (laws 5, 6 and 7).

use semel_core::{
    Claimant, Fenced, Finish, Occupied, Reason, Release, Standing, store::RELEASED_RETENTION_MAX,
};

use super::{
    bench::{
        Bench, FORGOTTEN, LEASE, RELEASED, RETENTION, TICK, claim, impostor, owner, rival, seconds,
    },
    stage::{Stage, staged_answer},
};
use crate::with;

pub(crate) async fn another_owner_with_the_same_fence_writes_nothing(bench: &Bench) {
    for (at, stage) in Stage::ALL.into_iter().enumerate() {
        let staged = stage.set(bench, &format!("owner-{at}")).await;
        let (id, before) = (staged.id(), bench.get(staged.id()).await);
        let by = Claimant { fence: staged.fence(), owner: owner() };
        assert_eq!(bench.renew_by(id, by, LEASE).await, Fenced::Lost, "on {stage:?}");
        for finish in [
            Finish::complete(staged_answer()),
            Finish::release(Release::Rerun, RELEASED),
            Finish::release(Release::NotSent, RELEASED),
            Finish::hold(Reason::OperationError),
            Finish::forget(FORGOTTEN),
        ] {
            let told = bench.finish_by(id, by, &finish).await;
            assert_eq!(told, Fenced::Lost, "{finish:?} on {stage:?}");
        }
        assert_eq!(bench.get(id).await, before, "on {stage:?}");
    }
}

pub(crate) async fn a_stale_duplicate_claim_after_a_forget_creates_no_ghost(bench: &Bench) {
    let claim = claim("ghost");
    let fence = bench.granted(&claim).await.fence;
    assert_eq!(bench.forget(&claim.id, fence).await, Fenced::Applied);
    // Through another handle, as after a retransmission.
    assert_eq!(bench.another().await.occupied(&claim).await, Occupied::Ended);
    let next = bench.granted(&impostor(&claim)).await;
    assert_eq!(next.attempt, 1);
    assert!(next.fence > fence, "{} after {fence}", next.fence);
    assert_eq!(bench.occupied(&claim).await, Occupied::FingerprintMismatch);
}

pub(crate) async fn a_stale_duplicate_claim_after_a_release_is_not_granted(bench: &Bench) {
    let claim = claim("released");
    let fence = bench.granted(&claim).await.fence;
    bench.release(&claim.id, fence, Release::Refused).await;
    assert_eq!(bench.another().await.occupied(&claim).await, Occupied::Ended);
    assert_eq!(bench.granted(&rival(&claim)).await.attempt, 2);
}

pub(crate) async fn a_lost_reply_to_a_forget_is_asked_again(bench: &Bench) {
    let claim = claim("lost-reply");
    let fence = bench.granted(&claim).await.fence;
    assert_eq!(bench.forget(&claim.id, fence).await, Fenced::Applied);
    let before = bench.seen(&claim.id).await;
    assert_eq!(bench.another().await.forget(&claim.id, fence).await, Fenced::Applied);
    assert_eq!(bench.seen(&claim.id).await, before);
    // Once another owner has the key, the old owner's forget frees nothing.
    bench.granted(&rival(&claim)).await;
    let before = bench.seen(&claim.id).await;
    assert_eq!(bench.forget(&claim.id, fence).await, Fenced::Lost);
    assert_eq!(bench.seen(&claim.id).await, before);
}

pub(crate) async fn a_first_run_that_was_not_sent_is_forgotten(bench: &Bench) {
    let claim = claim("not-sent");
    let fence = bench.granted(&claim).await.fence;
    bench.release(&claim.id, fence, Release::NotSent).await;
    let seen = bench.seen(&claim.id).await;
    assert_eq!((seen.fingerprint, seen.attempt), (None, 0));
    assert_eq!(bench.granted(&impostor(&claim)).await.attempt, 1);
}

pub(crate) async fn what_was_refused_or_forgotten_is_kept_for_an_hour(bench: &Bench) {
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
        let fence = bench.granted(&claim).await.fence;
        bench.finish(&claim.id, fence, &finish).await;
        let expires_in = RELEASED_RETENTION_MAX;
        let seen = bench.seen(&claim.id).await;
        assert_eq!(seen.standing, Standing::Released { expires_in }, "{finish:?}");
    }
    let rerun = with(claim("rerun"), |claim| claim.retention = day);
    let fence = bench.granted(&rerun).await.fence;
    bench.release(&rerun.id, fence, Release::Rerun).await;
    let seen = bench.seen(&rerun.id).await;
    assert_eq!(seen.standing, Standing::Released { expires_in: day });

    bench.advance(RELEASED_RETENTION_MAX).await;
    assert_eq!(bench.sweep_all().await, 0);
    bench.advance(TICK).await;
    assert_eq!(bench.sweep_all().await, 3, "a sweep finds what expires before its retention");
    assert!(bench.get(&rerun.id).await.is_some());
}

pub(crate) async fn a_short_retention_is_not_stretched_to_an_hour(bench: &Bench) {
    let claim = claim("short");
    let fence = bench.granted(&claim).await.fence;
    bench.forget(&claim.id, fence).await;
    let seen = bench.seen(&claim.id).await;
    assert_eq!(seen.standing, Standing::Released { expires_in: RETENTION });
}

pub(crate) async fn the_fences_of_a_new_store_start_at_the_wall_clock(bench: &Bench) {
    // In microseconds, 2017 or later: a store that was lost and made again issues higher fences.
    const YEAR_2017: u64 = 1_483_228_800_000_000;
    let fence = bench.granted(&claim("first")).await.fence;
    assert!(fence.get() > YEAR_2017, "{fence}");
}
