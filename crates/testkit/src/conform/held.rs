//! Held records: nothing runs again until the owner or an operator says what happened.

use semel_core::{Fenced, Occupied, Resolution, Resolved, Standing, Tried};

use super::{
    bench::{Bench, LEASE, RETENTION, TICK, answer, claim, rival},
    stage::{Stage, staged_answer},
};

pub(crate) async fn a_late_answer_beats_the_operator(bench: &Bench) {
    let staged = Stage::Held.set(bench, "late").await;
    let (id, fence) = (staged.id(), staged.fence());
    let applied = bench.another().await.complete(id, fence, &answer("the truth")).await;
    assert_eq!(applied, Fenced::Applied);
    let before = bench.seen(id).await;
    let guess = Resolution::Completed(answer("a guess"));
    assert_eq!(bench.resolve(id, fence, &guess).await, Resolved::Stale);
    assert_eq!(bench.resolve(id, fence, &Resolution::Released).await, Resolved::Stale);
    assert_eq!(bench.seen(id).await, before);
}

pub(crate) async fn the_operator_beats_a_late_answer(bench: &Bench) {
    let acts = [Resolution::Completed(answer("looked up")), Resolution::Released];
    for (at, act) in acts.iter().enumerate() {
        let staged = Stage::Held.set(bench, &format!("acted-{at}")).await;
        let (id, fence) = (staged.id(), staged.fence());
        assert_eq!(bench.resolve(id, fence, act).await, Resolved::Applied);
        let before = bench.seen(id).await;
        assert!(before.fence > fence, "an act raises the fence");
        // Even with the operator's own bytes: the fence is what counts.
        assert_eq!(bench.complete(id, fence, &answer("looked up")).await, Fenced::Lost);
        assert_eq!(bench.release(id, fence, Tried::Counted).await, Fenced::Lost);
        assert_eq!(bench.hold(id, fence).await, Fenced::Lost);
        assert_eq!(bench.renew(id, fence, LEASE).await, Fenced::Lost);
        assert_eq!(bench.seen(id).await, before);
    }
}

pub(crate) async fn a_held_record_keeps_its_attempts(bench: &Bench) {
    let staged = Stage::Held.set(bench, "attempts").await;
    bench.resolve(staged.id(), staged.fence(), &Resolution::Released).await;
    assert_eq!(bench.granted(&rival(&staged.claim)).await.attempt, staged.grant.attempt + 1);
}

pub(crate) async fn an_owner_ends_what_the_reaper_held(bench: &Bench) {
    let staged = Stage::LapsedHold.set(bench, "reaped").await;
    assert_eq!(bench.reap_all().await, 1);
    bench.advance(RETENTION * 10).await;
    let late = bench.complete(staged.id(), staged.fence(), &staged_answer()).await;
    assert_eq!(late, Fenced::Applied);
    let replay = Occupied::Completed { answer: staged_answer(), expires_in: RETENTION };
    assert_eq!(bench.occupied(&rival(&staged.claim)).await, replay);
}

pub(crate) async fn a_lapsed_hold_is_held_for_all_handles(bench: &Bench) {
    let claim = claim("all");
    bench.granted(&claim).await;
    bench.advance(LEASE + TICK).await;
    let other = bench.another().await;
    assert_eq!(other.occupied(&rival(&claim)).await, Occupied::Held);
    assert_eq!(bench.seen(&claim.id).await.standing, Standing::Held);
    assert_eq!(other.seen(&claim.id).await.standing, Standing::Held);
    // It was moved by the claim already.
    assert_eq!(bench.reap_all().await, 0);
}
