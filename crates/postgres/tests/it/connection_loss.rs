//! Lost connections, and servers that stop and start again.

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
    fixture::{Access, Pg, connect},
    harness::{TEST_TIMEOUT, answer, claim, eventually, granted, in_time},
};

/// A store that connects to the shared server through a proxy.
async fn through(proxy: &Proxy) -> (Pg, Arc<dyn Store>) {
    let db = Pg::without_store(Access::Owner).await;
    let schema = &db.schema;
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres?schema={schema}", proxy.port());
    let store = Options::parse(&url).unwrap().connect().await.unwrap();
    (db, Arc::new(store))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_reply_was_lost_can_be_repeated() {
    let proxy = Proxy::start(servers::postgres().port());
    let (db, store) = through(&proxy).await;
    granted(&store, &claim("warm")).await;
    proxy.delay(Duration::from_millis(1500));
    let claim = claim("lost");
    let claiming = tokio::spawn({
        let (store, claim) = (Arc::clone(&store), claim.clone());
        async move { store.claim(&claim).await }
    });
    let there = format!("SELECT fence FROM {}.semel_records WHERE key = 'lost'", db.schema);
    eventually(&db.admin, &there).await;
    proxy.cut();
    let error = in_time(claiming).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Unavailable, Effect::Unknown));
    proxy.delay(Duration::ZERO);
    let fence: i64 = db.admin.query_one(&there, &[]).await.unwrap().get(0);
    let grant = in_time(granted(&store, &claim)).await;
    assert_eq!((i64::try_from(grant.fence.get()).unwrap(), grant.attempt), (fence, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_times_out_on_an_unresponsive_server() {
    let db = Pg::without_store(Access::Owner).await;
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
    eventually(&db.admin, asked).await;
    proxy.silence(true);
    let error = in_time(looking).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("no reply from the server within 2s"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_times_out_on_an_unresponsive_server() {
    let proxy = Proxy::start(servers::postgres().port());
    let (_bench, store) = through(&proxy).await;
    // The runtime gets a direct connection soon after its first command.
    for number in 0..20 {
        granted(&store, &claim(&format!("first-{number}"))).await;
        sleep(Duration::from_millis(20)).await;
    }
    proxy.silence(true);
    let error = in_time(store.claim(&claim("silent"))).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    assert!(error.to_string().contains("no answer within 15 s"), "{error}");
    proxy.silence(false);
    in_time(async { while store.claim(&claim("after")).await.is_err() {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_whose_reply_was_lost_is_recorded_once() {
    let proxy = Proxy::start(servers::postgres().port());
    let (db, store) = through(&proxy).await;
    let claim = claim("lost");
    let fence = granted(&store, &claim).await.fence;
    proxy.delay(Duration::from_millis(1500));
    let finishing = tokio::spawn({
        let (store, claim) = (Arc::clone(&store), claim.clone());
        let done = Finish::complete(answer("done"));
        async move { store.finish(&claim.id, claim.claimant(fence), &done).await }
    });
    let there = format!("SELECT 1 FROM {}.semel_records WHERE state = 'completed'", db.schema);
    eventually(&db.admin, &there).await;
    proxy.cut();
    assert_eq!(in_time(finishing).await.unwrap().unwrap_err().effect(), Effect::Unknown);
    proxy.delay(Duration::ZERO);
    let again =
        in_time(store.finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("done"))))
            .await
            .unwrap();
    let other =
        in_time(store.finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("other"))))
            .await
            .unwrap();
    assert_eq!((again, other), (Fenced::Applied, Fenced::Lost));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_killed_during_a_statement_leaves_the_effect_unknown() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    let claim = claim("killed");
    let fence = granted(&store, &claim).await.fence;
    let mut other = connect(&servers::postgres().url("postgres")).await;
    let lock = other.transaction().await.unwrap();
    let rows = format!("SELECT 1 FROM {}.kit_records FOR UPDATE", db.schema);
    lock.query(&rows, &[]).await.unwrap();
    let finishing = tokio::spawn({
        let (store, claim) = (Arc::clone(&store), claim.clone());
        let done = Finish::complete(answer("done"));
        async move { store.finish(&claim.id, claim.claimant(fence), &done).await }
    });
    let stuck = format!(
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'",
        db.schema
    );
    eventually(&db.admin, &stuck).await;
    let kill = stuck.replace("SELECT pid", "SELECT pg_terminate_backend(pid)");
    db.admin.query(&kill, &[]).await.unwrap();
    assert_eq!(in_time(finishing).await.unwrap().unwrap_err().effect(), Effect::Unknown);
    lock.rollback().await.unwrap();
    let again =
        in_time(store.finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("done"))))
            .await
            .unwrap();
    assert_eq!(again, Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_that_was_closed_is_opened_again() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    granted(&store, &claim("before")).await;
    let role = &db.role;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
    assert!(!db.admin.query(kill, &[role]).await.unwrap().is_empty());
    // A connection that is being opened appears later, and is closed too.
    while !db.admin.query(kill, &[role]).await.unwrap().is_empty() {
        sleep(Duration::from_millis(200)).await;
    }
    // The claim fails without an effect if the store has not noticed the loss yet.
    let claim = claim("after");
    if store.claim(&claim).await.is_err() {
        granted(&store, &claim).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_fail_fast_while_the_server_is_down_and_succeed_after_its_restart() {
    let mut server = Postgres::start(&[]);
    let store = Options::parse(&server.url("postgres")).unwrap().connect().await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let claim = claim("key");
    let fence = granted(&store, &claim).await.fence;
    server.kill();
    let error = in_time(store.get(&claim.id)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let error = in_time(store.claim(&super::harness::claim("other"))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    server.start_again();
    let begun = Instant::now();
    while store
        .finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("done")))
        .await
        .is_err()
    {
        assert!(begun.elapsed() < TEST_TIMEOUT, "the store does not recover");
        sleep(Duration::from_millis(20)).await;
    }
    let reply = store
        .finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("done")))
        .await
        .unwrap();
    assert_eq!(reply, Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_store_is_detected_after_a_reconnect() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    granted(&store, &claim("ours")).await;
    let swap = format!("UPDATE {}.kit_meta SET store = gen_random_uuid()", db.schema);
    db.admin.batch_execute(&swap).await.unwrap();
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
    db.admin.query(kill, &[&db.role]).await.unwrap();
    let begun = Instant::now();
    loop {
        // The first command may have been in flight when the connection was closed.
        match in_time(store.claim(&claim("ours"))).await {
            Err(error) if error.to_string().contains("another store") => break,
            Err(_) => assert!(begun.elapsed() < TEST_TIMEOUT),
            Ok(reply) => panic!("{reply:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_store_closes_its_connections() {
    let db = Pg::new(Access::Owner).await;
    granted(&db.store(), &claim("key")).await;
    db.store().epoch().await.unwrap();
    let count = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1";
    let open: i64 = db.admin.query_one(count, &[&db.role]).await.unwrap().get(0);
    assert!(open > 1, "one for batches, one for background tasks, perhaps more: {open}");
    db.close();
    eventually(&db.admin, &none(&db.role)).await;
}

/// The direct connection of a runtime ends with it; the store does not.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_outlives_a_runtime_with_a_direct_connection() {
    let db = Pg::new(Access::Owner).await;
    let store = db.store();
    let more_than = |connections: u32| {
        let role = &db.role;
        format!("SELECT 1 FROM pg_stat_activity WHERE usename = '{role}' OFFSET {connections}")
    };
    let ask = async |store: &Arc<dyn Store>, name: &str, more: String| {
        for number in 0.. {
            granted(store, &claim(&format!("{name}-{number}"))).await;
            if !db.admin.query(&more, &[]).await.unwrap().is_empty() {
                return;
            }
        }
    };
    in_time(ask(&store, "here", more_than(1))).await;
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
    eventually(&db.admin, &more_than(2)).await;
    enough.send(()).unwrap();
    thread.join().unwrap();
    granted(&store, &claim("after")).await;
}

/// A query that has a row once this role has no connection left.
fn none(role: &str) -> String {
    let connections = format!("SELECT 1 FROM pg_stat_activity WHERE usename = '{role}'");
    format!("SELECT 1 WHERE NOT EXISTS ({connections})")
}

/// The kernel of a stopped server still accepts connections.
#[tokio::test(flavor = "multi_thread")]
async fn an_unresponsive_host_does_not_block_the_next_one() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let db = Pg::without_store(Access::Owner).await;
    let (port, role, schema) = (servers::postgres().port(), &db.role, &db.schema);
    let url = |hosts: String| {
        format!("postgres://{role}@{hosts}/postgres?schema={schema}&connect_timeout=1")
    };
    let first = silent.local_addr().unwrap();
    let store = in_time(PostgresStore::connect(&url(format!("{first},127.0.0.1:{port}")))).await;
    let store: Arc<dyn Store> = Arc::new(store.unwrap());
    in_time(granted(&store, &claim("key"))).await;
    let error = in_time(PostgresStore::connect(&url(first.to_string()))).await.unwrap_err();
    assert!(error.to_string().contains("no reply from the server"), "{error}");
}

/// A script that makes claims fail if the condition holds, as on an unusable connection.
fn refusing(schema: &str, condition: &str) -> String {
    failing(schema, condition, "feature_not_supported")
}

/// A script that makes claims fail with this SQLSTATE if the condition holds.
fn failing(schema: &str, condition: &str, state: &str) -> String {
    format!(
        "CREATE SEQUENCE {schema}.tries;
         CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
         BEGIN
             IF {condition} THEN
                 PERFORM nextval('{schema}.tries');
                 RAISE EXCEPTION 'unusable' USING ERRCODE = '{state}';
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON {schema}.kit_records
         FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()"
    )
}

/// PostgreSQL does not send this error; other databases with its protocol do.
#[tokio::test(flavor = "multi_thread")]
async fn statement_completion_unknown_leaves_the_effect_unknown() {
    for access in [Access::Owner, Access::Pooled] {
        let db = Pg::new(access).await;
        let (store, schema) = (db.store(), &db.schema);
        db.admin.batch_execute(&failing(schema, "true", "40003")).await.unwrap();
        let claim = claim("unknown");
        let error = in_time(store.claim(&claim)).await.unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown, "{access:?}: {error}");
        let end = format!("DROP TRIGGER refuse ON {schema}.kit_records");
        db.admin.batch_execute(&end).await.unwrap();
        assert_eq!(in_time(granted(&store, &claim)).await.attempt, 1);
    }
}

/// As behind a pooler that loses prepared statements: every connection opens, and none is usable.
#[tokio::test(flavor = "multi_thread")]
async fn unusable_connections_are_opened_with_a_backoff() {
    let db = Pg::new(Access::Owner).await;
    let (store, schema) = (db.store(), &db.schema);
    granted(&store, &claim("before")).await;
    let refuse = refusing(schema, "true");
    db.admin.batch_execute(&refuse).await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        let error = in_time(store.claim(&claim("meanwhile"))).await.unwrap_err();
        assert!(error.to_string().contains("unusable, SQLSTATE 0A000"), "{error}");
        assert_eq!(error.effect(), Effect::None);
    }
    let tries = format!("SELECT last_value FROM {schema}.tries WHERE is_called");
    let tries: i64 = db.admin.query_one(&tries, &[]).await.unwrap().get(0);
    assert!(tries < 60, "{tries} connections in two seconds");
    let back = format!("DROP TRIGGER refuse ON {schema}.kit_records");
    db.admin.batch_execute(&back).await.unwrap();
    while let Err(error) = store.claim(&claim("after")).await {
        assert!(begun.elapsed() < TEST_TIMEOUT, "the store does not come back: {error}");
    }
}

/// As after a change of the schema, or of the server's role, that leaves connections open.
#[tokio::test(flavor = "multi_thread")]
async fn one_command_outlasts_all_connections_that_became_unusable() {
    let db = Pg::new(Access::Owner).await;
    let (store, schema) = (db.store(), &db.schema);
    let pids =
        format!("SELECT array_agg(pid)::text FROM pg_stat_activity WHERE usename = '{}'", db.role);
    let (begun, mut left_behind) = (Instant::now(), String::new());
    while left_behind.matches(',').count() < 3 {
        assert!(begun.elapsed() < TEST_TIMEOUT, "too few connections: {left_behind}");
        let claims = (0..400).map(|number| {
            let key = format!("{}-{number}", begun.elapsed().as_nanos());
            let (store, claim) = (Arc::clone(&store), claim(&key));
            tokio::spawn(async move { granted(&store, &claim).await })
        });
        for claim in claims.collect::<Vec<_>>() {
            claim.await.unwrap();
        }
        left_behind = db.admin.query_one(&pids, &[]).await.unwrap().get(0);
    }
    let refuse = refusing(schema, &format!("pg_backend_pid() = ANY ('{left_behind}'::int[])"));
    db.admin.batch_execute(&refuse).await.unwrap();
    in_time(granted(&store, &claim("after"))).await;
}
