//! How long a finished record is kept (law 9), which has nothing to do with its lease.

use std::time::Duration;

use semel_core::{
    Answer, Claim, Fenced, Occupied, OnUnknown, Release, Resolution, Resolved, Standing,
};

use super::{
    bench::{Bench, LEASE, RETENTION, TICK, answer, claim, rival, seconds},
    stage::staged_answer,
};
use crate::with;

/// How long a finished record will be kept.
async fn expires_in(bench: &Bench, claim: &Claim) -> Duration {
    match bench.seen(&claim.id).await.standing {
        Standing::Completed { expires_in, .. } | Standing::Released { expires_in } => expires_in,
        other @ (Standing::InFlight { .. } | Standing::Held) => panic!("not finished: {other:?}"),
    }
}

pub(crate) async fn an_answer_is_kept_to_its_last_millisecond(bench: &Bench) {
    let claim = claim("last");
    let fence = bench.granted(&claim).await.fence;
    bench.complete(&claim.id, fence, &staged_answer()).await;
    bench.advance(RETENTION).await;
    let last = Occupied::Completed { answer: staged_answer(), expires_in: seconds(0) };
    assert_eq!(bench.occupied(&rival(&claim)).await, last);
    assert_eq!(expires_in(bench, &claim).await, seconds(0));
    assert_eq!(bench.sweep_all().await, 0);
    bench.advance(TICK).await;
    assert_eq!(bench.get(&claim.id).await, None);
    assert_eq!(bench.granted(&rival(&claim)).await.attempt, 1);
}

pub(crate) async fn retention_counts_from_the_claim(bench: &Bench) {
    let claim = claim("claim");
    let fence = bench.granted(&claim).await.fence;
    bench.advance(seconds(9)).await;
    bench.complete(&claim.id, fence, &staged_answer()).await;
    assert_eq!(expires_in(bench, &claim).await, RETENTION - seconds(9));
    bench.advance(seconds(1)).await;
    // Asking again for the same write changes nothing, the expiry included.
    assert_eq!(bench.complete(&claim.id, fence, &staged_answer()).await, Fenced::Applied);
    assert_eq!(expires_in(bench, &claim).await, RETENTION - seconds(10));
}

/// A claim that is granted and kept alive until `age`.
async fn long_run(bench: &Bench, claim: &Claim, age: Duration) -> semel_core::Fence {
    let fence = bench.granted(claim).await.fence;
    bench.renew(&claim.id, fence, age).await;
    bench.advance(age).await;
    fence
}

pub(crate) async fn an_answer_after_half_the_retention_is_kept_anew(bench: &Bench) {
    let claim = claim("long");
    let fence = long_run(bench, &claim, RETENTION / 2 + TICK).await;
    bench.complete(&claim.id, fence, &staged_answer()).await;
    assert_eq!(expires_in(bench, &claim).await, RETENTION);

    let claim = rival(&super::bench::claim("longer"));
    let fence = long_run(bench, &claim, RETENTION * 3).await;
    bench.complete(&claim.id, fence, &staged_answer()).await;
    assert_eq!(expires_in(bench, &claim).await, RETENTION);
}

pub(crate) async fn an_answer_at_half_the_retention_moves_no_expiry(bench: &Bench) {
    let claim = claim("half");
    let fence = long_run(bench, &claim, RETENTION / 2).await;
    bench.complete(&claim.id, fence, &staged_answer()).await;
    assert_eq!(expires_in(bench, &claim).await, RETENTION / 2);
}

pub(crate) async fn a_release_after_half_the_retention_is_kept_anew(bench: &Bench) {
    let claim = claim("released");
    let fence = long_run(bench, &claim, RETENTION / 2 + TICK).await;
    bench.release(&claim.id, fence, Release::Rerun).await;
    assert_eq!(expires_in(bench, &claim).await, RETENTION);
    bench.advance(RETENTION + TICK).await;
    assert_eq!(bench.granted(&rival(&claim)).await.attempt, 1);
}

