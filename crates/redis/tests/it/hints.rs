//! Hints that an operation runs elsewhere are short-lived.

use std::{future::poll_fn, task::Poll};

use semel::core::{Claim, Occupied, Store as _};
use semel_testkit::{
    flaky_store::{StoreCall, StoreCondition},
    with,
};

use crate::harness::{TestFleet, assert_replays, claim, fingerprint, granted, occupied, until};

fn runs(met: &Occupied) -> bool {
    matches!(met, Occupied::InFlight { .. })
}

/// A key that runs on the first front, and for which the second wrote a hint.
async fn hinted(fleet: &TestFleet) -> (Claim, semel::core::Grant) {
    let claim = claim("k");
    let grant = granted(fleet.fronts[0].claim(&claim).await.unwrap());
    hint(fleet).await;
    (claim, grant)
}

async fn hint(fleet: &TestFleet) {
    assert!(runs(&fleet.repeat_after_epoch(1, "k").await));
}

#[tokio::test]
async fn a_duplicate_waits_without_a_store_read_while_the_key_runs() {
    let fleet = TestFleet::new(3).await;
    let (claim, grant) = hinted(&fleet).await;
    until("a hint is given", async || {
        hint(&fleet).await;
        assert!(runs(&fleet.repeat_after_epoch(2, "k").await));
        fleet.fronts[2].counts().hints > 0
    })
    .await;
    fleet.complete(0, &claim, grant.fence, "paid").await;
    until("the end is known", async || {
        matches!(fleet.repeat_after_epoch(2, "k").await, Occupied::Completed { .. })
    })
    .await;
    assert_replays(&fleet.repeat_after_epoch(2, "k").await, "paid");
}

#[tokio::test]
async fn a_hint_does_not_apply_to_another_request() {
    let fleet = TestFleet::new(2).await;
    hinted(&fleet).await;
    let other = with(claim("k"), |it| it.fingerprint = fingerprint(2));
    for front in &fleet.fronts {
        front.epoch().await.unwrap();
        assert_eq!(occupied(front.claim(&other).await.unwrap()), Occupied::FingerprintMismatch);
    }
}

#[tokio::test]
async fn an_owner_whose_grant_was_lost_does_not_wait_for_itself() {
    let fleet = TestFleet::new(2).await;
    let claim = claim("k");
    fleet.behind.set(StoreCall::Claim, StoreCondition::ReplyLost);
    fleet.fronts[0].claim(&claim).await.unwrap_err();
    fleet.behind.set(StoreCall::Claim, StoreCondition::Available);
    for _ in 0..20 {
        hint(&fleet).await;
        fleet.fronts[0].epoch().await.unwrap();
        granted(fleet.fronts[0].claim(&claim).await.unwrap());
    }
}

#[tokio::test]
async fn an_owner_that_gave_up_a_claim_does_not_wait_for_itself() {
    let fleet = TestFleet::new(2).await;
    let claim = claim("k");
    fleet.behind.set(StoreCall::Claim, StoreCondition::ReplyDelayed);
    let mut asking = fleet.fronts[0].claim(&claim);
    until("the claim is granted, though its reply is not read", async || {
        let pending = poll_fn(|context| Poll::Ready(asking.as_mut().poll(context).is_pending()));
        assert!(pending.await);
        fleet.store.get(&claim.id).await.unwrap().is_some()
    })
    .await;
    drop(asking);
    fleet.behind.set(StoreCall::Claim, StoreCondition::Available);
    for _ in 0..20 {
        hint(&fleet).await;
        fleet.fronts[0].epoch().await.unwrap();
        granted(fleet.fronts[0].claim(&claim).await.unwrap());
    }
}

#[tokio::test]
async fn a_hint_does_not_hide_an_answer_that_is_there() {
    let fleet = TestFleet::new(2).await;
    let (claim, grant) = hinted(&fleet).await;
    fleet.complete(0, &claim, grant.fence, "paid").await;
    assert_replays(&fleet.until_hit(0, "k").await, "paid");
}
