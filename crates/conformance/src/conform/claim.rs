//! Claims: who gets a key, and what a repeated claim gets (laws 1, 3 and 7).

use semel_core::{Fenced, Occupied, OnUnknown, Release, StateView};

use super::harness::{
    LEASE, StoreHarness, claim, claimed, fingerprint, id, impostor, rival, seconds,
};
use crate::with;

pub(crate) async fn a_first_claim_has_a_whole_lease(harness: &StoreHarness) {
    let claim = with(claim("first"), |it| it.on_unknown = OnUnknown::Rerun);
    assert_eq!(harness.get(&claim.id).await, None);
    let grant = harness.granted(&claim).await;
    assert_eq!(grant.attempt, 1);
    let wanted = claimed(&claim, grant.fence, StateView::InFlight { lease_left: LEASE });
    assert_eq!(harness.seen(&claim.id).await, wanted);
    assert_eq!(harness.another().await.seen(&claim.id).await, wanted);
}

pub(crate) async fn callers_do_not_share_keys(harness: &StoreHarness) {
    // The last one is a caller of that name, not the caller without one.
    for caller in ["ann", "bob", "Ann", "", "anonymous"] {
        let claim = with(claim("key"), |it| it.id = id("conform", caller, "key"));
        assert_eq!(harness.granted(&claim).await.attempt, 1, "caller {caller:?}");
    }
}

pub(crate) async fn scopes_do_not_share_keys(harness: &StoreHarness) {
    for (scope, key) in [("a", "key"), ("a.b", "key"), ("a", "b.key"), ("a-b", "key")] {
        let claim = with(claim("key"), |it| it.id = id(scope, "caller", key));
        assert_eq!(harness.granted(&claim).await.attempt, 1, "{scope}/{key}");
    }
}

pub(crate) async fn keys_are_compared_byte_by_byte(harness: &StoreHarness) {
    for key in
        ["key", "Key", "KEY", "key.", "%6bey", "'key'", "\"key\"", "key\\", "~", "k_y", "k%y"]
    {
        assert_eq!(harness.granted(&claim(key)).await.attempt, 1, "{key}");
    }
}

pub(crate) async fn records_of_the_longest_names_are_distinct(harness: &StoreHarness) {
    let (scope, caller, key) = ("s".repeat(64), "ü".repeat(127), "k".repeat(254));
    for last in ["a", "b"] {
        let id = id(&scope, &caller, &format!("{key}{last}"));
        let claim = with(claim("key"), |it| it.id = id.clone());
        assert_eq!(harness.granted(&claim).await.attempt, 1, "{id}");
        assert_eq!(harness.seen(&id).await.attempt, 1, "{id}");
    }
}

pub(crate) async fn an_owner_repeats_its_claim_through_another_handle(harness: &StoreHarness) {
    let claim = claim("asked-twice");
    let grant = harness.granted(&claim).await;
    assert_eq!(harness.another().await.granted(&claim).await, grant);
    let rival = harness.another().await.occupied(&rival(&claim)).await;
    assert_eq!(rival, Occupied::InFlight { lease_left: LEASE });
}

pub(crate) async fn an_owner_token_does_not_grant_another_fingerprint(harness: &StoreHarness) {
    let claim = claim("token");
    let grant = harness.granted(&claim).await;
    let other = with(claim.clone(), |it| it.fingerprint = fingerprint(2));
    let before = harness.seen(&claim.id).await;
    assert_eq!(harness.occupied(&other).await, Occupied::FingerprintMismatch);
    assert_eq!(harness.seen(&claim.id).await, before);
    assert_eq!(harness.renew(&claim.id, grant.fence, LEASE).await, Fenced::Applied);
}

pub(crate) async fn one_owner_token_can_claim_two_keys(harness: &StoreHarness) {
    let one = claim("one");
    let two = with(claim("two"), |it| it.owner = one.owner);
    assert_eq!(harness.granted(&one).await.attempt, 1);
    assert_eq!(harness.granted(&two).await.attempt, 1);
}

pub(crate) async fn a_repeated_claim_never_shortens_the_lease(harness: &StoreHarness) {
    let claim = claim("short");
    harness.granted(&claim).await;
    harness.granted(&with(claim.clone(), |it| it.lease = seconds(1))).await;
    let state = harness.seen(&claim.id).await.state;
    assert_eq!(state, StateView::InFlight { lease_left: LEASE });
}

pub(crate) async fn a_repeated_claim_does_not_reset_its_age(harness: &StoreHarness) {
    let claim = claim("age");
    let grant = harness.granted(&claim).await;
    harness.advance(seconds(3)).await;
    assert_eq!(harness.granted(&claim).await, grant);
    assert_eq!(harness.seen(&claim.id).await.age, seconds(3));
}

pub(crate) async fn a_refused_claim_does_not_change_the_policy(harness: &StoreHarness) {
    let claim = claim("policy");
    harness.granted(&claim).await;
    let before = harness.seen(&claim.id).await;
    for refused in [rival(&claim), impostor(&claim)] {
        let on_unknown = OnUnknown::Rerun;
        harness
            .occupied(&with(refused, |it| {
                it.on_unknown = on_unknown;
                it.lease = seconds(999);
            }))
            .await;
    }
    assert_eq!(harness.seen(&claim.id).await, before);
}

pub(crate) async fn a_granted_claim_sets_its_own_policy(harness: &StoreHarness) {
    let claim = claim("policy");
    let grant = harness.granted(&claim).await;
    harness.release(&claim.id, grant.fence, Release::Rerun).await;
    let next = with(rival(&claim), |it| {
        it.lease = seconds(2);
        it.retention = seconds(7);
        it.on_unknown = OnUnknown::Rerun;
    });
    let grant = harness.granted(&next).await;
    let seen = harness.seen(&claim.id).await;
    assert_eq!(seen.on_unknown, OnUnknown::Rerun);
    assert_eq!(seen.state, StateView::InFlight { lease_left: seconds(2) });
    harness.release(&claim.id, grant.fence, Release::Rerun).await;
    let state = harness.seen(&claim.id).await.state;
    assert_eq!(state, StateView::Released { expires_in: seconds(7) });
}
