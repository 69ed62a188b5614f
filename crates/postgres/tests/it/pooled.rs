//! What is different through a pooler, where no session can be set up.

use std::sync::Arc;

use semel_core::{Effect, Fenced, Finish, Reason, Resolution, Resolved, Store};
use semel_postgres::Options;
use semel_testkit::{fixture::Fixture as _, servers};
use tokio::time::Instant;

use crate::{
    bench::{PATIENCE, claim, granted, soon},
    common::{Pg, Way, connect, pooler},
};

/// A store of its own role through the pooler, which the fixture's own is not.
fn as_role(bench: &Pg) -> Options {
    let (role, schema) = (&bench.role, &bench.schema);
    let url = format!(
        "postgres://{role}@127.0.0.1:{}/postgres?schema={schema}&prefix=kit_",
        pooler().port()
    );
    Options::parse(&url).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_whose_commits_do_not_wait_is_refused() {
    for commit in ["off", "local"] {
        let bench = Pg::without_store(Way::Owner).await;
        let set = format!("ALTER ROLE {} SET synchronous_commit = {commit}", bench.role);
        bench.admin.batch_execute(&set).await.unwrap();
        let error = soon(as_role(&bench).connect()).await.unwrap_err().to_string();
        let advice = format!("ALTER ROLE \"{}\" SET synchronous_commit = on", bench.role);
        assert!(error.contains(&advice), "{commit}: {error}");
        soon(bench.options.connect()).await.unwrap();
    }
}

/// The role's own settings would wait for ever.
#[tokio::test(flavor = "multi_thread")]
async fn an_operators_act_waits_for_no_lock_without_end() {
    let bench = Pg::without_store(Way::Owner).await;
    let (role, schema) = (&bench.role, &bench.schema);
    let set = format!(
        "GRANT CREATE ON SCHEMA {schema} TO {role}; ALTER ROLE {role} SET lock_timeout = 0"
    );
    bench.admin.batch_execute(&set).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(as_role(&bench).connect().await.unwrap());
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
    let error = soon(store.resolve(&claim.id, fence, &Resolution::Released)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error}");
    lock.rollback().await.unwrap();
    let told = soon(store.resolve(&claim.id, fence, &Resolution::Released)).await.unwrap();
    assert_eq!(told, Resolved::Applied);
}

/// The pooler keeps its clients whatever becomes of the database behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_was_replaced_behind_the_pooler_is_noticed() {
    let bench = Pg::new(Way::Pooled).await;
    let (store, schema) = (bench.store(), &bench.schema);
    granted(&store, &claim("before")).await;
    store.epoch().await.unwrap();
    let id = format!("SELECT store::text FROM {schema}.kit_meta");
    let id: String = bench.admin.query_one(&id, &[]).await.unwrap().get(0);
    let swap = format!("UPDATE {schema}.kit_meta SET store = gen_random_uuid()");
    bench.admin.batch_execute(&swap).await.unwrap();
    let error = soon(store.epoch()).await.unwrap_err();
    assert!(error.to_string().contains("another store"), "{error}");
    let error = soon(store.claim(&claim("meanwhile"))).await.unwrap_err();
    assert!(error.to_string().contains("another store"), "{error}");
    let count = format!("SELECT count(*) FROM {schema}.kit_records");
    assert_eq!(bench.admin.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 1);
    let back = format!("UPDATE {schema}.kit_meta SET store = '{id}'");
    bench.admin.batch_execute(&back).await.unwrap();
    let begun = Instant::now();
    while store.claim(&claim("after")).await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "the store does not come back");
    }
    store.epoch().await.unwrap();
}
