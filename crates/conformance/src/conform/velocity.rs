//! Velocity limits: decided with the claim, settled with the end, exact for any number of claims.
//!
//! A store without limits passes: a claim with limits is never given to it.

mod endings;
mod race;

use std::time::Duration;

use semel_core::{
    Claim, ClaimLimits, Claimed, Fenced, Limit, LimitRefusal, Occupied, Release, Resolution,
    Resolved, StateName,
    limit::{Counted, LimitKey, LimitKind},
};

use super::{
    harness::{DurableHarness, Handle, StoreHarness, TICK, answer, claim, rival, seconds},
    stage::staged_answer,
};
use crate::with;

pub(crate) use endings::*;
pub(crate) use race::*;

/// How long a unit of the cases counts.
const WINDOW: Duration = Duration::from_secs(60);

/// A limit with a counter of this number.
fn limit(counter: u8, max: u16) -> Limit {
    Limit::new(LimitKey::from_bytes([counter; 16]), max, WINDOW)
}

/// The same limit, counting something else.
fn counting(counted: Counted, max: u16) -> Limit {
    with(limit(1, max), |limit| limit.counted = counted)
}

/// A claim of a key under these limits.
fn limited(key: &str, limits: impl IntoIterator<Item = Limit>) -> Claim {
    with(claim(key), |claim| claim.limits = ClaimLimits::new(limits).unwrap())
}

/// The refusal of the limit at this position.
fn refused(index: u8, frees_in: Option<Duration>) -> Occupied {
    Occupied::Limited(LimitRefusal::new(index, LimitKind::Velocity, frees_in))
}

/// Claims a key under the limit.
async fn granted(handle: &Handle, key: &str, limit: &Limit) -> Claim {
    let claim = limited(key, [limit.clone()]);
    handle.granted(&claim).await;
    claim
}

async fn has_room(handle: &Handle, key: &str, limit: &Limit) -> bool {
    match handle.claim(&limited(key, [limit.clone()])).await {
        Claimed::Granted(_) => true,
        Claimed::Occupied(Occupied::Limited(_)) => false,
        Claimed::Occupied(other) => panic!("{key}: {other:?}"),
    }
}

pub(crate) async fn a_limit_refuses_what_exceeds_it_until_a_unit_frees(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let limit = limit(1, 2);
    for key in ["first", "second"] {
        let claim = granted(harness, key, &limit).await;
        let fence = harness.seen(&claim.id).await.fence;
        harness.complete(&claim.id, fence, &staged_answer()).await;
        harness.advance(seconds(10)).await;
    }
    let third = limited("third", [limit.clone()]);
    assert_eq!(harness.occupied(&third).await, refused(0, Some(seconds(40))));
    assert_eq!(harness.get(&third.id).await, None, "a refusal leaves no record");
    let other = harness.another().await;
    assert_eq!(other.occupied(&rival(&third)).await, refused(0, Some(seconds(40))));
    harness.advance(seconds(40) - TICK).await;
    assert_eq!(harness.occupied(&third).await, refused(0, Some(TICK)));
    harness.advance(TICK).await;
    harness.granted(&third).await;
    assert_eq!(other.occupied(&limited("fourth", [limit])).await, refused(0, Some(seconds(10))));
}

pub(crate) async fn a_limit_counts_by_its_key(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    granted(harness, "first", &limit(1, 1)).await;
    assert!(!has_room(harness, "second", &limit(1, 1)).await);
    assert!(has_room(harness, "second", &limit(2, 1)).await);
    harness.granted(&claim("without-limits")).await;
}

pub(crate) async fn an_execution_counts_from_its_claim(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let limit = limit(1, 1);
    let claim = granted(harness, "slow", &limit).await;
    let fence = harness.seen(&claim.id).await.fence;
    harness.renew(&claim.id, fence, WINDOW * 2).await;
    harness.advance(WINDOW + TICK).await;
    let next = limited("next", [limit]);
    assert_eq!(harness.occupied(&next).await, refused(0, None), "it still runs");
    harness.complete(&claim.id, fence, &staged_answer()).await;
    harness.granted(&next).await;
}

pub(crate) async fn a_repeat_costs_nothing_and_is_not_refused(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let claim = granted(harness, "first", &limit(1, 1)).await;
    let again = harness.granted(&claim).await;
    assert!(matches!(harness.occupied(&rival(&claim)).await, Occupied::InFlight { .. }));
    harness.complete(&claim.id, again.fence, &staged_answer()).await;
    assert!(!has_room(harness, "second", &limit(1, 1)).await, "the limit is reached");
    for _ in 0..3 {
        let replay = harness.another().await.occupied(&rival(&claim)).await;
        assert!(matches!(replay, Occupied::Completed { .. }), "{replay:?}");
    }
    harness.advance(WINDOW).await;
    assert!(has_room(harness, "second", &limit(1, 1)).await);
}

