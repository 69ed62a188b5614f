//! Fences: a write of the past changes nothing, wherever the record stands (laws 5 and 11).

use semel_core::{Claim, Fence, Fenced, Release, Resolution, Resolved, StateName};

use super::{
    bench::{Bench, LEASE, RETENTION, TICK, answer, claim, rival},
    stage::{Stage, Staged, staged_answer},
};

const STATES: [StateName; 4] =
    [StateName::InFlight, StateName::Completed, StateName::Released, StateName::Held];

/// Brings a record to every stage and checks that `write` is refused there and changes nothing.
async fn refused_everywhere(bench: &Bench, write: impl AsyncFn(&Staged) -> bool) {
    for (at, stage) in Stage::ALL.into_iter().enumerate() {
        let staged = stage.set(bench, &format!("stage-{at}")).await;
        let (before, epoch) = (bench.get(staged.id()).await, bench.epoch().await);
        assert!(write(&staged).await, "on {stage:?}");
        assert_eq!(bench.get(staged.id()).await, before, "on {stage:?}");
        assert_eq!(bench.epoch().await, epoch, "on {stage:?}");
    }
}

pub(crate) async fn a_stale_fence_renews_nothing(bench: &Bench) {
    refused_everywhere(bench, async |staged| {
        bench.renew(staged.id(), staged.stale, LEASE).await == Fenced::Lost
    })
    .await;
}

pub(crate) async fn a_stale_fence_completes_nothing(bench: &Bench) {
    refused_everywhere(bench, async |staged| {
        bench.complete(staged.id(), staged.stale, &staged_answer()).await == Fenced::Lost
    })
    .await;
}

pub(crate) async fn a_stale_fence_releases_nothing(bench: &Bench) {
    refused_everywhere(bench, async |staged| {
        let id = staged.id();
        bench.release(id, staged.stale, Release::Rerun).await == Fenced::Lost
            && bench.release(id, staged.stale, Release::NotSent).await == Fenced::Lost
    })
    .await;
}

pub(crate) async fn a_stale_fence_holds_nothing(bench: &Bench) {
    refused_everywhere(bench, async |staged| {
        bench.hold(staged.id(), staged.stale).await == Fenced::Lost
    })
    .await;
}

pub(crate) async fn a_stale_fence_resolves_nothing(bench: &Bench) {
    refused_everywhere(bench, async |staged| {
        let acts = [Resolution::Completed(answer("x")), Resolution::Released];
        for act in acts.into_iter().chain(STATES.map(Resolution::Deleted)) {
            if bench.resolve(staged.id(), staged.stale, &act).await != Resolved::Stale {
                return false;
            }
        }
        true
    })
    .await;
}

pub(crate) async fn a_fence_that_was_never_issued_does_nothing(bench: &Bench) {
    refused_everywhere(bench, async |staged| {
        let id = staged.id();
        for number in [staged.fence().get() + 1_000_000, u64::MAX] {
            let fence = Fence::new(number).unwrap();
            let told = [
                bench.renew(id, fence, LEASE).await,
                bench.complete(id, fence, &staged_answer()).await,
                bench.release(id, fence, Release::Rerun).await,
                bench.hold(id, fence).await,
            ];
            if told != [Fenced::Lost; 4] {
                return false;
            }
            for act in STATES.map(Resolution::Deleted) {
                if bench.resolve(id, fence, &act).await != Resolved::Stale {
                    return false;
                }
            }
        }
        true
    })
    .await;
}

pub(crate) async fn a_fence_rises_with_every_claim(bench: &Bench) {
    let claim = claim("rises");
    let mut last = None;
    for attempt in 1..=5 {
        let grant = bench.another().await.granted(&rival(&claim)).await;
        assert_eq!(grant.attempt, attempt);
        assert!(Some(grant.fence) > last, "{grant:?} after {last:?}");
        last = Some(grant.fence);
        bench.release(&claim.id, grant.fence, Release::Rerun).await;
    }
}

/// Claims, completes, does away with the record, claims again; the old fence must be below the new
/// one and do nothing.
async fn fence_after(bench: &Bench, away: impl AsyncFn(&Claim, Fence)) {
    let claim = claim("away");
    let old = bench.granted(&claim).await.fence;
    bench.complete(&claim.id, old, &staged_answer()).await;
    away(&claim, old).await;
    assert_eq!(bench.get(&claim.id).await, None);
    assert_eq!(bench.complete(&claim.id, old, &staged_answer()).await, Fenced::Lost);
    for handle in [bench.another().await, bench.another().await] {
        let grant = handle.granted(&rival(&claim)).await;
        assert!(grant.fence > old, "{} after {old}", grant.fence);
        let before = bench.seen(&claim.id).await;
        assert_eq!(bench.complete(&claim.id, old, &staged_answer()).await, Fenced::Lost);
        assert_eq!(bench.seen(&claim.id).await, before);
        bench.release(&claim.id, grant.fence, Release::NotSent).await;
    }
}

pub(crate) async fn a_fence_does_not_fall_after_forgetting(bench: &Bench) {
    fence_after(bench, async |claim, fence| {
        let forget = Resolution::Deleted(StateName::Completed);
        let forgotten = bench.resolve(&claim.id, fence, &forget).await;
        assert_eq!(forgotten, Resolved::Applied);
    })
    .await;
}

pub(crate) async fn a_fence_does_not_fall_after_a_sweep(bench: &Bench) {
    fence_after(bench, async |_, _| {
        bench.advance(RETENTION + TICK).await;
        assert_eq!(bench.sweep_all().await, 1);
    })
    .await;
}

pub(crate) async fn a_fence_does_not_fall_past_retention(bench: &Bench) {
    fence_after(bench, async |_, _| bench.advance(RETENTION + TICK).await).await;
}

pub(crate) async fn an_owner_from_before_a_sweep_does_not_write(bench: &Bench) {
    let claim = claim("before");
    let old = bench.granted(&claim).await.fence;
    bench.release(&claim.id, old, Release::Rerun).await;
    bench.advance(RETENTION + TICK).await;
    assert_eq!(bench.sweep_all().await, 1);
    let new = bench.granted(&rival(&claim)).await;
    assert_eq!(new.attempt, 1);
    assert_eq!(bench.renew(&claim.id, old, LEASE).await, Fenced::Lost);
    assert_eq!(bench.hold(&claim.id, old).await, Fenced::Lost);
    assert_eq!(bench.complete(&claim.id, new.fence, &staged_answer()).await, Fenced::Applied);
}
