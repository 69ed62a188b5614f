//! What is different through a pooler, where no session can be set up.

use std::sync::Arc;

use semel_core::{Effect, Fenced, Resolution, Resolved, Store};
use semel_postgres::Options;
use semel_testkit::servers;

use crate::{
    bench::{claim, granted, soon},
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
    assert_eq!(store.hold(&claim.id, fence).await.unwrap(), Fenced::Applied);
    let mut other = connect(&servers::postgres().url("postgres")).await;
    let lock = other.transaction().await.unwrap();
    lock.query(&format!("SELECT 1 FROM {schema}.kit_records FOR UPDATE"), &[]).await.unwrap();
    let error = soon(store.resolve(&claim.id, fence, &Resolution::Released)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error}");
    lock.rollback().await.unwrap();
    let told = soon(store.resolve(&claim.id, fence, &Resolution::Released)).await.unwrap();
    assert_eq!(told, Resolved::Applied);
}