pub(crate) async fn an_operation_counts_once_whatever_its_attempts(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let limit = limit(1, 1);
    let claim = granted(harness, "retried", &limit).await;
    for attempt in 2..5 {
        let fence = harness.seen(&claim.id).await.fence;
        harness.release(&claim.id, fence, Release::Refused).await;
        assert!(!has_room(harness, "another", &limit).await, "the attempt reached the upstream");
        assert_eq!(harness.granted(&rival(&claim)).await.attempt, attempt);
    }
}

pub(crate) async fn a_takeover_keeps_one_unit(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let limit = limit(1, 2);
    let claim = with(limited("taken", [limit.clone()]), |claim| {
        claim.on_unknown = semel_core::OnUnknown::Rerun;
    });
    harness.granted(&claim).await;
    harness.advance(claim.lease + TICK).await;
    let newer = rival(&claim);
    let fence = harness.granted(&newer).await.fence;
    assert!(has_room(harness, "second", &limit).await, "one unit is free");
    assert!(!has_room(harness, "third", &limit).await);
    harness.release(&newer.id, fence, Release::NotSent).await;
    assert!(!has_room(harness, "third", &limit).await, "the first attempt may have been sent");
}

pub(crate) async fn a_refused_claim_reserves_nothing(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    granted(harness, "first", &limit(1, 1)).await;
    let both = limited("both", [limit(2, 1), limit(1, 1)]);
    assert_eq!(harness.occupied(&both).await, refused(1, None));
    assert!(has_room(harness, "other", &limit(2, 1)).await, "the other limit is untouched");
    let waits = limited("waits", [limit(2, 1), limit(1, 1), limit(3, 1)]);
    assert_eq!(harness.occupied(&waits).await, refused(0, None));
}

pub(crate) async fn a_limit_that_reports_grants_and_says_so(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let reporting = with(limit(1, 1), |limit| limit.refuses = false);
    let first = limited("first", [limit(2, 9), reporting.clone()]);
    assert!(harness.granted(&first).await.exceeded.is_empty());
    for key in ["second", "third"] {
        let claim = limited(key, [limit(2, 9), reporting.clone()]);
        let exceeded = harness.granted(&claim).await.exceeded;
        assert_eq!((exceeded.contains(0), exceeded.contains(1)), (false, true), "{key}");
    }
}

pub(crate) async fn a_counter_of_the_largest_limit_is_exact(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let limit = limit(1, semel_core::limit::LIMIT_MAX);
    for number in 0..semel_core::limit::LIMIT_MAX {
        assert!(has_room(harness, &number.to_string(), &limit).await, "{number}");
    }
    assert!(!has_room(harness, "one-too-many", &limit).await);
}

pub(crate) async fn a_sweep_keeps_what_counts(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let claim = granted(harness, "first", &limit(1, 1)).await;
    let fence = harness.seen(&claim.id).await.fence;
    harness.sweep_all().await;
    assert!(!has_room(harness, "second", &limit(1, 1)).await, "it is reserved");
    harness.complete(&claim.id, fence, &staged_answer()).await;
    harness.sweep_all().await;
    assert!(!has_room(harness, "second", &limit(1, 1)).await, "it counts");
    harness.advance(WINDOW).await;
    harness.sweep_all().await;
    assert!(has_room(harness, "second", &limit(1, 1)).await);
}

// === stores that outlive their process ===

pub(crate) async fn units_of_limits_outlive_the_process(harness: &DurableHarness) {
    let store = harness.open();
    if !store.has_limits() {
        return;
    }
    let counted = granted(&store, "counted", &limit(1, 2)).await;
    let fence = store.seen(&counted.id).await.fence;
    store.complete(&counted.id, fence, &staged_answer()).await;
    let held = granted(&store, "held", &limit(1, 2)).await;
    let fence = store.seen(&held.id).await.fence;
    store.hold(&held.id, fence).await;
    let store = harness.reopen(store).await;
    assert!(!has_room(&store, "third", &limit(1, 2)).await);
    harness.advance(WINDOW).await;
    assert!(has_room(&store, "third", &limit(1, 2)).await, "what counted has passed");
    assert!(!has_room(&store, "fourth", &limit(1, 2)).await, "what is held is reserved");
    let resolved = store.resolve(&held.id, fence, &Resolution::Completed(answer("late"))).await;
    assert_eq!(resolved, Resolved::Applied);
    assert!(has_room(&store, "fourth", &limit(1, 2)).await, "it ran before the window");
}

/// Asserts that a write was applied.
fn applied(fenced: Fenced) {
    assert_eq!(fenced, Fenced::Applied);
}

/// An operator deletes the record.
async fn delete(harness: &Handle, claim: &Claim, state: StateName) {
    let fence = harness.seen(&claim.id).await.fence;
    let deleted = harness.resolve(&claim.id, fence, &Resolution::Deleted(state)).await;
    assert_eq!(deleted, Resolved::Applied);
}
