//! Records in flight are found by the time of their claims, and later set aside.

use std::time::Duration;

use semel_core::{
    Claim, Claimed, Fenced, Finish, ListQuery, OnUnknown, StateName, StateView, Store,
};
use semel_testkit::{fixture::Fixture as _, servers};

use crate::{
    fixture::{Access, Pg, RowExpressions, connect},
    harness::{answer, claim, granted, in_time},
};
use semel_testkit::with;

const ACCESSES: [Access; 2] = [Access::Owner, Access::Pooled];

/// Longer than the time after which a record in flight is set aside.
const LONG: Duration = Duration::from_secs(60);

fn lasting(key: &str, on_unknown: OnUnknown, retention: u64) -> Claim {
    with(claim(key), |it| {
        it.on_unknown = on_unknown;
        it.retention = Duration::from_secs(retention);
    })
}

async fn open(store: &dyn Store, state: StateName) -> Vec<String> {
    let mut query = with(ListQuery::new(), |it| it.state = Some(state));
    let mut keys = Vec::new();
    loop {
        let page = store.list(&query).await.unwrap();
        keys.extend(page.items.into_iter().map(|item| item.id.key.as_str().to_owned()));
        query.after = page.next;
        if query.after.is_none() {
            keys.sort();
            return keys;
        }
    }
}

