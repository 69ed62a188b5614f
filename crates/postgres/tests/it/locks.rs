//! Locks of other transactions, and rows that the table rejects.

use std::sync::Arc;

use semel_core::{Claimed, Effect, Fenced, Finish, Occupied};
use semel_testkit::{fixture::Fixture as _, servers};

use crate::{
    fixture::{Access, Pg, connect},
    harness::{answer, claim, eventually, granted, in_time, rival},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_record_does_not_block_other_records() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    let locked = claim("locked");
    let fence = granted(&store, &locked).await.fence;
    let mut other = connect(&servers::postgres().url("postgres")).await;
    let lock = other.transaction().await.unwrap();
    let rows = format!("SELECT 1 FROM {}.kit_records FOR UPDATE", db.schema);
    lock.query(&rows, &[]).await.unwrap();
    let finishing = tokio::spawn({
        let (store, claim) = (Arc::clone(&store), locked.clone());
        let done = Finish::complete(answer("done"));
        async move { store.finish(&claim.id, claim.claimant(fence), &done).await }
    });
    let claims = (0..50).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { granted(&store, &claim(&format!("free-{number}"))).await })
    });
    for claiming in claims.collect::<Vec<_>>() {
        in_time(claiming).await.unwrap();
    }
    let error = in_time(finishing).await.unwrap().unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error}");
    lock.rollback().await.unwrap();
    let reply = in_time(store.finish(
        &locked.id,
        locked.claimant(fence),
        &Finish::complete(answer("done")),
    ))
    .await
    .unwrap();
    assert_eq!(reply, Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_the_table_rejects_does_not_fail_the_batch() {
    for access in [Access::Owner, Access::Pooled] {
        let db = Pg::new(access).await;
        let store = db.store();
        let schema = &db.schema;
        let refuse = format!("ALTER TABLE {schema}.kit_records ADD CHECK (key <> 'bad') NOT VALID");
        db.admin.batch_execute(&refuse).await.unwrap();
        let claims = (0..100).map(|number| {
            let key = if number == 50 { "bad".to_owned() } else { format!("good-{number}") };
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.claim(&claim(&key)).await })
        });
        let mut refused = 0;
        for claiming in claims.collect::<Vec<_>>() {
            if let Err(error) = in_time(claiming).await.unwrap() {
                assert_eq!(error.effect(), Effect::None, "{error}");
                refused += 1;
            }
        }
        assert_eq!(refused, 1);
        let count = format!("SELECT count(*) FROM {schema}.kit_records");
        assert_eq!(db.admin.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 99);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_loses_the_race_finds_the_winner() {
    for access in [Access::Owner, Access::Pooled] {
        let db = Pg::new(access).await;
        let (store, schema) = (db.store(), &db.schema);
        let first = claim("contested");
        granted(&store, &first).await;
        let aside = format!(
            "CREATE TABLE {schema}.aside AS TABLE {schema}.kit_records; \
             TRUNCATE {schema}.kit_records"
        );
        db.admin.batch_execute(&aside).await.unwrap();
        let mut other = connect(&servers::postgres().url("postgres")).await;
        let overtaking = other.transaction().await.unwrap();
        let insert = format!("INSERT INTO {schema}.kit_records TABLE {schema}.aside");
        overtaking.batch_execute(&insert).await.unwrap();
        // It finds no record, and then waits for the concurrent insert.
        let claiming = tokio::spawn({
            let (store, second) = (Arc::clone(&store), rival(&first));
            async move { store.claim(&second).await }
        });
        let waits = format!(
            "SELECT 1 FROM pg_stat_activity \
             WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT INTO%{schema}%'"
        );
        eventually(&db.admin, &waits).await;
        overtaking.commit().await.unwrap();
        let reply = in_time(claiming).await.unwrap().unwrap();
        assert!(
            matches!(reply, Claimed::Occupied(Occupied::InFlight { .. })),
            "{access:?}: {reply:?}"
        );
    }
}

/// The other transaction may wait for its standby for long.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_does_not_wait_for_a_transaction_that_changes_the_record() {
    for access in [Access::Owner, Access::Pooled] {
        let db = Pg::new(access).await;
        let (store, schema) = (db.store(), &db.schema);
        let first = claim("changing");
        granted(&store, &first).await;
        let mut other = connect(&servers::postgres().url("postgres")).await;
        let changing = other.transaction().await.unwrap();
        let renew = format!("UPDATE {schema}.kit_records SET lease_until = lease_until");
        changing.batch_execute(&renew).await.unwrap();
        // Single claims at first, then a batch.
        for crowd in [1, 1, 1, 20] {
            let claiming: Vec<_> = (0..crowd)
                .map(|_| {
                    let (store, claim) = (Arc::clone(&store), rival(&first));
                    tokio::spawn(async move { store.claim(&claim).await })
                })
                .collect();
            for claiming in claiming {
                let reply = in_time(claiming).await.unwrap().unwrap();
                let waits = matches!(reply, Claimed::Occupied(Occupied::InFlight { .. }));
                assert!(waits, "{access:?}: {reply:?}");
            }
        }
        changing.rollback().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_after_a_concurrent_delete_has_a_higher_fence() {
    let db = Pg::new(Access::Owner).await;
    let (store, schema) = (db.store(), &db.schema);
    let first = claim("gone");
    let fence = granted(&store, &first).await.fence;
    let mut other = connect(&servers::postgres().url("postgres")).await;
    let deleting = other.transaction().await.unwrap();
    let delete = format!("DELETE FROM {schema}.kit_records");
    deleting.batch_execute(&delete).await.unwrap();
    assert!(matches!(store.claim(&rival(&first)).await.unwrap(), Claimed::Occupied(_)));
    deleting.commit().await.unwrap();
    let second = granted(&store, &rival(&first)).await.fence;
    assert!(second > fence, "{second} after {fence}");
}
