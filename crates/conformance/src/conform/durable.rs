//! Acknowledged means durable (law 10): a reply from before the process ended holds after it.

use semel_core::{
    Claim, Fenced, Occupied, OnUnknown, Release, Resolution, Resolved, StateName, StateView,
};

pub(crate) use super::velocity::units_of_limits_outlive_the_process;
use super::{
    harness::{DurableHarness, LEASE, RETENTION, TICK, answer, claim, rival, seconds},
    stage::staged_answer,
};
use crate::with;

pub(crate) async fn a_granted_claim_outlives_the_process(harness: &DurableHarness) {
    let store = harness.open();
    let claim = claim("granted");
    let grant = store.granted(&claim).await;
    harness.advance(seconds(1)).await;
    let before = store.seen(&claim.id).await;
    let store = harness.reopen(store).await;
    assert_eq!(store.seen(&claim.id).await, before);
    let result = store.occupied(&rival(&claim)).await;
    assert_eq!(result, Occupied::InFlight { lease_left: LEASE - seconds(1) });
    assert_eq!(store.renew(&claim.id, grant.fence, LEASE).await, Fenced::Applied);
    assert_eq!(store.complete(&claim.id, grant.fence, &staged_answer()).await, Fenced::Applied);
}

pub(crate) async fn a_recorded_answer_outlives_the_process(harness: &DurableHarness) {
    let store = harness.open();
    let claim = claim("answer");
    let grant = store.granted(&claim).await;
    store.complete(&claim.id, grant.fence, &staged_answer()).await;
    let store = harness.reopen(store).await;
    let replay = Occupied::Completed { answer: staged_answer(), expires_in: RETENTION };
    assert_eq!(store.occupied(&rival(&claim)).await, replay);
    assert_eq!(store.complete(&claim.id, grant.fence, &staged_answer()).await, Fenced::Applied);
    assert_eq!(store.complete(&claim.id, grant.fence, &answer("other")).await, Fenced::Lost);
}

pub(crate) async fn a_release_outlives_the_process(harness: &DurableHarness) {
    let store = harness.open();
    let claim = claim("released");
    let old = store.granted(&claim).await;
    store.release(&claim.id, old.fence, Release::Rerun).await;
    let store = harness.reopen(store).await;
    let new = store.granted(&rival(&claim)).await;
    assert_eq!(new.attempt, 2);
    assert!(new.fence > old.fence, "{new:?} after {old:?}");
}

pub(crate) async fn a_held_record_outlives_the_process(harness: &DurableHarness) {
    let store = harness.open();
    let claim = claim("held");
    let grant = store.granted(&claim).await;
    store.hold(&claim.id, grant.fence).await;
    let store = harness.reopen(store).await;
    assert_eq!(store.occupied(&rival(&claim)).await, Occupied::Held);
    assert_eq!(store.complete(&claim.id, grant.fence, &staged_answer()).await, Fenced::Applied);
}

pub(crate) async fn an_owner_repeats_its_claim_after_a_restart(harness: &DurableHarness) {
    let store = harness.open();
    let claim = claim("again");
    let grant = store.granted(&claim).await;
    let store = harness.reopen(store).await;
    assert_eq!(store.granted(&claim).await, grant);
}

pub(crate) async fn a_lease_lapses_across_a_restart(harness: &DurableHarness) {
    let store = harness.open();
    let claim = with(claim("lapses"), |it| it.on_unknown = OnUnknown::Rerun);
    store.granted(&claim).await;
    harness.advance(seconds(6)).await;
    let store = harness.reopen(store).await;
    harness.advance(LEASE - seconds(6)).await;
    store.occupied(&rival(&claim)).await;
    harness.advance(TICK).await;
    assert_eq!(store.granted(&rival(&claim)).await.attempt, 2);
}

pub(crate) async fn retention_passes_across_a_restart(harness: &DurableHarness) {
    let store = harness.open();
    let claim = claim("expires");
    let grant = store.granted(&claim).await;
    store.complete(&claim.id, grant.fence, &staged_answer()).await;
    harness.advance(RETENTION).await;
    let store = harness.reopen(store).await;
    store.occupied(&rival(&claim)).await;
    harness.advance(TICK).await;
    assert_eq!(store.granted(&rival(&claim)).await.attempt, 1);
}

