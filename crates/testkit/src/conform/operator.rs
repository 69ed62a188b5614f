//! Operators: what they say holds, once, and every cache hears of it (law 12).

use semel_core::{Fenced, Occupied, OnUnknown, Release, Resolution, Resolved, StateName};

use super::{
    bench::{Bench, LEASE, RETENTION, TICK, answer, claim, rival},
    stage::{AGE, Stage, staged_answer},
};
use crate::with;

/// Everything that can be said of a held record.
fn acts() -> [Resolution; 3] {
    let forget = Resolution::Deleted(StateName::Held);
    [Resolution::Completed(answer("once")), Resolution::Released, forget]
}

pub(crate) async fn a_resolved_answer_is_replayed(bench: &Bench) {
    let staged = Stage::Held.set(bench, "answer").await;
    let answer = answer("it happened");
    let act = Resolution::Completed(answer.clone());
    assert_eq!(bench.resolve(staged.id(), staged.fence(), &act).await, Resolved::Applied);
    let replay = Occupied::Completed { answer, expires_in: RETENTION - AGE };
    assert_eq!(bench.another().await.occupied(&rival(&staged.claim)).await, replay);
}

pub(crate) async fn a_resolved_release_is_the_next_attempt(bench: &Bench) {
    let staged = Stage::Held.set(bench, "release").await;
    let act = Resolution::Released;
    assert_eq!(bench.resolve(staged.id(), staged.fence(), &act).await, Resolved::Applied);
    let risen = bench.seen(staged.id()).await.fence;
    let grant = bench.granted(&rival(&staged.claim)).await;
    assert_eq!(grant.attempt, staged.grant.attempt + 1);
    assert!(grant.fence > risen, "{grant:?} after {risen}");
}

pub(crate) async fn a_forgotten_key_begins_anew(bench: &Bench) {
    let staged = Stage::Completed.set(bench, "forgotten").await;
    let act = Resolution::Deleted(StateName::Completed);
    assert_eq!(bench.resolve(staged.id(), staged.fence(), &act).await, Resolved::Applied);
    assert_eq!(bench.another().await.get(staged.id()).await, None);
    let grant = bench.granted(&super::bench::impostor(&staged.claim)).await;
    assert_eq!(grant.attempt, 1);
    assert!(grant.fence > staged.fence());
}

pub(crate) async fn an_act_is_done_once(bench: &Bench) {
    for (at, act) in acts().iter().enumerate() {
        let staged = Stage::Held.set(bench, &format!("once-{at}")).await;
        assert_eq!(bench.resolve(staged.id(), staged.fence(), act).await, Resolved::Applied);
        let (before, epoch) = (bench.get(staged.id()).await, bench.epoch().await);
        assert_eq!(bench.resolve(staged.id(), staged.fence(), act).await, Resolved::Stale);
        assert_eq!(bench.get(staged.id()).await, before);
        assert_eq!(bench.epoch().await, epoch);
    }
}

pub(crate) async fn an_act_loses_against_a_newer_claim(bench: &Bench) {
    let claim = with(claim("newer"), |it| it.on_unknown = OnUnknown::Rerun);
    let seen = bench.granted(&claim).await.fence;
    bench.advance(LEASE + TICK).await;
    let new = bench.another().await.granted(&rival(&claim)).await;
    let forget = Resolution::Deleted(StateName::InFlight);
    assert_eq!(bench.resolve(&claim.id, seen, &forget).await, Resolved::Stale);
    assert_eq!(bench.complete(&claim.id, new.fence, &staged_answer()).await, Fenced::Applied);
    let forget = Resolution::Deleted(StateName::Completed);
    assert_eq!(bench.resolve(&claim.id, seen, &forget).await, Resolved::Stale);
    assert_eq!(bench.seen(&claim.id).await.fence, new.fence);
}

/// The fence is still the one that was seen, but the state is not: forgetting the late answer would
/// let the operation run twice.
pub(crate) async fn forgetting_loses_against_a_late_answer(bench: &Bench) {
    for (at, stage) in [Stage::Held, Stage::LapsedHold, Stage::LapsedRerun, Stage::LapsedFail]
        .into_iter()
        .enumerate()
    {
        let staged = stage.set(bench, &format!("late-{at}")).await;
        let (id, fence) = (staged.id(), staged.fence());
        let seen = bench.seen(id).await.standing.name();
        let late = bench.another().await.complete(id, fence, &staged_answer()).await;
        assert_eq!(late, Fenced::Applied);
        let before = bench.seen(id).await;
        let told = bench.resolve(id, fence, &Resolution::Deleted(seen)).await;
        assert_eq!(told, Resolved::Stale, "{stage:?}");
        assert_eq!(bench.seen(id).await, before, "{stage:?}");
        let forget = Resolution::Deleted(StateName::Completed);
        assert_eq!(bench.resolve(id, fence, &forget).await, Resolved::Applied, "{stage:?}");
    }
}

pub(crate) async fn an_act_raises_the_epoch_for_all_handles(bench: &Bench) {
    let other = bench.another().await;
    for (at, act) in acts().iter().enumerate() {
        let staged = Stage::Held.set(bench, &format!("epoch-{at}")).await;
        let before = other.epoch().await;
        assert_eq!(bench.epoch().await, before);
        assert_eq!(bench.resolve(staged.id(), staged.fence(), act).await, Resolved::Applied);
        assert_eq!(bench.epoch().await.0, before.0 + 1);
        assert_eq!(other.epoch().await.0, before.0 + 1);
    }
}

pub(crate) async fn an_owner_raises_no_epoch(bench: &Bench) {
    let before = bench.epoch().await;
    let claim = claim("owner");
    for _ in 0..2 {
        let fence = bench.granted(&rival(&claim)).await.fence;
        bench.renew(&claim.id, fence, LEASE).await;
        bench.release(&claim.id, fence, Release::Rerun).await;
    }
    let fence = bench.granted(&claim).await.fence;
    bench.hold(&claim.id, fence).await;
    bench.complete(&claim.id, fence, &staged_answer()).await;
    bench.advance(RETENTION + TICK).await;
    bench.reap_all().await;
    bench.sweep_all().await;
    assert_eq!(bench.epoch().await, before);
}

/// A cache that stores share tells their records apart by it.
pub(crate) async fn all_handles_have_one_identity(bench: &Bench) {
    let identity = bench.identity().await;
    assert_eq!(bench.identity().await, identity);
    assert_eq!(bench.another().await.identity().await, identity);
}
