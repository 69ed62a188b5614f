//! The hot statements use the primary key, whatever the table looked like when they were planned.

use std::time::Duration;

use semel_core::{
    Fenced, Finish, ListQuery, OnUnknown, Reason, Release, Resolution, Resolved, StateName,
};
use semel_testkit::fixture::Fixture as _;
use tokio::time::sleep;
use tokio_postgres::Row;

use crate::{
    fixture::{Access, Pg, RowExpressions},
    harness::{answer, claim, eventually, granted, rival},
};
use semel_testkit::with;

async fn act(db: &Pg, key: &str) {
    let store = db.store();
    let claim = claim(key);
    let fence = granted(&store, &claim).await.fence;
    granted(&store, &claim).await;
    store.claim(&rival(&claim)).await.unwrap();
    store.renew(&claim.id, claim.claimant(fence), Duration::from_secs(60)).await.unwrap();
    store.get(&claim.id).await.unwrap();
    store
        .finish(
            &claim.id,
            claim.claimant(fence),
            &Finish::release(Release::Rerun, Reason::Answered(429)),
        )
        .await
        .unwrap();
    let second = rival(&claim);
    let by = second.claimant(granted(&store, &second).await.fence);
    let complete = Finish::complete(answer("done"));
    assert_eq!(store.finish(&claim.id, by, &complete).await.unwrap(), Fenced::Applied);
    assert_eq!(store.finish(&claim.id, by, &complete).await.unwrap(), Fenced::Applied);
    settle(db, &format!("{key}-more")).await;
}

/// Runs the statements that use the index by retention.
async fn maintain(db: &Pg) {
    let store = db.store();
    store.sweep(10).await.unwrap();
    store.reap(10).await.unwrap();
    let open = with(ListQuery::new(), |it| it.state = Some(StateName::Held));
    store.list(&open).await.unwrap();
    let recent = with(ListQuery::new(), |it| it.age_max = Some(Duration::from_secs(1)));
    store.list(&recent).await.unwrap();
    let released = with(ListQuery::new(), |it| it.state = Some(StateName::Released));
    store.list(&released).await.unwrap();
    let of_key = with(ListQuery::new(), |it| it.key = Some(claim("one").id.key));
    store.list(&of_key).await.unwrap();
}

/// Runs the statements on watched, held and expired records.
async fn settle(db: &Pg, key: &str) {
    let store = db.store();
    let of = |what: &str| claim(&format!("{key}-{what}"));
    let held = of("held");
    let fence = granted(&store, &held).await.fence;
    drop(store.watch(&held.id).await.unwrap());
    store
        .finish(&held.id, held.claimant(fence), &Finish::hold(Reason::OperationError))
        .await
        .unwrap();
    let reply = store.resolve(&held.id, fence, &Resolution::Released).await.unwrap();
    assert_eq!(reply, Resolved::Applied);
    let late = of("late");
    let fence = granted(&store, &late).await.fence;
    store
        .finish(&late.id, late.claimant(fence), &Finish::hold(Reason::OperationError))
        .await
        .unwrap();
    let done = store
        .finish(&late.id, late.claimant(fence), &Finish::complete(answer("late")))
        .await
        .unwrap();
    assert_eq!(done, Fenced::Applied);
    let forgotten = of("forgotten");
    let fence = granted(&store, &forgotten).await.fence;
    store
        .finish(&forgotten.id, forgotten.claimant(fence), &Finish::hold(Reason::OperationError))
        .await
        .unwrap();
    let forget = Resolution::Deleted(StateName::Held);
    assert_eq!(store.resolve(&forgotten.id, fence, &forget).await.unwrap(), Resolved::Applied);
    let kept = of("kept");
    let fence = granted(&store, &kept).await.fence;
    store
        .finish(&kept.id, kept.claimant(fence), &Finish::hold(Reason::OperationError))
        .await
        .unwrap();
    for on_unknown in [OnUnknown::Hold, OnUnknown::Fail, OnUnknown::Rerun] {
        let lapsing = with(of(&format!("{on_unknown:?}")), |it| {
            it.lease = Duration::from_secs(1);
            it.on_unknown = on_unknown;
        });
        granted(&store, &lapsing).await;
        db.advance(Duration::from_secs(2)).await;
        store.claim(&rival(&lapsing)).await.unwrap();
    }
}

