//! Counters of velocity limits that many transactions share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use semel_core::{
    Answer, Claim, ClaimLimits, Claimed, Finish, Limit, Occupied, OnUnknown, Reason, Release,
    Store,
    limit::{Counted, LimitKey},
};
use semel_postgres::PostgresStore;
use semel_testkit::{seed, servers, torture, with};
use tokio::time::Instant;

use crate::harness::{claim, granted};

const COUNTERS: u64 = 4;
const WORKERS: u64 = 12;

/// A limit that only unfinished operations use up.
fn limit(counter: u64, max: u16) -> Limit {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&counter.to_be_bytes());
    let limit = Limit::new(LimitKey::from_bytes(key), max, Duration::from_secs(60));
    with(limit, |limit| limit.counted = Counted::Completed)
}

fn limited(key: &str, limits: impl IntoIterator<Item = Limit>) -> Claim {
    with(claim(key), |claim| {
        claim.limits = ClaimLimits::new(limits).unwrap();
        claim.on_unknown = OnUnknown::Rerun;
        claim.lease = Duration::from_millis(30);
    })
}

/// Numbers of a xorshift generator.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_with_shared_counters_has_no_deadlock() {
    let time = Duration::from_secs(if torture() { 600 } else { 5 });
    let seed = seed();
    eprintln!("to repeat it: SEMEL_SEED={seed}");
    let postgres = servers::postgres();
    let database = postgres.fresh_database();
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..3 {
        stores.push(Arc::new(PostgresStore::connect(&postgres.url(&database)).await.unwrap()));
    }
    let (end, grants) = (Instant::now() + time, Arc::new(AtomicU32::new(0)));
    let workers = (0..WORKERS).map(|worker| {
        let store = Arc::clone(&stores[usize::try_from(worker).unwrap() % stores.len()]);
        let (grants, numbers) = (Arc::clone(&grants), Numbers(seed.wrapping_add(worker) | 1));
        tokio::spawn(work(store, numbers, grants, end))
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    let deadlocks = format!("SELECT deadlocks FROM pg_stat_database WHERE datname = '{database}'");
    // The server's statistics follow within a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(postgres.sql("postgres", &deadlocks), "0");
    assert!(grants.load(Ordering::Relaxed) > 100, "{grants:?}");
    // Nothing runs any more, so no unit is reserved once the last leases were taken over.
    tokio::time::sleep(Duration::from_millis(40)).await;
    for number in 0..20 {
        let _ = stores[number % stores.len()].claim(&unlimited(&format!("key-{number}"))).await;
    }
    let all = limited("all", (0..COUNTERS).map(|counter| limit(counter, 3)));
    granted(&stores[0], &all).await;
}

/// A claim without limits, which takes over what was left.
fn unlimited(key: &str) -> Claim {
    with(claim(key), |claim| claim.on_unknown = OnUnknown::Rerun)
}

async fn work(store: Arc<dyn Store>, mut numbers: Numbers, grants: Arc<AtomicU32>, end: Instant) {
    while Instant::now() < end {
        let first = numbers.below(COUNTERS);
        let count = 1 + numbers.below(COUNTERS);
        // In any order: the store sorts them.
        let counters = (0..count).map(|step| (first + step) % COUNTERS);
        let claim = limited(
            &format!("key-{}", numbers.below(20)),
            counters.map(|counter| limit(counter, 3)),
        );
        let grant = match store.claim(&claim).await {
            Ok(Claimed::Granted(grant)) => grant,
            Ok(Claimed::Occupied(Occupied::Completed { .. } | Occupied::Held)) => panic!(),
            Ok(Claimed::Occupied(_)) => continue,
            Err(error) => panic!("{error}"),
        };
        grants.fetch_add(1, Ordering::Relaxed);
        let finish = match numbers.below(8) {
            // Its lease expires, and another claim takes it over.
            0 => continue,
            1 => Finish::release(Release::NotSent, Reason::NotSent),
            2 => Finish::forget(Reason::Answered(307)),
            3 => Finish::release(Release::Rerun, Reason::Panicked),
            _ => Finish::release(Release::Refused, Reason::Answered(429)),
        };
        let marked = numbers.below(2) == 0;
        let finish = if marked { finish.with_limits(&claim.limits, None) } else { finish };
        store.finish(&claim.id, claim.claimant(grant.fence), &finish).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_deletes_counters_that_no_longer_count() {
    let postgres = servers::postgres();
    let database = postgres.fresh_database();
    let store: Arc<dyn Store> =
        Arc::new(PostgresStore::connect(&postgres.url(&database)).await.unwrap());
    let rows = || postgres.sql(&database, "SELECT count(*) FROM semel_limit_counters");
    for number in 0..50_u64 {
        let claim = limited(&format!("key-{number}"), [limit(number, 1)]);
        let grant = granted(&store, &claim).await;
        let answer = if number < 10 {
            Finish::complete(Answer::not_retained(201))
        } else {
            Finish::release(Release::Refused, Reason::Answered(429))
        };
        let finish = answer.with_limits(&claim.limits, None);
        store.finish(&claim.id, claim.claimant(grant.fence), &finish).await.unwrap();
    }
    assert_eq!(rows(), "50");
    store.sweep(1000).await.unwrap();
    assert_eq!(rows(), "10", "those that count are kept");
}
