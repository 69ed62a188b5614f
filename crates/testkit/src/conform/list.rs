//! Listings: each record once, as it counts now, in pages of a bounded size.

use std::collections::BTreeSet;

use semel_core::{
    Claim, Cursor, ListQuery, OnUnknown, RecordId, Scope, StateName, Tried, store::PAGE_MAX,
};

use super::{
    bench::{Bench, Handle, LEASE, TICK, claim, id, rival, seconds},
    stage::{Stage, staged_answer},
};

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

pub(crate) async fn every_record_is_on_one_page(bench: &Bench) {
    let claimed = claim_many(bench, 23).await;
    for limit in [1, 2, 7, 22, 23, 24] {
        let query = ListQuery { limit, ..ListQuery::default() };
        assert_eq!(ids(&bench.list(&query).await), claimed, "in pages of {limit}");
        assert_eq!(ids(&bench.another().await.list(&query).await), claimed);
    }
}

pub(crate) async fn a_listing_has_what_counts_now(bench: &Bench) {
    for (at, stage) in Stage::ALL.into_iter().enumerate() {
        let staged = stage.set(bench, &format!("stage-{at}")).await;
        let listed = bench.list(&ListQuery::default()).await;
        let listed: Vec<_> = listed.iter().filter(|line| line.id == *staged.id()).collect();
        match bench.get(staged.id()).await {
            None => assert!(listed.is_empty(), "{stage:?} is listed: {listed:?}"),
            Some(seen) => {
                assert_eq!(listed.len(), 1, "{stage:?}: {listed:?}");
                assert_eq!(listed[0].state, seen.standing.name(), "{stage:?}");
                assert_eq!(listed[0].fence, seen.fence, "{stage:?}");
                assert_eq!(listed[0].attempt, seen.attempt, "{stage:?}");
                assert_eq!(listed[0].age, seen.age, "{stage:?}");
            }
        }
    }
}

pub(crate) async fn a_listing_filters_by_state(bench: &Bench) {
    // Those that lapse or expire come first: time that passes for them passes for all.
    let lapsed = Stage::LapsedHold.set(bench, "lapsed").await;
    let completed = Stage::Completed.set(bench, "completed").await;
    let released = Stage::Released.set(bench, "released").await;
    let held = Stage::Held.set(bench, "z-held").await;
    let running = Stage::Running.set(bench, "running").await;
    for (state, wanted) in [
        (StateName::InFlight, vec![&running]),
        (StateName::Completed, vec![&completed]),
        (StateName::Released, vec![&released]),
        (StateName::Held, vec![&lapsed, &held]),
    ] {
        let wanted: Vec<RecordId> = wanted.into_iter().map(|staged| staged.id().clone()).collect();
        for limit in [0, 1] {
            let query = ListQuery { state: Some(state), limit, ..ListQuery::default() };
            assert_eq!(ids(&bench.list(&query).await), wanted, "{state}");
        }
    }
}

pub(crate) async fn a_listing_filters_by_scope(bench: &Bench) {
    for scope in ["pay", "pay.card", "pays"] {
        for key in ["a", "b"] {
            bench.granted(&Claim { id: id(scope, "caller", key), ..claim("key") }).await;
        }
    }
    let scope = Some(Scope::new("pay").unwrap());
    let wanted = [id("pay", "caller", "a"), id("pay", "caller", "b")];
    for limit in [0, 1] {
        let query = ListQuery { scope: scope.clone(), limit, ..ListQuery::default() };
        assert_eq!(ids(&bench.list(&query).await), wanted);
    }
    let none = Some(Scope::new("nothing").unwrap());
    assert!(bench.list(&ListQuery { scope: none, ..ListQuery::default() }).await.is_empty());
}

pub(crate) async fn a_listing_filters_by_age(bench: &Bench) {
    bench.granted(&claim("old")).await;
    bench.advance(seconds(3)).await;
    bench.granted(&claim("young")).await;
    bench.advance(seconds(2)).await;
    let all: Vec<RecordId> = ["old", "young"].map(|key| claim(key).id).into();
    let cases = [
        (seconds(2), &all[..]),
        (seconds(2) + TICK, &all[..1]),
        (seconds(5), &all[..1]),
        (seconds(5) + TICK, &[]),
    ];
    for (age_min, wanted) in cases {
        let query = ListQuery { age_min, ..ListQuery::default() };
        assert_eq!(ids(&bench.list(&query).await), wanted, "{age_min:?}");
    }
}

pub(crate) async fn a_page_is_never_too_large(bench: &Bench) {
    let claimed = claim_many(bench, MANY).await;
    for limit in [0, PAGE_MAX, PAGE_MAX + 1, u32::MAX] {
        let query = ListQuery { limit, ..ListQuery::default() };
        // The bench checks the size of each page.
        assert_eq!(ids(&bench.list(&query).await), claimed, "in pages of {limit}");
    }
}

pub(crate) async fn records_that_rest_are_listed_once_while_others_move(bench: &Bench) {
    let mut resting = BTreeSet::new();
    let mut moving = Vec::new();
    for number in 0..12 {
        let claim = Claim { on_unknown: OnUnknown::Rerun, ..claim(&format!("{number:02}")) };
        let fence = bench.granted(&claim).await.fence;
        if number % 3 == 0 {
            moving.push(claim);
        } else {
            bench.complete(&claim.id, fence, &staged_answer()).await;
            resting.insert(claim.id);
        }
    }
    bench.advance(LEASE + TICK).await;
    let mut listed = Vec::new();
    let mut after: Option<Cursor> = None;
    for page in 0..100 {
        let limit = 2;
        let page_of_two = bench.page(&ListQuery { after, limit, ..ListQuery::default() }).await;
        listed.extend(ids(&page_of_two.items));
        after = page_of_two.next;
        if after.is_none() {
            break;
        }
        // Between two pages one record goes to the end of any order by fence, and one goes away.
        let claim = &moving[page % moving.len()];
        if let semel_core::Claimed::Granted(grant) = bench.claim(&rival(claim)).await {
            bench.release(&claim.id, grant.fence, Tried::Counted).await;
        }
    }
    listed.retain(|id| resting.contains(id));
    listed.sort();
    assert_eq!(listed, resting.into_iter().collect::<Vec<_>>());
}

pub(crate) async fn an_empty_store_has_one_empty_page(bench: &Bench) {
    let page = bench.page(&ListQuery::default()).await;
    assert_eq!((page.items, page.next), (vec![], None));
}
