//! Held records: nothing runs again until the owner or an operator says what happened.

use semel_core::{Answer, Fenced, Occupied, Reason, Release, Resolution, Resolved, StateView};

use super::{
    harness::{LEASE, RETENTION, StoreHarness, TICK, answer, claim, rival, seconds},
    stage::{Stage, staged_answer},
};
use crate::with;

pub(crate) async fn a_late_answer_beats_the_operator(harness: &StoreHarness) {
    let staged = Stage::Held.set(harness, "late").await;
    let (id, fence) = (staged.id(), staged.fence());
    let applied = harness.another().await.complete(id, fence, &answer("the truth")).await;
    assert_eq!(applied, Fenced::Applied);
    let before = harness.seen(id).await;
    let guess = Resolution::Completed(answer("a guess"));
    assert_eq!(harness.resolve(id, fence, &guess).await, Resolved::Stale);
    assert_eq!(harness.resolve(id, fence, &Resolution::Released).await, Resolved::Stale);
    assert_eq!(harness.seen(id).await, before);
}

pub(crate) async fn the_operator_beats_a_late_answer(harness: &StoreHarness) {
    let acts = [Resolution::Completed(answer("looked up")), Resolution::Released];
    for (at, act) in acts.iter().enumerate() {
        let staged = Stage::Held.set(harness, &format!("acted-{at}")).await;
        let (id, fence) = (staged.id(), staged.fence());
        assert_eq!(harness.resolve(id, fence, act).await, Resolved::Applied);
        let before = harness.seen(id).await;
        assert!(before.fence > fence, "an act raises the fence");
        // Even with the operator's own bytes: the fence is what counts.
        assert_eq!(harness.complete(id, fence, &answer("looked up")).await, Fenced::Lost);
        assert_eq!(harness.release(id, fence, Release::Rerun).await, Fenced::Lost);
        assert_eq!(harness.hold(id, fence).await, Fenced::Lost);
        assert_eq!(harness.renew(id, fence, LEASE).await, Fenced::Lost);
        assert_eq!(harness.seen(id).await, before);
    }
}

pub(crate) async fn a_held_record_keeps_its_attempts(harness: &StoreHarness) {
    let staged = Stage::Held.set(harness, "attempts").await;
    harness.resolve(staged.id(), staged.fence(), &Resolution::Released).await;
    assert_eq!(harness.granted(&rival(&staged.claim)).await.attempt, staged.grant.attempt + 1);
}

pub(crate) async fn an_owner_completes_a_record_that_the_reaper_held(harness: &StoreHarness) {
    let staged = Stage::LapsedHold.set(harness, "reaped").await;
    assert_eq!(harness.reap_all().await, 1);
    harness.advance(RETENTION * 10).await;
    let late = harness.complete(staged.id(), staged.fence(), &staged_answer()).await;
    assert_eq!(late, Fenced::Applied);
    let replay = Occupied::Completed { answer: staged_answer(), expires_in: RETENTION };
    assert_eq!(harness.occupied(&rival(&staged.claim)).await, replay);
}

pub(crate) async fn a_lapsed_hold_is_held_for_all_handles(harness: &StoreHarness) {
    let claim = claim("all");
    harness.granted(&claim).await;
    harness.advance(LEASE + TICK).await;
    let other = harness.another().await;
    assert_eq!(other.occupied(&rival(&claim)).await, Occupied::Held);
    assert_eq!(harness.seen(&claim.id).await.state, StateView::Held);
    assert_eq!(other.seen(&claim.id).await.state, StateView::Held);
    // It was moved by the claim already.
    assert_eq!(harness.reap_all().await, 0);
}

pub(crate) async fn an_unresolved_hold_fails_after_hold_for(harness: &StoreHarness) {
    let claim = with(claim("hold-for"), |claim| claim.hold_for = Some(seconds(20)));
    let fence = harness.granted(&claim).await.fence;
    harness.advance(seconds(5)).await;
    harness.hold(&claim.id, fence).await;
    harness.advance(seconds(20)).await;
    assert_eq!(harness.reap_all().await, 0, "it is held to its last millisecond");
    harness.advance(TICK).await;
    // Its owner's late answer still wins, so it does not look completed before that is written.
    assert_eq!(harness.seen(&claim.id).await.state, StateView::Held);
    assert_eq!(harness.reap_all().await, 1);
    let seen = harness.seen(&claim.id).await;
    let expires_in = RETENTION - seconds(25) - TICK;
    assert_eq!(seen.state, StateView::Completed { answer: Answer::failed(), expires_in });
    assert_eq!((seen.reason, seen.ended), (Some(Reason::HoldExpired), Some(seconds(0))));
    assert_eq!(harness.complete(&claim.id, fence, &answer("late")).await, Fenced::Lost);
}

pub(crate) async fn a_record_held_by_lease_expiry_fails_after_hold_for(harness: &StoreHarness) {
    let claim = with(claim("hold-for"), |claim| claim.hold_for = Some(seconds(20)));
    harness.granted(&claim).await;
    harness.advance(LEASE + seconds(20)).await;
    assert_eq!(harness.reap_all().await, 1, "held since its lease expired");
    assert_eq!(harness.seen(&claim.id).await.state, StateView::Held);
    harness.advance(TICK).await;
    assert_eq!(harness.reap_all().await, 1);
    assert_eq!(harness.seen(&claim.id).await.reason, Some(Reason::HoldExpired));
}

pub(crate) async fn a_claim_ends_a_hold_that_is_too_old(harness: &StoreHarness) {
    let claim = with(claim("hold-for"), |claim| claim.hold_for = Some(seconds(20)));
    let fence = harness.granted(&claim).await.fence;
    harness.hold(&claim.id, fence).await;
    harness.advance(seconds(20) + TICK).await;
    let occupied = harness.occupied(&rival(&claim)).await;
    assert!(
        matches!(&occupied, Occupied::Completed { answer, .. } if *answer == Answer::failed()),
        "{occupied:?}"
    );
    assert_eq!(harness.seen(&claim.id).await.reason, Some(Reason::HoldExpired));
}
