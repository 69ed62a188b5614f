//! A standby that no commit waited for is promoted, and the former primary comes back.

use std::{sync::Arc, time::Duration};

use semel_core::{Claim, Claimed, Fenced, Finish, Grant, Store};
use semel_postgres::{Options, PostgresStore, doctor::FindingLevel};
use semel_testkit::{
    servers::{self, PgBouncer, Postgres, ReplicatedPair},
    wire::Proxy,
};
use tokio::time::{Instant, sleep};

use crate::{
    fixture::{Access, Pg, connect},
    harness::{TEST_TIMEOUT, answer, claim, granted, in_time, rival},
};

async fn store_of(pair: &ReplicatedPair) -> PostgresStore {
    PostgresStore::connect(&pair.url()).await.unwrap()
}

/// Repeats a claim until the store has found a usable server.
async fn granted_soon(store: &PostgresStore, claim: &Claim) -> Grant {
    let begun = Instant::now();
    loop {
        match store.claim(claim).await {
            Ok(Claimed::Granted(grant)) => return grant,
            Ok(Claimed::Occupied(occupied)) => panic!("not granted: {occupied:?}"),
            Err(error) => assert!(begun.elapsed() < TEST_TIMEOUT, "{error}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_failover_repeats_no_fence_and_a_former_primary_is_refused() {
    let mut pair = ReplicatedPair::start();
    let (first, second) = (store_of(&pair).await, store_of(&pair).await);
    let known = claim("known");
    granted_soon(&first, &known).await;
    pair.replicate();

    // From here on the standby receives nothing. Later claims are acknowledged, and lost.
    pair.wire.silence(true);
    let lost = claim("lost");
    let zombie = granted_soon(&first, &lost).await.fence;
    let mut highest = zombie;
    for number in 0..100 {
        let claim = claim(&format!("lost-{number}"));
        highest = highest.max(granted_soon(&second, &claim).await.fence);
    }
    pair.fail_over();
    assert_eq!(pair.standby.records("lost"), "0", "it reached the standby");

    // The key is free again. The new fence is above all lost ones, and the old owner is refused.
    let owner = rival(&lost);
    let grant = granted_soon(&second, &owner).await;
    assert!(grant.fence > highest, "{:?} after {highest:?}", grant.fence);
    let begun = Instant::now();
    let late = loop {
        match first.finish(&lost.id, lost.claimant(zombie), &Finish::complete(answer("late"))).await
        {
            Ok(late) => break late,
            Err(error) => assert!(begun.elapsed() < TEST_TIMEOUT, "{error}"),
        }
    };
    assert_eq!(late, Fenced::Lost);
    let own = second
        .finish(&lost.id, owner.claimant(grant.fence), &Finish::complete(answer("own")))
        .await
        .unwrap();
    assert_eq!(own, Fenced::Applied);
    let repeat = second.claim(&rival(&known)).await.unwrap();
    assert!(matches!(repeat, Claimed::Occupied(_)), "{repeat:?}");

    // The former primary is back, accepts writes, and is the first in the URL.
    pair.restart_former_primary();
    pair.disconnect();
    let back = claim("back");
    granted_soon(&second, &back).await;
    assert_eq!((pair.standby.records("back"), pair.primary.records("back")), one_and_none());
    assert!(second.former_primaries_refused() > 0);

    // A new process knows no timeline, and surveys both servers.
    let third = store_of(&pair).await;
    granted_soon(&third, &claim("third")).await;
    assert_eq!((pair.standby.records("third"), pair.primary.records("third")), one_and_none());
    let report = Options::parse(&pair.url()).unwrap().doctor().await.unwrap();
    let timeline = report.findings.iter().find(|finding| finding.about == "timeline").unwrap();
    assert_eq!(timeline.level, FindingLevel::Error, "{timeline:?}");
    assert!(timeline.found.starts_with("several servers take writes"), "{timeline:?}");

    // As the only server, it is refused by a store that knows the later timeline.
    pair.standby.stop();
    let begun = Instant::now();
    loop {
        let error = in_time(second.claim(&claim("refused"))).await.unwrap_err().to_string();
        if error.contains("a former primary: it continues timeline 1") {
            break;
        }
        assert!(begun.elapsed() < TEST_TIMEOUT, "{error}");
    }
    assert_eq!(pair.primary.records("refused"), "0");
}

fn one_and_none() -> (String, String) {
    ("1".to_owned(), "0".to_owned())
}

/// The pooler keeps its clients when the server behind it changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_former_primary_behind_a_pooler_is_refused() {
    let pair = ReplicatedPair::start();
    let switch = Proxy::start(pair.primary.port());
    let pooler = PgBouncer::start_through(switch.port(), &[("server_login_retry", "0")]);
    let store = PostgresStore::connect(&pooler.url("postgres")).await.unwrap();
    granted_soon(&store, &claim("before")).await;
    pair.replicate();
    pair.wire.cut();
    pair.standby.promote();
    let lead_to = |server: &Postgres| {
        switch.lead_to(server.port());
        switch.cut();
    };
    let epoch_soon = async || {
        let begun = Instant::now();
        loop {
            match in_time(store.epoch()).await {
                Ok(_) => return,
                Err(error) => assert!(begun.elapsed() < TEST_TIMEOUT, "{error}"),
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    lead_to(&pair.standby);
    epoch_soon().await;
    granted_soon(&store, &claim("after")).await;
    assert_eq!(pair.standby.records("after"), "1");

    lead_to(&pair.primary);
    let begun = Instant::now();
    loop {
        let asked = in_time(store.epoch()).await;
        if asked.as_ref().is_err_and(|error| error.to_string().contains("a former primary")) {
            break;
        }
        assert!(begun.elapsed() < TEST_TIMEOUT, "{asked:?}");
    }
    let error = in_time(store.claim(&claim("refused"))).await.unwrap_err();
    assert!(error.to_string().contains("a former primary"), "{error}");
    assert_eq!(pair.primary.records("refused"), "0");

    lead_to(&pair.standby);
    granted_soon(&store, &claim("again")).await;
    assert_eq!(pair.standby.records("again"), "1");
}

/// As after a dump of the new primary was restored on the old one.
#[tokio::test(flavor = "multi_thread")]
async fn tables_that_were_used_on_a_later_timeline_are_not_used_on_an_earlier_one() {
    let db = Pg::new(Access::Owner).await;
    let schema = &db.schema;
    let timeline = format!("SELECT cluster, timeline FROM {schema}.kit_meta");
    let recorded = db.admin.query_one(&timeline, &[]).await.unwrap();
    let recorded: (i64, i64) = (recorded.get(0), recorded.get(1));
    assert_eq!(recorded.1, 1);
    let later = format!("UPDATE {schema}.kit_meta SET timeline = 2");
    db.admin.batch_execute(&later).await.unwrap();
    let error = in_time(db.options.connect()).await.unwrap_err().to_string();
    assert!(error.contains("it continues timeline 1 of the database, and timeline 2"), "{error}");

    // Timelines of another cluster do not count.
    let other = format!("UPDATE {schema}.kit_meta SET cluster = cluster - 1");
    db.admin.batch_execute(&other).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(in_time(db.options.connect()).await.unwrap());
    granted(&store, &claim("key")).await;
    let now = db.admin.query_one(&timeline, &[]).await.unwrap();
    assert_eq!((now.get(0), now.get(1)), recorded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_read_the_timeline_works_with_a_warning() {
    let server = servers::postgres();
    let url = server.url(&server.fresh_database());
    let admin = connect(&url).await;
    let revoke = "REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC; \
                  CREATE ROLE blind LOGIN; GRANT CREATE ON SCHEMA public TO blind";
    admin.batch_execute(revoke).await.unwrap();
    let options = Options::parse(&url.replace("postgres@", "blind@")).unwrap();
    let store: Arc<dyn Store> = Arc::new(options.connect().await.unwrap());
    granted(&store, &claim("key")).await;
    let check = async || {
        let report = options.doctor().await.unwrap();
        report.findings.into_iter().find(|finding| finding.about == "timeline").unwrap()
    };
    let timeline = check().await;
    assert_eq!(timeline.level, FindingLevel::Warning, "{timeline:?}");
    for command in timeline.change {
        admin.batch_execute(&command).await.unwrap();
    }
    assert_eq!(check().await.level, FindingLevel::Fine);
}
