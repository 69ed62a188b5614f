//! Listings: each record once, as it counts now, in pages of a bounded size.

use std::{collections::BTreeSet, time::Duration};

use semel_core::{
    Claim, Cursor, ListQuery, OnUnknown, RecordId, Release, Resolution, Resolved, Scope, StateName,
    store::PAGE_MAX,
};

use super::{
    harness::{Handle, LEASE, StoreHarness, TICK, claim, id, rival, seconds},
    stage::{Stage, staged_answer},
};
use crate::with;

/// More than one page of any size up to the largest.
const MANY: u32 = PAGE_MAX + 5;

fn ids(listed: &[semel_core::Summary]) -> Vec<RecordId> {
    listed.iter().map(|summary| summary.id.clone()).collect()
}

/// Claims many keys, some at a time: a store that gathers claims need not wait for each.
async fn claim_many(handle: &Handle, count: u32) -> Vec<RecordId> {
    let claims: Vec<Claim> = (0..count).map(|number| claim(&format!("{number:05}"))).collect();
    for chunk in claims.chunks(50) {
        let tasks: Vec<_> = chunk
            .iter()
            .map(|claim| {
                let (handle, claim) = (handle.clone(), claim.clone());
                tokio::spawn(async move { handle.granted(&claim).await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
    claims.into_iter().map(|claim| claim.id).collect()
}

pub(crate) async fn every_record_is_on_one_page(harness: &StoreHarness) {
    let claimed = claim_many(harness, 23).await;
    for limit in [1, 2, 7, 22, 23, 24] {
        let query = with(ListQuery::new(), |it| it.limit = limit);
        assert_eq!(ids(&harness.list(&query).await), claimed, "in pages of {limit}");
        assert_eq!(ids(&harness.another().await.list(&query).await), claimed);
    }
}

pub(crate) async fn a_listing_has_the_effective_state(harness: &StoreHarness) {
    for (at, stage) in Stage::ALL.into_iter().enumerate() {
        let staged = stage.set(harness, &format!("stage-{at}")).await;
        let listed = harness.list(&ListQuery::default()).await;
        let listed: Vec<_> = listed.iter().filter(|line| line.id == *staged.id()).collect();
        match harness.get(staged.id()).await {
            None => assert!(listed.is_empty(), "{stage:?} is listed: {listed:?}"),
            Some(seen) => {
                assert_eq!(listed.len(), 1, "{stage:?}: {listed:?}");
                assert_eq!(listed[0].state, seen.state.name(), "{stage:?}");
                assert_eq!(listed[0].fence, seen.fence, "{stage:?}");
                assert_eq!(listed[0].attempt, seen.attempt, "{stage:?}");
                assert_eq!(listed[0].age, seen.age, "{stage:?}");
            }
        }
    }
}

pub(crate) async fn a_listing_filters_by_state(harness: &StoreHarness) {
    // Those that lapse or expire come first: time that passes for them passes for all.
    let lapsed = Stage::LapsedHold.set(harness, "lapsed").await;
    let completed = Stage::Completed.set(harness, "completed").await;
    let released = Stage::Released.set(harness, "released").await;
    let held = Stage::Held.set(harness, "z-held").await;
    let running = Stage::Running.set(harness, "running").await;
    for (state, wanted) in [
        (StateName::InFlight, vec![&running]),
        (StateName::Completed, vec![&completed]),
        (StateName::Released, vec![&released]),
        (StateName::Held, vec![&lapsed, &held]),
    ] {
        let wanted: Vec<RecordId> = wanted.into_iter().map(|staged| staged.id().clone()).collect();
        for limit in [0, 1] {
            let query = with(ListQuery::new(), |it| {
                it.state = Some(state);
                it.limit = limit;
            });
            assert_eq!(ids(&harness.list(&query).await), wanted, "{state}");
        }
    }
}

pub(crate) async fn a_listing_filters_by_scope(harness: &StoreHarness) {
    for scope in ["pay", "pay.card", "pays"] {
        for key in ["a", "b"] {
            harness.granted(&with(claim("key"), |it| it.id = id(scope, "caller", key))).await;
        }
    }
    let scope = Some(Scope::new("pay").unwrap());
    let wanted = [id("pay", "caller", "a"), id("pay", "caller", "b")];
    for limit in [0, 1] {
        let query = with(ListQuery::new(), |it| {
            it.scope = scope.clone();
            it.limit = limit;
        });
        assert_eq!(ids(&harness.list(&query).await), wanted);
    }
    let none = Some(Scope::new("nothing").unwrap());
    assert!(harness.list(&with(ListQuery::new(), |it| it.scope = none)).await.is_empty());
}

pub(crate) async fn a_listing_filters_by_age(harness: &StoreHarness) {
    harness.granted(&claim("old")).await;
    harness.advance(seconds(3)).await;
    harness.granted(&claim("young")).await;
    harness.advance(seconds(2)).await;
    let all: Vec<RecordId> = ["old", "young"].map(|key| claim(key).id).into();
    let cases = [
        (seconds(2), &all[..]),
        (seconds(2) + TICK, &all[..1]),
        (seconds(5), &all[..1]),
        (seconds(5) + TICK, &[]),
    ];
    for (age_min, wanted) in cases {
        let query = with(ListQuery::new(), |it| it.age_min = age_min);
        assert_eq!(ids(&harness.list(&query).await), wanted, "{age_min:?}");
    }
}

pub(crate) async fn a_page_is_never_too_large(harness: &StoreHarness) {
    let claimed = claim_many(harness, MANY).await;
    for limit in [0, PAGE_MAX, PAGE_MAX + 1, u32::MAX] {
        let query = with(ListQuery::new(), |it| it.limit = limit);
        // The bench checks the size of each page.
        assert_eq!(ids(&harness.list(&query).await), claimed, "in pages of {limit}");
    }
}

pub(crate) async fn unchanged_records_are_listed_once_while_others_change(harness: &StoreHarness) {
    let mut resting = BTreeSet::new();
    let mut moving = Vec::new();
    for number in 0..12 {
        let claim = with(claim(&format!("{number:02}")), |it| it.on_unknown = OnUnknown::Rerun);
        let fence = harness.granted(&claim).await.fence;
        if number % 3 == 0 {
            moving.push(claim);
        } else {
            harness.complete(&claim.id, fence, &staged_answer()).await;
            resting.insert(claim.id);
        }
    }
    harness.advance(LEASE + TICK).await;
    let mut listed = Vec::new();
    let mut after: Option<Cursor> = None;
    for page in 0..100 {
        let limit = 2;
        let page_of_two = harness
            .page(&with(ListQuery::new(), |it| {
                it.after = after;
                it.limit = limit;
            }))
            .await;
        listed.extend(ids(&page_of_two.items));
        after = page_of_two.next;
        if after.is_none() {
            break;
        }
        // Between two pages one record goes to the end of any order by fence, and one goes away.
        let claim = &moving[page % moving.len()];
        if let semel_core::Claimed::Granted(grant) = harness.claim(&rival(claim)).await {
            harness.release(&claim.id, grant.fence, Release::Rerun).await;
        }
    }
    listed.retain(|id| resting.contains(id));
    listed.sort();
    assert_eq!(listed, resting.into_iter().collect::<Vec<_>>());
}

pub(crate) async fn an_empty_store_has_one_empty_page(harness: &StoreHarness) {
    let page = harness.page(&ListQuery::default()).await;
    assert_eq!((page.items, page.next), (vec![], None));
}

pub(crate) async fn a_listing_finds_a_key_of_any_scope_and_caller(harness: &StoreHarness) {
    let mut wanted = Vec::new();
    for (scope, caller) in [("pay", "ann"), ("pay", "bob"), ("ship", "ann")] {
        for key in ["order-7", "order-8", "order-77"] {
            let id = id(scope, caller, key);
            harness.granted(&with(claim("key"), |it| it.id = id.clone())).await;
            if key == "order-7" {
                wanted.push(id);
            }
        }
    }
    for limit in [0, 1, 2] {
        let query = with(ListQuery::new(), |it| {
            it.key = Some(wanted[0].key.clone());
            it.limit = limit;
        });
        assert_eq!(ids(&harness.another().await.list(&query).await), wanted);
    }
}

pub(crate) async fn a_listing_filters_by_time_caller_and_reason(harness: &StoreHarness) {
    let other = with(claim("a"), |it| it.id = id("conform", "other", "a"));
    let held = claim("held");
    let fence = harness.granted(&held).await.fence;
    harness.hold(&held.id, fence).await;
    harness.advance(seconds(3)).await;
    harness.granted(&other).await;
    let found = async |change: &dyn Fn(&mut ListQuery)| {
        ids(&harness.list(&with(ListQuery::new(), |it| change(it))).await)
    };
    let (held, other) = ([held.id], [other.id]);
    assert_eq!(found(&|it| it.age_max = Some(seconds(2))).await, other);
    assert_eq!(found(&|it| it.caller = Some(other[0].caller.clone())).await, other);
    assert_eq!(found(&|it| it.reason = Some("connection lost".into())).await, held);
    assert_eq!(found(&|it| it.reason = Some("connection lost after 3".into())).await, held);
    assert_eq!(found(&|it| it.reason = Some("upstream".into())).await, []);
}

/// An operator's act gives a record a new fence, and leaves the time of its claim: fences and times
/// are not in the same order.
pub(crate) async fn a_listing_by_time_finds_what_an_operator_resolved(harness: &StoreHarness) {
    let old = claim("old");
    let fence = harness.granted(&old).await.fence;
    harness.hold(&old.id, fence).await;
    harness.advance(seconds(3)).await;
    harness.granted(&claim("young")).await;
    let happened = Resolution::Completed(staged_answer());
    assert_eq!(harness.resolve(&old.id, fence, &happened).await, Resolved::Applied);
    harness.advance(seconds(2)).await;
    harness.granted(&claim("youngest")).await;
    let cases: [(Duration, Option<Duration>, &[&str]); 5] = [
        (seconds(4), None, &["old"]),
        (seconds(1), None, &["old", "young"]),
        (seconds(0), Some(seconds(3)), &["young", "youngest"]),
        (seconds(0), Some(seconds(1)), &["youngest"]),
        (seconds(1), Some(seconds(3)), &["young"]),
    ];
    for (age_min, age_max, wanted) in cases {
        let wanted: Vec<RecordId> = wanted.iter().map(|key| claim(key).id).collect();
        for limit in [0, 1] {
            let query = with(ListQuery::new(), |it| {
                it.age_min = age_min;
                it.age_max = age_max;
                it.limit = limit;
            });
            assert_eq!(ids(&harness.list(&query).await), wanted, "{age_min:?} to {age_max:?}");
        }
    }
}

pub(crate) async fn a_listing_finds_expired_leases(harness: &StoreHarness) {
    let rerun = |key| with(claim(key), |it| it.on_unknown = OnUnknown::Rerun);
    harness.granted(&rerun("lapsed")).await;
    harness.advance(LEASE + TICK).await;
    harness.granted(&rerun("running")).await;
    let query = with(ListQuery::new(), |it| it.lapsed = true);
    let lapsed = harness.list(&query).await;
    assert_eq!(ids(&lapsed), [claim("lapsed").id]);
    assert!(lapsed[0].lapsed);
    assert_eq!(lapsed[0].about, claim("lapsed").about);
}

pub(crate) async fn a_page_has_the_number_of_examined_records(harness: &StoreHarness) {
    claim_many(harness, 5).await;
    let page = harness.page(&ListQuery::new()).await;
    assert!(page.examined >= 5, "{}", page.examined);
}