/// Checks the columns by which the reaper, the sweep and the listing find a record.
async fn assert_sound(db: &Pg) {
    let unsound = format!(
        "SELECT key, state FROM {}.kit_records WHERE \
         (state = 'in_flight') <> (lease_until IS NOT NULL AND ended_at IS NULL) \
         OR (state = 'held' AND hold_for IS NOT NULL) <> (hold_until IS NOT NULL) \
         OR NOT CASE state \
             WHEN 'held' THEN expires_at = '-infinity' \
             WHEN 'in_flight' THEN expires_at = claimed_at + retention * interval '1 ms' \
                 OR expires_at = CASE on_unknown WHEN 'rerun' THEN timestamptz '-infinity' \
                     ELSE 'epoch' END \
             ELSE expires_at > 'epoch' \
         END",
        db.schema
    );
    let rows = db.admin.query(&unsound, &[]).await.unwrap();
    let named = |row: &Row| (row.get(0), row.get(1));
    assert_eq!(rows.iter().map(named).collect::<Vec<(String, String)>>(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_scans_the_table() {
    for access in [Access::Owner, Access::Pooled] {
        let db = Pg::new(access).await;
        let schema = &db.schema;
        // Planned while the table is empty, when a sequential scan looks cheap.
        act(&db, "empty").await;
        maintain(&db).await;
        db.fill(100_000, &RowExpressions::default()).await;
        let analyze = format!("ANALYZE {schema}.kit_records");
        db.admin.batch_execute(&analyze).await.unwrap();
        let read = format!(
            "SELECT COALESCE(seq_tup_read, 0), COALESCE(idx_scan, 0) FROM pg_stat_user_tables \
             WHERE schemaname = '{schema}' AND relname = 'kit_records'"
        );
        // A session reports its statistics after a second of idle time.
        // Real time must pass: a PostgreSQL session reports its statistics at most once a second.
        sleep(Duration::from_secs(2)).await;
        let before = db.admin.query_one(&read, &[]).await.unwrap();
        act(&db, "full").await;
        maintain(&db).await;
        let idx: i64 = before.get(1);
        let more = format!("{read} AND idx_scan >= {}", idx + 10);
        eventually(&db.admin, &more).await;
        // Real time must pass: a PostgreSQL session reports its statistics at most once a second.
        sleep(Duration::from_secs(2)).await;
        let after = db.admin.query_one(&read, &[]).await.unwrap();
        let scanned = after.get::<_, i64>(0) - before.get::<_, i64>(0);
        assert!(scanned < 1000, "{access:?}: {scanned} rows were read without an index");
        assert_sound(&db).await;
    }
}

/// Statistics from a quiet moment make the planner believe that few records are due.
#[tokio::test(flavor = "multi_thread")]
async fn no_hot_statement_uses_the_index_by_retention() {
    let db = Pg::new(Access::Owner).await;
    let schema = &db.schema;
    act(&db, "first").await;
    db.fill(20_000, &RowExpressions::default()).await;
    db.admin.batch_execute(&format!("ANALYZE {schema}.kit_records")).await.unwrap();
    db.fill(20_000, &RowExpressions { state: "'in_flight'", ..RowExpressions::default() }).await;
    let read = format!(
        "SELECT idx_scan FROM pg_stat_user_indexes \
         WHERE schemaname = '{schema}' AND indexrelname = 'kit_expiry'"
    );
    // Real time must pass: a PostgreSQL session reports its statistics at most once a second.
    sleep(Duration::from_secs(2)).await;
    let before: i64 = db.admin.query_one(&read, &[]).await.unwrap().get(0);
    for key in ["second", "third", "fourth"] {
        act(&db, key).await;
    }
    // Real time must pass: a PostgreSQL session reports its statistics at most once a second.
    sleep(Duration::from_secs(2)).await;
    act(&db, "fifth").await;
    let after: i64 = db.admin.query_one(&read, &[]).await.unwrap().get(0);
    assert_eq!(after, before, "a hot statement used the index by retention");
}

/// A completion that moves its row to another page adds to every index.
#[tokio::test(flavor = "multi_thread")]
async fn the_usual_completion_updates_no_index() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    for number in 0..200 {
        let claim = claim(&format!("key-{number}"));
        let fence = granted(&store, &claim).await.fence;
        store
            .finish(&claim.id, claim.claimant(fence), &Finish::complete(answer(&"-".repeat(500))))
            .await
            .unwrap();
    }
    let counted = format!(
        "SELECT n_tup_hot_upd FROM pg_stat_user_tables \
         WHERE schemaname = '{}' AND relname = 'kit_records' AND n_tup_upd >= 200",
        db.schema
    );
    eventually(&db.admin, &counted).await;
    let stayed: i64 = db.admin.query_one(&counted, &[]).await.unwrap().get(0);
    // The last rows of a page may find no room there.
    assert!(stayed >= 150, "only {stayed} of 200 stayed on their pages");
}
