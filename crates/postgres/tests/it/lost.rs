//! Connections that are lost, and servers that go away and come back.

use std::{sync::Arc, time::Duration};

use semel_core::{Effect, Fenced, Finish, Store, StoreErrorKind};
use semel_postgres::{Options, PostgresStore};
use semel_testkit::{
    fixture::Fixture as _,
    servers::{self, Postgres},
    wire::Proxy,
};
use tokio::{
    net::TcpListener,
    runtime,
    sync::oneshot,
    time::{Instant, sleep},
};

use crate::{
    bench::{PATIENCE, answer, claim, eventually, granted, soon},
    common::{Pg, Way, connect},
};

/// A store that reaches the shared server through a proxy.
async fn through(proxy: &Proxy) -> (Pg, Arc<dyn Store>) {
    let bench = Pg::without_store(Way::Owner).await;
    let schema = &bench.schema;
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres?schema={schema}", proxy.port());
    let store = Options::parse(&url).unwrap().connect().await.unwrap();
    (bench, Arc::new(store))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_reply_was_lost_is_asked_again() {
    let proxy = Proxy::start(servers::postgres().port());
    let (bench, store) = through(&proxy).await;
    granted(&store, &claim("warm")).await;
    proxy.delay(Duration::from_millis(1500));
    let claim = claim("lost");
    let asking = tokio::spawn({
        let (store, claim) = (Arc::clone(&store), claim.clone());
        async move { store.claim(&claim).await }
    });
    let there = format!("SELECT fence FROM {}.semel_records WHERE key = 'lost'", bench.schema);
    eventually(&bench.admin, &there).await;
    proxy.cut();
    let error = soon(asking).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Unavailable, Effect::Unknown));
    proxy.delay(Duration::ZERO);
    let fence: i64 = bench.admin.query_one(&there, &[]).await.unwrap().get(0);
    let grant = soon(granted(&store, &claim)).await;
    assert_eq!((i64::try_from(grant.fence.get()).unwrap(), grant.attempt), (fence, 1));
}

