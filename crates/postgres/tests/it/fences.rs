//! Fences neither repeat nor fall, also where the database has lost what it issued (law 11).

use std::{collections::HashSet, sync::Arc};

use semel_core::{Fence, Fenced, Finish, Store};
use semel_testkit::fixture::Fixture as _;

use crate::{
    bench::{answer, claim, granted, rival},
    common::{Pg, Way},
};

/// The wall clock of the database in microseconds.
async fn clock(bench: &Pg) -> u64 {
    let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let clock: i64 = bench.admin.query_one(clock, &[]).await.unwrap().get(0);
    clock.unsigned_abs()
}

/// What the sequence issued last.
async fn issued(bench: &Pg) -> u64 {
    let last = format!("SELECT last_value FROM {}.kit_fences", bench.schema);
    bench.admin.query_one(&last, &[]).await.unwrap().get::<_, i64>(0).unsigned_abs()
}

async fn set_sequence(bench: &Pg, to: u64) {
    let set = format!("SELECT setval('{}.kit_fences', {to})", bench.schema);
    bench.admin.query(&set, &[]).await.unwrap();
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

/// As after an asynchronous failover or a restored dump: rows and numbers of the past are gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_the_database_has_lost_never_meets_its_fence_again() {
    for way in [Way::Owner, Way::Pooled] {
        let bench = Pg::new(way).await;
        let (store, schema) = (bench.store(), &bench.schema);
        set_sequence(&bench, 1).await;
        let lost = claim("lost");
        let zombie = granted(&store, &lost).await.fence;
        let others = claim_many(&store, "other", 50).await;
        let highest = others.iter().copied().chain([zombie]).max().unwrap();
        bench.admin.batch_execute(&format!("TRUNCATE {schema}.kit_records")).await.unwrap();
        set_sequence(&bench, 1).await;
        let owner = rival(&lost);
        let fence = granted(&store, &owner).await.fence;
        assert!(fence > highest, "{way:?}: {fence:?} after {highest:?}");
        let lowest = claim_many(&store, "other", 50).await.into_iter().min().unwrap();
        assert!(lowest > highest, "{way:?}: {lowest:?} after {highest:?}");
        let late = store
            .finish(&lost.id, lost.claimant(zombie), &Finish::complete(answer("late")))
            .await
            .unwrap();
        assert_eq!(late, Fenced::Lost, "{way:?}");
        let own = store
            .finish(&lost.id, owner.claimant(fence), &Finish::complete(answer("own")))
            .await
            .unwrap();
        assert_eq!(own, Fenced::Applied, "{way:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_are_unique_and_at_least_the_wall_clock() {
    let bench = Pg::new(Way::Owner).await;
    let before = clock(&bench).await;
    let (here, there) = (bench.store(), bench.another().await);
    let (first, second) =
        tokio::join!(claim_many(&here, "here", 2000), claim_many(&there, "there", 2000));
    let after = clock(&bench).await;
    let all: HashSet<u64> = first.iter().chain(&second).map(|fence| fence.get()).collect();
    assert_eq!(all.len(), 4000, "two claims share a fence");
    let (lowest, highest) = (*all.iter().min().unwrap(), *all.iter().max().unwrap());
    assert!(lowest >= before, "{lowest} is before {before}");
    assert!(highest <= after + 64, "{highest} is after {after}");
}

/// Seen from a clock that has stepped back, the sequence is in the future.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_lets_no_fence_fall() {
    let bench = Pg::new(Way::Owner).await;
    let store = bench.store();
    let hour = 3_600_000_000;
    let ahead = clock(&bench).await + hour;
    set_sequence(&bench, ahead).await;
    let first = granted(&store, &claim("first")).await.fence;
    assert!(first.get() > ahead);
    let fences = claim_many(&store, "more", 500).await;
    assert!(fences.iter().all(|fence| *fence > first && fence.get() < ahead + hour));
    assert_eq!(fences.iter().collect::<HashSet<_>>().len(), 500);
    store.reap(10).await.unwrap();
    assert!(issued(&bench).await >= fences.iter().max().unwrap().get(), "it was lowered");
}

#[tokio::test(flavor = "multi_thread")]
async fn upkeep_raises_the_sequence_to_the_clock() {
    for way in [Way::Granted, Way::Pooled] {
        let bench = Pg::new(way).await;
        let made = issued(&bench).await;
        assert!(made > 1_700_000_000_000_000, "{way:?}: a new store begins at {made}");
        set_sequence(&bench, 1).await;
        let before = clock(&bench).await;
        bench.store().reap(10).await.unwrap();
        let raised = issued(&bench).await;
        assert!(raised >= before, "{way:?}: {raised} is before {before}");
    }
}
