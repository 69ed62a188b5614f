//! Behaviour behind a shared_pgbouncer, where session settings do not last.

use std::sync::Arc;

use semel_core::{Effect, Fenced, Finish, Reason, Resolution, Resolved, Store};
use semel_postgres::Options;
use semel_testkit::{fixture::Fixture as _, servers};
use tokio::time::Instant;

use crate::{
    fixture::{Access, Pg, connect, shared_pgbouncer},
    harness::{TEST_TIMEOUT, claim, granted, in_time},
};

/// Options with the role of the fixture, through the shared_pgbouncer.
fn as_role(db: &Pg) -> Options {
    let (role, schema) = (&db.role, &db.schema);
    let url = format!(
        "postgres://{role}@127.0.0.1:{}/postgres?schema={schema}&prefix=kit_",
        shared_pgbouncer().port()
    );
    Options::parse(&url).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_durable_commits_is_refused() {
    for commit in ["off", "local"] {
        let db = Pg::without_store(Access::Owner).await;
        let set = format!("ALTER ROLE {} SET synchronous_commit = {commit}", db.role);
        db.admin.batch_execute(&set).await.unwrap();
        let error = in_time(as_role(&db).connect()).await.unwrap_err().to_string();
        let advice = format!("ALTER ROLE \"{}\" SET synchronous_commit = on", db.role);
        assert!(error.contains(&advice), "{commit}: {error}");
        in_time(db.options.connect()).await.unwrap();
    }
}

/// The settings of the role have no lock timeout.
#[tokio::test(flavor = "multi_thread")]
async fn an_operators_action_has_a_lock_timeout() {
    let db = Pg::without_store(Access::Owner).await;
    let (role, schema) = (&db.role, &db.schema);
    let set = format!(
        "GRANT CREATE ON SCHEMA {schema} TO {role}; ALTER ROLE {role} SET lock_timeout = 0"
    );
    db.admin.batch_execute(&set).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(as_role(&db).connect().await.unwrap());
    let claim = claim("held");
    let fence = granted(&store, &claim).await.fence;
    assert_eq!(
        store
            .finish(&claim.id, claim.claimant(fence), &Finish::hold(Reason::OperationError))
            .await
            .unwrap(),
        Fenced::Applied
    );
    let mut other = connect(&servers::postgres().url("postgres")).await;
    let lock = other.transaction().await.unwrap();
    lock.query(&format!("SELECT 1 FROM {schema}.kit_records FOR UPDATE"), &[]).await.unwrap();
    let error = in_time(store.resolve(&claim.id, fence, &Resolution::Released)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error}");
    lock.rollback().await.unwrap();
    let reply = in_time(store.resolve(&claim.id, fence, &Resolution::Released)).await.unwrap();
    assert_eq!(reply, Resolved::Applied);
}

/// The shared_pgbouncer keeps its clients when the database behind it is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_replaced_behind_the_pooler_is_detected() {
    let db = Pg::new(Access::Pooled).await;
    let (store, schema) = (db.store(), &db.schema);
    granted(&store, &claim("before")).await;
    store.epoch().await.unwrap();
    let id = format!("SELECT store::text FROM {schema}.kit_meta");
    let id: String = db.admin.query_one(&id, &[]).await.unwrap().get(0);
    let swap = format!("UPDATE {schema}.kit_meta SET store = gen_random_uuid()");
    db.admin.batch_execute(&swap).await.unwrap();
    let error = in_time(store.epoch()).await.unwrap_err();
    assert!(error.to_string().contains("another store"), "{error}");
    let error = in_time(store.claim(&claim("meanwhile"))).await.unwrap_err();
    assert!(error.to_string().contains("another store"), "{error}");
    let count = format!("SELECT count(*) FROM {schema}.kit_records");
    assert_eq!(db.admin.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 1);
    let back = format!("UPDATE {schema}.kit_meta SET store = '{id}'");
    db.admin.batch_execute(&back).await.unwrap();
    let begun = Instant::now();
    while store.claim(&claim("after")).await.is_err() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "the store does not recover");
    }
    store.epoch().await.unwrap();
}