/// The records with a special `expires_at`.
async fn standing(db: &Pg, at: &str) -> Vec<String> {
    let query =
        format!("SELECT key FROM {}.kit_records WHERE expires_at = '{at}' ORDER BY key", db.schema);
    let rows = db.admin.query(&query, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Inserts completed records that were claimed a millisecond apart.
async fn fill(db: &Pg, retention: u32, count: u32) {
    let key = format!("'{retention}-' || n");
    let expires_at = format!("now + (n + {retention}) * interval '1 ms'");
    let claimed_at = "now + n * interval '1 ms'";
    let rows = RowExpressions {
        key: &key,
        retention,
        claimed_at,
        expires_at: &expires_at,
        ..RowExpressions::default()
    };
    db.fill(count, &rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_in_flight_are_listed_and_reaped_before_and_after_they_are_set_aside() {
    for access in ACCESSES {
        let db = Pg::new(access).await;
        let store = db.store();
        let mut old = Vec::new();
        for (key, on_unknown, retention) in [
            ("old-fail", OnUnknown::Fail, 3600),
            ("old-hold", OnUnknown::Hold, 7200),
            ("old-rerun", OnUnknown::Rerun, 40),
        ] {
            let claim = lasting(key, on_unknown, retention);
            old.push((granted(&store, &claim).await.fence, claim));
        }
        db.advance(LONG).await;
        assert_eq!(store.reap(100).await.unwrap().done, 0, "no lease has lapsed");
        assert_eq!(standing(&db, "epoch").await, ["old-fail", "old-hold"]);
        assert_eq!(standing(&db, "-infinity").await, ["old-rerun"]);
        for (key, retention) in [("new-hold", 40), ("new-other", 3600)] {
            granted(&store, &lasting(key, OnUnknown::Hold, retention)).await;
        }
        let all = ["new-hold", "new-other", "old-fail", "old-hold", "old-rerun"];
        assert_eq!(open(&*store, StateName::InFlight).await, all);
        // A completion restarts the retention if less than half of it is left.
        let (fence, rerun) = &old[2];
        let reply = store
            .finish(&rerun.id, rerun.claimant(*fence), &Finish::complete(answer("done")))
            .await
            .unwrap();
        assert_eq!(reply, Fenced::Applied);
        let seen = store.get(&rerun.id).await.unwrap().unwrap();
        let StateView::Completed { expires_in, .. } = seen.state else { panic!("{seen:?}") };
        assert_eq!(expires_in, rerun.retention, "{access:?}");
        // The leases of the old ones lapse.
        db.advance(Duration::from_secs(600 - 60 + 1)).await;
        assert_eq!(store.reap(1).await.unwrap().done, 1);
        assert_eq!(store.reap(100).await.unwrap().done, 1);
        assert_eq!(open(&*store, StateName::Held).await, ["old-hold"]);
        assert_eq!(open(&*store, StateName::InFlight).await, ["new-hold", "new-other"]);
        assert_eq!(standing(&db, "-infinity").await, ["old-hold"]);
        db.advance(LONG).await;
        assert_eq!(store.reap(100).await.unwrap().done, 2);
        let held = ["new-hold", "new-other", "old-hold"];
        assert_eq!(open(&*store, StateName::Held).await, held);
        db.advance(Duration::from_secs(7200)).await;
        assert_eq!(store.sweep(100).await.unwrap().done, 2, "the completed records");
        assert_eq!(open(&*store, StateName::Held).await, held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_record_is_set_aside_after_its_lock_is_released() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    let (free, locked) = (claim("free"), claim("locked"));
    granted(&store, &locked).await;
    granted(&store, &free).await;
    db.advance(LONG).await;
    let other = connect(&servers::postgres().url("postgres")).await;
    let lock =
        format!("BEGIN; SELECT FROM {}.kit_records WHERE key = 'locked' FOR UPDATE", db.schema);
    other.batch_execute(&lock).await.unwrap();
    in_time(store.reap(10)).await.unwrap();
    assert_eq!(standing(&db, "epoch").await, ["free"]);
    db.advance(LONG).await;
    granted(&store, &claim("another")).await;
    in_time(store.reap(10)).await.unwrap();
    other.batch_execute("ROLLBACK").await.unwrap();
    store.reap(10).await.unwrap();
    assert_eq!(standing(&db, "epoch").await, ["free", "locked"]);
}

/// Another transaction keeps a lock, and many records are claimed.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_lock_does_not_block_other_records() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    let schema = &db.schema;
    granted(&store, &claim("locked")).await;
    fill(&db, 3_600_000, 12_000).await;
    db.advance(Duration::from_secs(13)).await;
    granted(&store, &claim("free")).await;
    db.advance(LONG).await;
    let other = connect(&servers::postgres().url("postgres")).await;
    let lock = format!("BEGIN; SELECT FROM {schema}.kit_records WHERE key = 'locked' FOR UPDATE");
    other.batch_execute(&lock).await.unwrap();
    in_time(store.reap(10)).await.unwrap();
    assert!(!in_time(store.reap(10)).await.unwrap().more, "the caller would reap again and again");
    db.advance(Duration::from_secs(600)).await;
    while in_time(store.reap(10)).await.unwrap().more {}
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(open(&*store, StateName::Held).await, ["free"]);
}

/// A commit that waits for a standby is not visible until then.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_becomes_visible_late_is_found_by_its_key_and_when_it_expires() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    let (asked, silent) = (claim("asked"), claim("silent"));
    for claim in [&asked, &silent] {
        granted(&store, claim).await;
    }
    db.advance(LONG).await;
    let hide = format!(
        "CREATE TABLE {schema}.hidden AS SELECT * FROM {schema}.kit_records; \
         DELETE FROM {schema}.kit_records",
        schema = db.schema
    );
    db.admin.batch_execute(&hide).await.unwrap();
    granted(&store, &lasting("seen", OnUnknown::Rerun, 3600)).await;
    db.advance(LONG).await;
    store.reap(10).await.unwrap();
    let show = format!(
        "INSERT INTO {schema}.kit_records SELECT * FROM {schema}.hidden",
        schema = db.schema
    );
    db.admin.batch_execute(&show).await.unwrap();
    store.reap(10).await.unwrap();
    assert_eq!(standing(&db, "epoch").await, [] as [String; 0]);
    // A client that lost the reply to its claim repeats it.
    assert!(matches!(store.claim(&asked).await.unwrap(), Claimed::Granted(_)));
    assert_eq!(standing(&db, "epoch").await, ["asked"]);
    db.advance(Duration::from_secs(3600)).await;
    store.sweep(10).await.unwrap();
    assert_eq!(standing(&db, "epoch").await, ["asked", "silent"]);
    assert_eq!(store.reap(10).await.unwrap().done, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reaper_skips_locked_records() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    for key in ["first", "second"] {
        granted(&store, &claim(key)).await;
    }
    db.advance(Duration::from_secs(601)).await;
    let other = connect(&servers::postgres().url("postgres")).await;
    let schema = &db.schema;
    for locked in ["first", "second"] {
        let lock =
            format!("BEGIN; SELECT FROM {schema}.kit_records WHERE key = '{locked}' FOR UPDATE");
        other.batch_execute(&lock).await.unwrap();
        assert_eq!(in_time(store.reap(1)).await.unwrap().done, 1, "while `{locked}` is locked");
        other.batch_execute("ROLLBACK").await.unwrap();
    }
}

/// After a failover the clock may be behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_claimed_after_the_clock_was_set_back_is_found() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    granted(&store, &lasting("before", OnUnknown::Rerun, 3600)).await;
    db.advance(LONG).await;
    store.reap(10).await.unwrap();
    let back = format!("UPDATE {}.clock SET now = now - interval '1 hour'", db.schema);
    db.admin.batch_execute(&back).await.unwrap();
    granted(&store, &claim("after")).await;
    assert_eq!(open(&*store, StateName::InFlight).await, ["after", "before"]);
    store.reap(10).await.unwrap();
    db.advance(LONG).await;
    assert_eq!(open(&*store, StateName::InFlight).await, ["after", "before"]);
    store.reap(10).await.unwrap();
    assert_eq!(standing(&db, "epoch").await, ["after"]);
}

/// After a long pause without reaping, many claims are scanned in steps.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_scanned_in_steps() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    for retention in [3_600_000, 60_000] {
        fill(&db, retention, 25_000).await;
    }
    db.advance(Duration::from_secs(26)).await;
    let last = with(claim("last"), |it| it.lease = Duration::from_secs(1));
    granted(&store, &last).await;
    db.advance(LONG).await;
    let (mut steps, mut reaped) = (0, 0);
    loop {
        let batch = store.reap(10).await.unwrap();
        (steps, reaped) = (steps + 1, reaped + batch.done);
        if !batch.more {
            break;
        }
    }
    assert_eq!((steps, reaped), (3, 1), "of ten thousand each");
    assert_eq!(open(&*store, StateName::Held).await, ["last"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_reapers_miss_no_record() {
    let db = Pg::new(Access::Owner).await;
    let mut reaping = Vec::new();
    for _ in 0..3 {
        let store = db.another().await;
        reaping.push(tokio::spawn(async move {
            for _ in 0..40 {
                store.reap(100).await.unwrap();
            }
        }));
    }
    let store = db.store();
    for number in 0..120 {
        let quick = claim(&format!("quick-{number}"));
        let fence = granted(&store, &quick).await.fence;
        granted(&store, &claim(&format!("slow-{number}"))).await;
        db.advance(Duration::from_secs(15)).await;
        let reply = store
            .finish(&quick.id, quick.claimant(fence), &Finish::complete(answer("done")))
            .await
            .unwrap();
        assert_eq!(reply, Fenced::Applied);
    }
    for reaping in reaping {
        in_time(reaping).await.unwrap();
    }
    db.advance(Duration::from_secs(601)).await;
    while store.reap(100).await.unwrap().more {}
    assert_eq!(open(&*store, StateName::Held).await.len(), 120);
    assert_eq!(open(&*store, StateName::InFlight).await.len(), 0);
}

/// Maintenance scans the records of each retention separately.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_retention_is_rounded_up() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    for (number, (asked, kept)) in [
        (1, 1),
        (59_999, 59_999),
        (60_001, 61_000),
        (3_600_000, 3_600_000),
        (3_600_001, 3_660_000),
        (86_400_000, 86_400_000),
        (60 * 3_600_000 + 1, 61 * 3_600_000),
    ]
    .into_iter()
    .enumerate()
    {
        let retention = Duration::from_millis(asked);
        let claim = with(claim(&format!("key-{number}")), |it| it.retention = retention);
        let fence = granted(&store, &claim).await.fence;
        store
            .finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("done")))
            .await
            .unwrap();
        let seen = store.get(&claim.id).await.unwrap().unwrap();
        let StateView::Completed { expires_in, .. } = seen.state else { panic!("{seen:?}") };
        assert_eq!(expires_in, Duration::from_millis(kept));
    }
}