/// A person waits for what it finds.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_a_server_that_falls_silent_comes_to_an_end() {
    let bench = Pg::without_store(Way::Owner).await;
    let proxy = Proxy::start(servers::postgres().port());
    let url = format!(
        "postgres://postgres@127.0.0.1:{}/postgres?connect_timeout=1&application_name=a_look",
        proxy.port()
    );
    let options = Options::parse(&url).unwrap();
    proxy.delay(Duration::from_millis(100));
    let looking = tokio::spawn(async move { options.doctor().await });
    let asked = "SELECT 1::bigint FROM pg_stat_activity \
                 WHERE application_name = 'a_look' AND query LIKE '%clock_timestamp%'";
    eventually(&bench.admin, asked).await;
    proxy.silence(true);
    let error = soon(looking).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("says nothing within 2s"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_a_server_that_falls_silent_comes_to_an_end() {
    let proxy = Proxy::start(servers::postgres().port());
    let (_bench, store) = through(&proxy).await;
    // The runtime gets a connection of its own soon after its first question.
    for number in 0..20 {
        granted(&store, &claim(&format!("first-{number}"))).await;
        sleep(Duration::from_millis(20)).await;
    }
    proxy.silence(true);
    let error = soon(store.claim(&claim("silent"))).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    assert!(error.to_string().contains("no answer within 15 s"), "{error}");
    proxy.silence(false);
    soon(async { while store.claim(&claim("after")).await.is_err() {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_reply_was_lost_is_recorded_once() {
    let proxy = Proxy::start(servers::postgres().port());
    let (bench, store) = through(&proxy).await;
    let claim = claim("lost");
    let fence = granted(&store, &claim).await.fence;
    proxy.delay(Duration::from_millis(1500));
    let telling = tokio::spawn({
        let (store, claim) = (Arc::clone(&store), claim.clone());
        let done = Finish::complete(answer("done"));
        async move { store.finish(&claim.id, claim.claimant(fence), &done).await }
    });
    let there = format!("SELECT 1 FROM {}.semel_records WHERE state = 'completed'", bench.schema);
    eventually(&bench.admin, &there).await;
    proxy.cut();
    assert_eq!(soon(telling).await.unwrap().unwrap_err().effect(), Effect::Unknown);
    proxy.delay(Duration::ZERO);
    let again =
        soon(store.finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("done"))))
            .await
            .unwrap();
    let other =
        soon(store.finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("other"))))
            .await
            .unwrap();
    assert_eq!((again, other), (Fenced::Applied, Fenced::Lost));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_killed_mid_statement_leaves_the_effect_unknown() {
    let bench = Pg::new(Way::Owner).await;
    let store = bench.store();
    let claim = claim("killed");
    let fence = granted(&store, &claim).await.fence;
    let mut other = connect(&servers::postgres().url("postgres")).await;
    let lock = other.transaction().await.unwrap();
    let rows = format!("SELECT 1 FROM {}.kit_records FOR UPDATE", bench.schema);
    lock.query(&rows, &[]).await.unwrap();
    let telling = tokio::spawn({
        let (store, claim) = (Arc::clone(&store), claim.clone());
        let done = Finish::complete(answer("done"));
        async move { store.finish(&claim.id, claim.claimant(fence), &done).await }
    });
    let stuck = format!(
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'",
        bench.schema
    );
    eventually(&bench.admin, &stuck).await;
    let kill = stuck.replace("SELECT pid", "SELECT pg_terminate_backend(pid)");
    bench.admin.query(&kill, &[]).await.unwrap();
    assert_eq!(soon(telling).await.unwrap().unwrap_err().effect(), Effect::Unknown);
    lock.rollback().await.unwrap();
    let again =
        soon(store.finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("done"))))
            .await
            .unwrap();
    assert_eq!(again, Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_that_was_ended_is_made_again() {
    let bench = Pg::new(Way::Owner).await;
    let store = bench.store();
    granted(&store, &claim("before")).await;
    let role = &bench.role;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
    assert!(!bench.admin.query(kill, &[role]).await.unwrap().is_empty());
    // One that is just being opened comes after that, and is ended too.
    while !bench.admin.query(kill, &[role]).await.unwrap().is_empty() {
        sleep(Duration::from_millis(200)).await;
    }
    // Whether the end was noticed before the next question is a race; nothing happened either way.
    let claim = claim("after");
    if store.claim(&claim).await.is_err() {
        granted(&store, &claim).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_server_is_away_nobody_waits_for_long_and_then_all_goes_on() {
    let mut server = Postgres::start(&[]);
    let store = Options::parse(&server.url("postgres")).unwrap().connect().await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let claim = claim("key");
    let fence = granted(&store, &claim).await.fence;
    server.kill();
    let error = soon(store.get(&claim.id)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let error = soon(store.claim(&super::bench::claim("other"))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    server.start_again();
    let begun = Instant::now();
    while store
        .finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("done")))
        .await
        .is_err()
    {
        assert!(begun.elapsed() < PATIENCE, "the store does not come back");
        sleep(Duration::from_millis(20)).await;
    }
    let told = store
        .finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("done")))
        .await
        .unwrap();
    assert_eq!(told, Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_in_the_place_of_ours_is_not_taken_for_it() {
    let bench = Pg::new(Way::Owner).await;
    let store = bench.store();
    granted(&store, &claim("ours")).await;
    let swap = format!("UPDATE {}.kit_meta SET store = gen_random_uuid()", bench.schema);
    bench.admin.batch_execute(&swap).await.unwrap();
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
    bench.admin.query(kill, &[&bench.role]).await.unwrap();
    let begun = Instant::now();
    loop {
        // The first may have been on its way when the connection ended.
        match soon(store.claim(&claim("ours"))).await {
            Err(error) if error.to_string().contains("another store") => break,
            Err(_) => assert!(begun.elapsed() < PATIENCE),
            Ok(told) => panic!("{told:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_dropped_leaves_no_connection_behind() {
    let bench = Pg::new(Way::Owner).await;
    granted(&bench.store(), &claim("key")).await;
    bench.store().epoch().await.unwrap();
    let count = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1";
    let open: i64 = bench.admin.query_one(count, &[&bench.role]).await.unwrap().get(0);
    assert!(open > 1, "one that writes, one that does not hurry, perhaps more: {open}");
    bench.close();
    eventually(&bench.admin, &none(&bench.role)).await;
}

/// A runtime that asks alone gets a connection, which ends with it; the store does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_ends_does_not_take_the_store_along() {
    let bench = Pg::new(Way::Owner).await;
    let store = bench.store();
    let more_than = |connections: u32| {
        let role = &bench.role;
        format!("SELECT 1 FROM pg_stat_activity WHERE usename = '{role}' OFFSET {connections}")
    };
    let ask = async |store: &Arc<dyn Store>, name: &str, more: String| {
        for number in 0.. {
            granted(store, &claim(&format!("{name}-{number}"))).await;
            if !bench.admin.query(&more, &[]).await.unwrap().is_empty() {
                return;
            }
        }
    };
    soon(ask(&store, "here", more_than(1))).await;
    let (elsewhere, (enough, may_end)) = (Arc::clone(&store), oneshot::channel::<()>());
    let thread = std::thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut may_end = may_end;
            for number in 0.. {
                granted(&elsewhere, &claim(&format!("there-{number}"))).await;
                if may_end.try_recv().is_ok() {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        });
    });
    eventually(&bench.admin, &more_than(2)).await;
    enough.send(()).unwrap();
    thread.join().unwrap();
    granted(&store, &claim("after")).await;
}

/// A query that has a row once this role has no connection left.
fn none(role: &str) -> String {
    let connections = format!("SELECT 1 FROM pg_stat_activity WHERE usename = '{role}'");
    format!("SELECT 1 WHERE NOT EXISTS ({connections})")
}

/// A server that was stopped still has a kernel that accepts.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_accepts_and_says_nothing_does_not_hide_the_next_one() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let bench = Pg::without_store(Way::Owner).await;
    let (port, role, schema) = (servers::postgres().port(), &bench.role, &bench.schema);
    let url = |hosts: String| {
        format!("postgres://{role}@{hosts}/postgres?schema={schema}&connect_timeout=1")
    };
    let first = silent.local_addr().unwrap();
    let store = soon(PostgresStore::connect(&url(format!("{first},127.0.0.1:{port}")))).await;
    let store: Arc<dyn Store> = Arc::new(store.unwrap());
    soon(granted(&store, &claim("key"))).await;
    let error = soon(PostgresStore::connect(&url(first.to_string()))).await.unwrap_err();
    assert!(error.to_string().contains("says nothing"), "{error}");
}

/// Makes every claim fail that is asked where `asked` holds, as by a connection that is of no use.
fn refusing(schema: &str, asked: &str) -> String {
    failing(schema, asked, "feature_not_supported")
}

/// Makes every claim fail with this SQLSTATE where `asked` holds.
fn failing(schema: &str, asked: &str, state: &str) -> String {
    format!(
        "CREATE SEQUENCE {schema}.tries;
         CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
         BEGIN
             IF {asked} THEN
                 PERFORM nextval('{schema}.tries');
                 RAISE EXCEPTION 'of no use' USING ERRCODE = '{state}';
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON {schema}.kit_records
         FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()"
    )
}

/// PostgreSQL does not say so; databases that speak its protocol do.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_the_server_does_not_know_leaves_the_effect_unknown() {
    for way in [Way::Owner, Way::Pooled] {
        let bench = Pg::new(way).await;
        let (store, schema) = (bench.store(), &bench.schema);
        bench.admin.batch_execute(&failing(schema, "true", "40003")).await.unwrap();
        let claim = claim("unknown");
        let error = soon(store.claim(&claim)).await.unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown, "{way:?}: {error}");
        let end = format!("DROP TRIGGER refuse ON {schema}.kit_records");
        bench.admin.batch_execute(&end).await.unwrap();
        assert_eq!(soon(granted(&store, &claim)).await.attempt, 1);
    }
}

/// As a pooler does that loses prepared statements: every connection can be made, and none is of
/// use.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_of_no_use_are_not_made_without_a_pause() {
    let bench = Pg::new(Way::Owner).await;
    let (store, schema) = (bench.store(), &bench.schema);
    granted(&store, &claim("before")).await;
    let refuse = refusing(schema, "true");
    bench.admin.batch_execute(&refuse).await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        let error = soon(store.claim(&claim("meanwhile"))).await.unwrap_err();
        assert!(error.to_string().contains("of no use, SQLSTATE 0A000"), "{error}");
        assert_eq!(error.effect(), Effect::None);
    }
    let tries = format!("SELECT last_value FROM {schema}.tries WHERE is_called");
    let tries: i64 = bench.admin.query_one(&tries, &[]).await.unwrap().get(0);
    assert!(tries < 60, "{tries} connections in two seconds");
    let back = format!("DROP TRIGGER refuse ON {schema}.kit_records");
    bench.admin.batch_execute(&back).await.unwrap();
    while let Err(error) = store.claim(&claim("after")).await {
        assert!(begun.elapsed() < PATIENCE, "the store does not come back: {error}");
    }
}

/// As after a change of the schema, or of the server's role, that spares connections.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_were_left_behind_are_all_made_again_for_one_question() {
    let bench = Pg::new(Way::Owner).await;
    let (store, schema) = (bench.store(), &bench.schema);
    let pids = format!(
        "SELECT array_agg(pid)::text FROM pg_stat_activity WHERE usename = '{}'",
        bench.role
    );
    let (begun, mut left_behind) = (Instant::now(), String::new());
    while left_behind.matches(',').count() < 3 {
        assert!(begun.elapsed() < PATIENCE, "too few connections: {left_behind}");
        let claims = (0..400).map(|number| {
            let key = format!("{}-{number}", begun.elapsed().as_nanos());
            let (store, claim) = (Arc::clone(&store), claim(&key));
            tokio::spawn(async move { granted(&store, &claim).await })
        });
        for claim in claims.collect::<Vec<_>>() {
            claim.await.unwrap();
        }
        left_behind = bench.admin.query_one(&pids, &[]).await.unwrap().get(0);
    }
    let refuse = refusing(schema, &format!("pg_backend_pid() = ANY ('{left_behind}'::int[])"));
    bench.admin.batch_execute(&refuse).await.unwrap();
    soon(granted(&store, &claim("after"))).await;
}
