//! Where records that are in flight are found: by when they were claimed, and later set aside.

use std::time::Duration;

use semel_core::{
    Claim, Claimed, Fenced, Finish, ListQuery, OnUnknown, Standing, StateName, Store,
};
use semel_testkit::{fixture::Fixture as _, servers};

use crate::{
    bench::{answer, claim, granted, soon},
    common::{Pg, Rows, Way, connect},
};
use semel_testkit::with;

const WAYS: [Way; 2] = [Way::Owner, Way::Pooled];

/// Longer than a record is in flight before it is set aside.
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

/// Which records stand at a time that is none.
async fn standing(bench: &Pg, at: &str) -> Vec<String> {
    let query = format!(
        "SELECT key FROM {}.kit_records WHERE expires_at = '{at}' ORDER BY key",
        bench.schema
    );
    let rows = bench.admin.query(&query, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// So many records that have ended, claimed a millisecond apart.
async fn fill(bench: &Pg, retention: u32, count: u32) {
    let key = format!("'{retention}-' || n");
    let expires_at = format!("now + (n + {retention}) * interval '1 ms'");
    let claimed_at = "now + n * interval '1 ms'";
    let rows =
        Rows { key: &key, retention, claimed_at, expires_at: &expires_at, ..Rows::default() };
    bench.fill(count, &rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_for_long_is_listed_and_reaped_wherever_it_stands() {
    for way in WAYS {
        let bench = Pg::new(way).await;
        let store = bench.store();
        let mut old = Vec::new();
        for (key, on_unknown, retention) in [
            ("old-fail", OnUnknown::Fail, 3600),
            ("old-hold", OnUnknown::Hold, 7200),
            ("old-rerun", OnUnknown::Rerun, 40),
        ] {
            let claim = lasting(key, on_unknown, retention);
            old.push((granted(&store, &claim).await.fence, claim));
        }
        bench.advance(LONG).await;
        assert_eq!(store.reap(100).await.unwrap().done, 0, "no lease has lapsed");
        assert_eq!(standing(&bench, "epoch").await, ["old-fail", "old-hold"]);
        assert_eq!(standing(&bench, "-infinity").await, ["old-rerun"]);
        for (key, retention) in [("new-hold", 40), ("new-other", 3600)] {
            granted(&store, &lasting(key, OnUnknown::Hold, retention)).await;
        }
        let all = ["new-hold", "new-other", "old-fail", "old-hold", "old-rerun"];
        assert_eq!(open(&*store, StateName::InFlight).await, all);
        // One ends as usual, and its retention begins anew if little of it was left.
        let (fence, rerun) = &old[2];
        let told = store
            .finish(&rerun.id, rerun.claimant(*fence), &Finish::complete(answer("done")))
            .await
            .unwrap();
        assert_eq!(told, Fenced::Applied);
        let seen = store.get(&rerun.id).await.unwrap().unwrap();
        let Standing::Completed { expires_in, .. } = seen.standing else { panic!("{seen:?}") };
        assert_eq!(expires_in, rerun.retention, "{way:?}");
        // The leases of the old ones lapse.
        bench.advance(Duration::from_secs(600 - 60 + 1)).await;
        assert_eq!(store.reap(1).await.unwrap().done, 1);
        assert_eq!(store.reap(100).await.unwrap().done, 1);
        assert_eq!(open(&*store, StateName::Held).await, ["old-hold"]);
        assert_eq!(open(&*store, StateName::InFlight).await, ["new-hold", "new-other"]);
        assert_eq!(standing(&bench, "-infinity").await, ["old-hold"]);
        bench.advance(LONG).await;
        assert_eq!(store.reap(100).await.unwrap().done, 2);
        let held = ["new-hold", "new-other", "old-hold"];
        assert_eq!(open(&*store, StateName::Held).await, held);
        bench.advance(Duration::from_secs(7200)).await;
        assert_eq!(store.sweep(100).await.unwrap().done, 2, "what has ended");
        assert_eq!(open(&*store, StateName::Held).await, held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_passed_that_somebody_has_locked() {
    let bench = Pg::new(Way::Owner).await;
    let store = bench.store();
    let (free, locked) = (claim("free"), claim("locked"));
    granted(&store, &locked).await;
    granted(&store, &free).await;
    bench.advance(LONG).await;
    let other = connect(&servers::postgres().url("postgres")).await;
    let lock =
        format!("BEGIN; SELECT FROM {}.kit_records WHERE key = 'locked' FOR UPDATE", bench.schema);
    other.batch_execute(&lock).await.unwrap();
    soon(store.reap(10)).await.unwrap();
    assert_eq!(standing(&bench, "epoch").await, ["free"]);
    bench.advance(LONG).await;
    granted(&store, &claim("another")).await;
    soon(store.reap(10)).await.unwrap();
    other.batch_execute("ROLLBACK").await.unwrap();
    store.reap(10).await.unwrap();
    assert_eq!(standing(&bench, "epoch").await, ["free", "locked"]);
}

/// Somebody keeps a lock for ever, and much is claimed.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_kept_for_long_holds_up_nothing() {
    let bench = Pg::new(Way::Owner).await;
    let store = bench.store();
    let schema = &bench.schema;
    granted(&store, &claim("locked")).await;
    fill(&bench, 3_600_000, 12_000).await;
    bench.advance(Duration::from_secs(13)).await;
    granted(&store, &claim("free")).await;
    bench.advance(LONG).await;
    let other = connect(&servers::postgres().url("postgres")).await;
    let lock = format!("BEGIN; SELECT FROM {schema}.kit_records WHERE key = 'locked' FOR UPDATE");
    other.batch_execute(&lock).await.unwrap();
    soon(store.reap(10)).await.unwrap();
    assert!(!soon(store.reap(10)).await.unwrap().more, "it would be asked again and again");
    bench.advance(Duration::from_secs(600)).await;
    while soon(store.reap(10)).await.unwrap().more {}
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(open(&*store, StateName::Held).await, ["free"]);
}

/// A commit that waits for a standby is seen by nobody until then.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_seen_late_is_found_when_it_is_asked_for_and_when_it_expires() {
    let bench = Pg::new(Way::Owner).await;
    let store = bench.store();
    let (asked, silent) = (claim("asked"), claim("silent"));
    for claim in [&asked, &silent] {
        granted(&store, claim).await;
    }
    bench.advance(LONG).await;
    let hide = format!(
        "CREATE TABLE {schema}.hidden AS SELECT * FROM {schema}.kit_records; \
         DELETE FROM {schema}.kit_records",
        schema = bench.schema
    );
    bench.admin.batch_execute(&hide).await.unwrap();
    granted(&store, &lasting("seen", OnUnknown::Rerun, 3600)).await;
    bench.advance(LONG).await;
    store.reap(10).await.unwrap();
    let show = format!(
        "INSERT INTO {schema}.kit_records SELECT * FROM {schema}.hidden",
        schema = bench.schema
    );
    bench.admin.batch_execute(&show).await.unwrap();
    store.reap(10).await.unwrap();
    assert_eq!(standing(&bench, "epoch").await, [] as [String; 0]);
    // Whoever lost the answer to its claim asks again.
    assert!(matches!(store.claim(&asked).await.unwrap(), Claimed::Granted(_)));
    assert_eq!(standing(&bench, "epoch").await, ["asked"]);
    bench.advance(Duration::from_secs(3600)).await;
    store.sweep(10).await.unwrap();
    assert_eq!(standing(&bench, "epoch").await, ["asked", "silent"]);
    assert_eq!(store.reap(10).await.unwrap().done, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reaper_takes_what_another_does_not_have() {
    let bench = Pg::new(Way::Owner).await;
    let store = bench.store();
    for key in ["first", "second"] {
        granted(&store, &claim(key)).await;
    }
    bench.advance(Duration::from_secs(601)).await;
    let other = connect(&servers::postgres().url("postgres")).await;
    let schema = &bench.schema;
    for locked in ["first", "second"] {
        let lock =
            format!("BEGIN; SELECT FROM {schema}.kit_records WHERE key = '{locked}' FOR UPDATE");
        other.batch_execute(&lock).await.unwrap();
        assert_eq!(soon(store.reap(1)).await.unwrap().done, 1, "while `{locked}` is locked");
        other.batch_execute("ROLLBACK").await.unwrap();
    }
}

/// After a failover the clock may be behind.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_claimed_after_the_clock_was_set_back_is_found() {
    let bench = Pg::new(Way::Owner).await;
    let store = bench.store();
    granted(&store, &lasting("before", OnUnknown::Rerun, 3600)).await;
    bench.advance(LONG).await;
    store.reap(10).await.unwrap();
    let back = format!("UPDATE {}.clock SET now = now - interval '1 hour'", bench.schema);
    bench.admin.batch_execute(&back).await.unwrap();
    granted(&store, &claim("after")).await;
    assert_eq!(open(&*store, StateName::InFlight).await, ["after", "before"]);
    store.reap(10).await.unwrap();
    bench.advance(LONG).await;
    assert_eq!(open(&*store, StateName::InFlight).await, ["after", "before"]);
    store.reap(10).await.unwrap();
    assert_eq!(standing(&bench, "epoch").await, ["after"]);
}

/// Nobody has reaped for long, and much was claimed: it is gone through in steps.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_gone_through_in_steps() {
    let bench = Pg::new(Way::Owner).await;
    let store = bench.store();
    for retention in [3_600_000, 60_000] {
        fill(&bench, retention, 25_000).await;
    }
    bench.advance(Duration::from_secs(26)).await;
    let last = with(claim("last"), |it| it.lease = Duration::from_secs(1));
    granted(&store, &last).await;
    bench.advance(LONG).await;
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
async fn several_reap_at_once_while_records_come_and_go() {
    let bench = Pg::new(Way::Owner).await;
    let mut reaping = Vec::new();
    for _ in 0..3 {
        let store = bench.another().await;
        reaping.push(tokio::spawn(async move {
            for _ in 0..40 {
                store.reap(100).await.unwrap();
            }
        }));
    }
    let store = bench.store();
    for number in 0..120 {
        let quick = claim(&format!("quick-{number}"));
        let fence = granted(&store, &quick).await.fence;
        granted(&store, &claim(&format!("slow-{number}"))).await;
        bench.advance(Duration::from_secs(15)).await;
        let told = store
            .finish(&quick.id, quick.claimant(fence), &Finish::complete(answer("done")))
            .await
            .unwrap();
        assert_eq!(told, Fenced::Applied);
    }
    for reaping in reaping {
        soon(reaping).await.unwrap();
    }
    bench.advance(Duration::from_secs(601)).await;
    while store.reap(100).await.unwrap().more {}
    assert_eq!(open(&*store, StateName::Held).await.len(), 120);
    assert_eq!(open(&*store, StateName::InFlight).await.len(), 0);
}

/// Upkeep goes through the records of each length by themselves.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_retention_is_rounded_up_to_one_that_others_have() {
    let bench = Pg::new(Way::Owner).await;
    let store = bench.store();
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
        let Standing::Completed { expires_in, .. } = seen.standing else { panic!("{seen:?}") };
        assert_eq!(expires_in, Duration::from_millis(kept));
    }
}