pub(crate) async fn a_resolution_after_half_the_retention_is_kept_anew(bench: &Bench) {
    let acts = [Resolution::Completed(answer("resolved")), Resolution::Released];
    for (at, act) in acts.iter().enumerate() {
        let claim = claim(&format!("resolved-{at}"));
        let fence = bench.granted(&claim).await.fence;
        bench.hold(&claim.id, fence).await;
        bench.advance(RETENTION * 5).await;
        assert_eq!(bench.resolve(&claim.id, fence, act).await, Resolved::Applied);
        assert_eq!(expires_in(bench, &claim).await, RETENTION);
    }
}

pub(crate) async fn a_failure_after_half_the_retention_is_kept_anew(bench: &Bench) {
    let [met, reaped] = ["met", "reaped"].map(|key| {
        with(claim(key), |it| {
            it.on_unknown = OnUnknown::Fail;
            it.lease = RETENTION;
        })
    });
    bench.granted(&met).await;
    bench.granted(&reaped).await;
    bench.advance(RETENTION + TICK).await;
    let told = bench.occupied(&rival(&met)).await;
    let kept = Occupied::Completed { answer: Answer::failed(), expires_in: RETENTION };
    assert_eq!(told, kept);
    assert_eq!(bench.reap_all().await, 1);
    bench.advance(seconds(1)).await;
    for claim in [met, reaped] {
        assert_eq!(expires_in(bench, &claim).await, RETENTION - seconds(1), "{}", claim.id);
    }
}

pub(crate) async fn a_renewal_moves_no_expiry(bench: &Bench) {
    let claim = claim("renewed");
    let fence = bench.granted(&claim).await.fence;
    bench.advance(seconds(9)).await;
    bench.renew(&claim.id, fence, LEASE * 100).await;
    bench.complete(&claim.id, fence, &staged_answer()).await;
    assert_eq!(expires_in(bench, &claim).await, RETENTION - seconds(9));
}

pub(crate) async fn a_new_claim_starts_retention_anew(bench: &Bench) {
    let claim = claim("anew");
    let fence = bench.granted(&claim).await.fence;
    bench.release(&claim.id, fence, Release::Rerun).await;
    bench.advance(RETENTION - TICK).await;
    let fence = bench.granted(&rival(&claim)).await.fence;
    bench.complete(&claim.id, fence, &staged_answer()).await;
    assert_eq!(expires_in(bench, &claim).await, RETENTION);
}

pub(crate) async fn a_held_record_never_expires(bench: &Bench) {
    let claim = claim("held");
    let fence = bench.granted(&claim).await.fence;
    bench.hold(&claim.id, fence).await;
    bench.advance(RETENTION * 1000).await;
    assert_eq!(bench.sweep_all().await, 0);
    assert_eq!(bench.occupied(&rival(&claim)).await, Occupied::Held);
    assert_eq!(bench.seen(&claim.id).await.standing, Standing::Held);
    assert_eq!(bench.complete(&claim.id, fence, &staged_answer()).await, Fenced::Applied);
}

pub(crate) async fn a_running_record_never_expires(bench: &Bench) {
    let short = with(claim("running"), |it| {
        it.retention = seconds(1);
        it.on_unknown = OnUnknown::Rerun;
    });
    let fence = bench.granted(&short).await.fence;
    bench.advance(seconds(5)).await;
    assert_eq!(bench.sweep_all().await, 0);
    let told = bench.occupied(&rival(&short)).await;
    assert_eq!(told, Occupied::InFlight { lease_left: LEASE - seconds(5) });
    // Nor when its lease has lapsed: the attempt is still remembered.
    bench.advance(RETENTION).await;
    assert_eq!(bench.sweep_all().await, 0);
    assert_eq!(bench.seen(&short.id).await.fence, fence);
    assert_eq!(bench.granted(&rival(&short)).await.attempt, 2);
}

pub(crate) async fn no_retention_at_all_forgets_at_once(bench: &Bench) {
    let claim = with(claim("none"), |it| it.retention = seconds(0));
    let fence = bench.granted(&claim).await.fence;
    assert_eq!(bench.complete(&claim.id, fence, &staged_answer()).await, Fenced::Applied);
    assert_eq!(expires_in(bench, &claim).await, seconds(0));
    bench.advance(TICK).await;
    assert_eq!(bench.granted(&rival(&claim)).await.attempt, 1);
}