pub(crate) async fn fences_rise_across_a_restart(harness: &DurableHarness) {
    let mut store = harness.open();
    let claim = claim("rises");
    let mut last = None;
    for attempt in 1..=4 {
        let grant = store.granted(&rival(&claim)).await;
        assert_eq!(grant.attempt, attempt);
        assert!(Some(grant.fence) > last, "{grant:?} after {last:?}");
        last = Some(grant.fence);
        store.release(&claim.id, grant.fence, Release::Rerun).await;
        store = harness.reopen(store).await;
    }
}

pub(crate) async fn fences_rise_across_a_restart_after_a_deletion(harness: &DurableHarness) {
    let mut store = harness.open();
    let claim = claim("forgotten");
    let mut last = None;
    for _ in 0..3 {
        let fence = store.granted(&rival(&claim)).await.fence;
        assert!(Some(fence) > last, "{fence} after {last:?}");
        last = Some(fence);
        store.complete(&claim.id, fence, &staged_answer()).await;
        let forget = Resolution::Deleted(StateName::Completed);
        let act = store.resolve(&claim.id, fence, &forget).await;
        assert_eq!(act, Resolved::Applied);
        store = harness.reopen(store).await;
    }
}

pub(crate) async fn fences_rise_across_a_restart_after_a_sweep(harness: &DurableHarness) {
    let mut store = harness.open();
    let claim = claim("swept");
    let mut last = None;
    for _ in 0..3 {
        let fence = store.granted(&rival(&claim)).await.fence;
        assert!(Some(fence) > last, "{fence} after {last:?}");
        last = Some(fence);
        store.complete(&claim.id, fence, &staged_answer()).await;
        harness.advance(RETENTION + TICK).await;
        assert_eq!(store.sweep_all().await, 1);
        store = harness.reopen(store).await;
    }
}

pub(crate) async fn an_operators_act_outlives_the_process(harness: &DurableHarness) {
    let store = harness.open();
    let claim = claim("act");
    let grant = store.granted(&claim).await;
    store.hold(&claim.id, grant.fence).await;
    let act = Resolution::Completed(answer("it happened"));
    assert_eq!(store.resolve(&claim.id, grant.fence, &act).await, Resolved::Applied);
    let (before, epoch) = (store.seen(&claim.id).await, store.epoch().await);
    let store = harness.reopen(store).await;
    assert_eq!(store.epoch().await, epoch);
    assert_eq!(store.seen(&claim.id).await, before);
    assert_eq!(store.complete(&claim.id, grant.fence, &staged_answer()).await, Fenced::Lost);
}

pub(crate) async fn many_answers_outlive_the_process(harness: &DurableHarness) {
    let store = harness.open();
    let claims: Vec<Claim> = (0..64).map(|number| claim(&format!("many-{number}"))).collect();
    let tasks = claims.iter().map(|claim| {
        let (store, claim) = (store.clone(), claim.clone());
        tokio::spawn(async move {
            let fence = store.granted(&claim).await.fence;
            let own = answer(claim.id.key.as_str());
            assert_eq!(store.complete(&claim.id, fence, &own).await, Fenced::Applied);
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let store = harness.reopen(store).await;
    for claim in claims {
        let own = answer(claim.id.key.as_str());
        let state = StateView::Completed { answer: own, expires_in: RETENTION };
        assert_eq!(store.seen(&claim.id).await.state, state);
    }
}

pub(crate) async fn a_forgotten_record_outlives_the_process(harness: &DurableHarness) {
    let store = harness.open();
    let claim = claim("forgotten");
    let fence = store.granted(&claim).await.fence;
    store.forget(&claim.id, fence).await;
    let before = store.seen(&claim.id).await;
    let store = harness.reopen(store).await;
    assert_eq!(store.seen(&claim.id).await, before);
    assert_eq!(store.occupied(&claim).await, Occupied::Ended);
    let next = store.granted(&rival(&claim)).await;
    assert!(next.fence > fence && next.attempt == 1, "{next:?}");
}

pub(crate) async fn details_outlive_the_process(harness: &DurableHarness) {
    let store = harness.open();
    let running = claim("running");
    store.granted(&running).await;
    let held = with(claim("held"), |it| it.hold_for = Some(seconds(50)));
    let fence = store.granted(&held).await.fence;
    store.hold(&held.id, fence).await;
    store.set_metadata("route", Some(b"digest")).await;
    let before = [store.seen(&running.id).await, store.seen(&held.id).await];
    let store = harness.reopen(store).await;
    assert_eq!([store.seen(&running.id).await, store.seen(&held.id).await], before);
    assert_eq!(store.metadata("route").await, [("route".to_owned(), b"digest".to_vec())]);
}
