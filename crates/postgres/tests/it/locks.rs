//! What others do to the table: locks that are kept, and rows that it refuses.

use std::sync::Arc;

use semel_core::{Claimed, Effect, Fenced, Finish, Occupied};
use semel_testkit::{fixture::Fixture as _, servers};

use crate::{
    bench::{answer, claim, eventually, granted, rival, soon},
    common::{Pg, Way, connect},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_somebody_keeps_stops_nobody_else() {
    let bench = Pg::new(Way::Owner).await;
    let store = bench.store();
    let locked = claim("locked");
    let fence = granted(&store, &locked).await.fence;
    let mut other = connect(&servers::postgres().url("postgres")).await;
    let lock = other.transaction().await.unwrap();
    let rows = format!("SELECT 1 FROM {}.kit_records FOR UPDATE", bench.schema);
    lock.query(&rows, &[]).await.unwrap();
    let telling = tokio::spawn({
        let (store, claim) = (Arc::clone(&store), locked.clone());
        let done = Finish::complete(answer("done"));
        async move { store.finish(&claim.id, claim.claimant(fence), &done).await }
    });
    let claims = (0..50).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { granted(&store, &claim(&format!("free-{number}"))).await })
    });
    for claiming in claims.collect::<Vec<_>>() {
        soon(claiming).await.unwrap();
    }
    let error = soon(telling).await.unwrap().unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error}");
    lock.rollback().await.unwrap();
    let told =
        soon(store.finish(&locked.id, locked.claimant(fence), &Finish::complete(answer("done"))))
            .await
            .unwrap();
    assert_eq!(told, Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_the_table_refuses_spoils_no_other() {
    for way in [Way::Owner, Way::Pooled] {
        let bench = Pg::new(way).await;
        let store = bench.store();
        let schema = &bench.schema;
        let refuse = format!("ALTER TABLE {schema}.kit_records ADD CHECK (key <> 'bad') NOT VALID");
        bench.admin.batch_execute(&refuse).await.unwrap();
        let claims = (0..100).map(|number| {
            let key = if number == 50 { "bad".to_owned() } else { format!("good-{number}") };
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.claim(&claim(&key)).await })
        });
        let mut refused = 0;
        for claiming in claims.collect::<Vec<_>>() {
            if let Err(error) = soon(claiming).await.unwrap() {
                assert_eq!(error.effect(), Effect::None, "{error}");
                refused += 1;
            }
        }
        assert_eq!(refused, 1);
        let count = format!("SELECT count(*) FROM {schema}.kit_records");
        assert_eq!(bench.admin.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 99);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_another_overtakes_finds_it() {
    for way in [Way::Owner, Way::Pooled] {
        let bench = Pg::new(way).await;
        let (store, schema) = (bench.store(), &bench.schema);
        let first = claim("contested");
        granted(&store, &first).await;
        let aside = format!(
            "CREATE TABLE {schema}.aside AS TABLE {schema}.kit_records; \
             TRUNCATE {schema}.kit_records"
        );
        bench.admin.batch_execute(&aside).await.unwrap();
        let mut other = connect(&servers::postgres().url("postgres")).await;
        let overtaking = other.transaction().await.unwrap();
        let insert = format!("INSERT INTO {schema}.kit_records TABLE {schema}.aside");
        overtaking.batch_execute(&insert).await.unwrap();
        // It finds no record, and meets the one that is being inserted.
        let claiming = tokio::spawn({
            let (store, second) = (Arc::clone(&store), rival(&first));
            async move { store.claim(&second).await }
        });
        let waits = format!(
            "SELECT 1 FROM pg_stat_activity \
             WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT INTO%{schema}%'"
        );
        eventually(&bench.admin, &waits).await;
        overtaking.commit().await.unwrap();
        let told = soon(claiming).await.unwrap().unwrap();
        assert!(matches!(told, Claimed::Occupied(Occupied::InFlight { .. })), "{way:?}: {told:?}");
    }
}

/// The standby of whoever changes it may be away for long.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_does_not_wait_for_whoever_changes_the_record() {
    for way in [Way::Owner, Way::Pooled] {
        let bench = Pg::new(way).await;
        let (store, schema) = (bench.store(), &bench.schema);
        let first = claim("changing");
        granted(&store, &first).await;
        let mut other = connect(&servers::postgres().url("postgres")).await;
        let changing = other.transaction().await.unwrap();
        let renew = format!("UPDATE {schema}.kit_records SET lease_until = lease_until");
        changing.batch_execute(&renew).await.unwrap();
        // Alone at first, and then in crowds.
        for crowd in [1, 1, 1, 20] {
            let asking: Vec<_> = (0..crowd)
                .map(|_| {
                    let (store, claim) = (Arc::clone(&store), rival(&first));
                    tokio::spawn(async move { store.claim(&claim).await })
                })
                .collect();
            for asking in asking {
                let told = soon(asking).await.unwrap().unwrap();
                let waits = matches!(told, Claimed::Occupied(Occupied::InFlight { .. }));
                assert!(waits, "{way:?}: {told:?}");
            }
        }
        changing.rollback().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_a_record_that_is_just_deleted_has_a_higher_fence() {
    let bench = Pg::new(Way::Owner).await;
    let (store, schema) = (bench.store(), &bench.schema);
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
