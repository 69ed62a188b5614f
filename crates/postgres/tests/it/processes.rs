//! Several processes on one database.

use std::{sync::Arc, time::Duration};

use semel_core::{Changed, Claimed, Fenced, Finish, Reason, Release, Store};
use semel_testkit::fixture::Fixture as _;
use tokio::time::{Instant, sleep};

use crate::{
    fixture::{Access, Pg, RowExpressions},
    harness::{TEST_TIMEOUT, answer, claim, granted, in_time, rival},
};

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_sweeps_delete_each_record_once() {
    let db = Pg::new(Access::Owner).await;
    let expires_at = "now + n * interval '1 millisecond'";
    db.fill(5000, &RowExpressions { expires_at, ..RowExpressions::default() }).await;
    db.advance(Duration::from_secs(4)).await;
    let sweeping: Vec<_> = stores(&db, 4)
        .await
        .into_iter()
        .map(|store| {
            tokio::spawn(async move {
                let mut swept = 0;
                loop {
                    let batch = store.sweep(150).await.unwrap();
                    swept += batch.done;
                    if !batch.more {
                        return swept;
                    }
                }
            })
        })
        .collect();
    let mut swept = 0;
    for sweeping in sweeping {
        swept += in_time(sweeping).await.unwrap();
    }
    swept += db.store().sweep(5000).await.unwrap().done;
    assert_eq!(swept, 3999, "the expired records, each once");
}

async fn stores(db: &Pg, count: usize) -> Vec<Arc<dyn Store>> {
    let mut stores = Vec::new();
    for _ in 0..count {
        stores.push(db.another().await);
    }
    stores
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_the_listening_connection_is_lost() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    let claim = claim("watched");
    let fence = granted(&store, &claim).await.fence;
    let waiter = db.another().await;
    let changed: Changed = waiter.watch(&claim.id).await.unwrap().unwrap();
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE query LIKE 'LISTEN semel_%' AND usename = $1";
    assert_eq!(db.admin.query(kill, &[&db.role]).await.unwrap().len(), 1);
    in_time(changed).await;
    // Notifications arrive again after the reconnect.
    let begun = Instant::now();
    let changed = loop {
        if let Some(changed) = waiter.watch(&claim.id).await.unwrap() {
            break changed;
        }
        assert!(begun.elapsed() < TEST_TIMEOUT, "no notification arrives");
        sleep(Duration::from_millis(20)).await;
    };
    let done = store
        .finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("done")))
        .await
        .unwrap();
    assert_eq!(done, Fenced::Applied);
    in_time(changed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_watched_records_are_notified() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    let (watched, other) = (claim("watched"), claim("other"));
    let fence = granted(&store, &watched).await.fence;
    let unwatched = granted(&store, &other).await.fence;
    let changed = store.watch(&watched.id).await.unwrap().unwrap();
    let marked = format!("SELECT key FROM {}.kit_records WHERE watched", db.schema);
    let rows = db.admin.query(&marked, &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<&str>>(), ["watched"]);
    assert_eq!(
        store
            .finish(
                &other.id,
                other.claimant(unwatched),
                &Finish::release(Release::Rerun, Reason::Answered(429))
            )
            .await
            .unwrap(),
        Fenced::Applied
    );
    assert_eq!(
        store
            .finish(
                &watched.id,
                watched.claimant(fence),
                &Finish::release(Release::Rerun, Reason::Answered(429))
            )
            .await
            .unwrap(),
        Fenced::Applied
    );
    in_time(changed).await;
    // The next claim of the record is not watched.
    granted(&store, &rival(&watched)).await;
    assert!(db.admin.query(&marked, &[]).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stampede_on_few_keys_from_many_processes_grants_each_once() {
    let db = Pg::new(Access::Owner).await;
    let stores = stores(&db, 4).await;
    let claiming: Vec<_> = (0..800)
        .map(|number| {
            let store = Arc::clone(&stores[number % stores.len()]);
            let claim = claim(&format!("key-{}", number % 10));
            tokio::spawn(async move { store.claim(&claim).await.unwrap() })
        })
        .collect();
    let mut granted = 0;
    for claiming in claiming {
        granted += usize::from(matches!(in_time(claiming).await.unwrap(), Claimed::Granted(_)));
    }
    assert_eq!(granted, 10);
}
