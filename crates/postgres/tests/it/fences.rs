//! Fences are unique and increase, even after the database lost claims (law 11 of the `Store`
//! trait).

use std::{collections::HashSet, sync::Arc};

use semel_core::{Fence, Fenced, Finish, Store};
use semel_testkit::fixture::Fixture as _;

use crate::{
    fixture::{Access, Pg},
    harness::{answer, claim, granted, rival},
};

/// How far a fence may be ahead of the clock: it is rounded up to a multiple of 32 µs, and less than
/// 32 are added.
const CLOCK_LEAD_MAX_MICROS: u64 = 64;

/// The wall clock of the database in microseconds.
async fn clock(db: &Pg) -> u64 {
    let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let clock: i64 = db.admin.query_one(clock, &[]).await.unwrap().get(0);
    clock.unsigned_abs()
}

/// The last number of the sequence.
async fn last_issued(db: &Pg) -> u64 {
    let last = format!("SELECT last_value FROM {}.kit_fences", db.schema);
    db.admin.query_one(&last, &[]).await.unwrap().get::<_, i64>(0).unsigned_abs()
}

async fn set_sequence(db: &Pg, to: u64) {
    let set = format!("SELECT setval('{}.kit_fences', {to})", db.schema);
    db.admin.query(&set, &[]).await.unwrap();
}

/// Claims many keys at once, so that most go in batches.
async fn claim_many(store: &Arc<dyn Store>, name: &str, count: usize) -> Vec<Fence> {
    let claiming: Vec<_> = (0..count)
        .map(|number| {
            let (store, claim) = (Arc::clone(store), claim(&format!("{name}-{number}")));
            tokio::spawn(async move { granted(&store, &claim).await.fence })
        })
        .collect();
    let mut fences = Vec::new();
    for claiming in claiming {
        fences.push(claiming.await.unwrap());
    }
    fences
}

/// An asynchronous failover or a restored dump loses rows and sequence numbers.
#[tokio::test(flavor = "multi_thread")]
async fn the_fence_of_a_lost_claim_is_not_issued_again() {
    for access in [Access::Owner, Access::Pooled] {
        let db = Pg::new(access).await;
        let (store, schema) = (db.store(), &db.schema);
        set_sequence(&db, 1).await;
        let lost = claim("lost");
        let lost_fence = granted(&store, &lost).await.fence;
        let others = claim_many(&store, "other", 50).await;
        let highest = others.iter().copied().chain([lost_fence]).max().unwrap();
        db.admin.batch_execute(&format!("TRUNCATE {schema}.kit_records")).await.unwrap();
        set_sequence(&db, 1).await;
        let owner = rival(&lost);
        let fence = granted(&store, &owner).await.fence;
        assert!(fence > highest, "{access:?}: {fence:?} after {highest:?}");
        let lowest = claim_many(&store, "other", 50).await.into_iter().min().unwrap();
        assert!(lowest > highest, "{access:?}: {lowest:?} after {highest:?}");
        let late = store
            .finish(&lost.id, lost.claimant(lost_fence), &Finish::complete(answer("late")))
            .await
            .unwrap();
        assert_eq!(late, Fenced::Lost, "{access:?}");
        let own = store
            .finish(&lost.id, owner.claimant(fence), &Finish::complete(answer("own")))
            .await
            .unwrap();
        assert_eq!(own, Fenced::Applied, "{access:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_are_unique_and_at_least_the_wall_clock() {
    let db = Pg::new(Access::Owner).await;
    let before = clock(&db).await;
    let (first_store, second_store) = (db.store(), db.another().await);
    let (first_fences, second_fences) = tokio::join!(
        claim_many(&first_store, "first", 2000),
        claim_many(&second_store, "second", 2000)
    );
    let after = clock(&db).await;
    let all: HashSet<u64> =
        first_fences.iter().chain(&second_fences).map(|fence| fence.get()).collect();
    assert_eq!(all.len(), 4000, "two claims share a fence");
    let (lowest, highest) = (*all.iter().min().unwrap(), *all.iter().max().unwrap());
    assert!(lowest >= before, "{lowest} is before {before}");
    assert!(highest <= after + CLOCK_LEAD_MAX_MICROS, "{highest} is after {after}");
}

/// After the clock has stepped back, the sequence is ahead of it.
#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_after_the_clock_steps_back() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    let hour = 3_600_000_000;
    let ahead = clock(&db).await + hour;
    set_sequence(&db, ahead).await;
    let first = granted(&store, &claim("first")).await.fence;
    assert!(first.get() > ahead);
    let fences = claim_many(&store, "more", 500).await;
    assert!(fences.iter().all(|fence| *fence > first && fence.get() < ahead + hour));
    assert_eq!(fences.iter().collect::<HashSet<_>>().len(), 500);
    store.reap(10).await.unwrap();
    assert!(
        last_issued(&db).await >= fences.iter().max().unwrap().get(),
        "the sequence was lowered"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn maintenance_raises_the_sequence_to_the_clock() {
    for access in [Access::Granted, Access::Pooled] {
        let db = Pg::new(access).await;
        let initial = last_issued(&db).await;
        assert!(initial > 1_700_000_000_000_000, "{access:?}: a new store begins at {initial}");
        set_sequence(&db, 1).await;
        let before = clock(&db).await;
        db.store().reap(10).await.unwrap();
        let raised = last_issued(&db).await;
        assert!(raised >= before, "{access:?}: {raised} is before {before}");
    }
}
