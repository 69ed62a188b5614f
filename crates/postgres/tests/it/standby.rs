//! Commits that wait for a standby.

use std::sync::Arc;

use semel_core::{Effect, Fenced, Finish, Store};
use semel_postgres::Options;
use semel_testkit::servers::Postgres;

use crate::{
    bench::{answer, claim, eventually, granted, soon},
    common::connect,
};

const WAITING: &str = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'";

/// Without its standby the server commits here, waits, and when told to stop waiting says that it
/// has succeeded. That is not what was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_standby_that_is_cut_short_leaves_the_effect_unknown() {
    let server = Postgres::start(&[]);
    let admin = connect(&server.url("postgres")).await;
    // A default of the database that would not wait at all: the store wants to.
    admin.batch_execute("ALTER DATABASE postgres SET synchronous_commit = local").await.unwrap();
    admin.batch_execute("SET synchronous_commit = local").await.unwrap();
    let store = Options::parse(&server.url("postgres")).unwrap().connect().await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let first = claim("first");
    let fence = granted(&store, &first).await.fence;
    admin.batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await.unwrap();
    admin.query("SELECT pg_reload_conf()", &[]).await.unwrap();
    eventually(&admin, "SELECT 1 FROM pg_settings WHERE setting = 'nobody'").await;
    let claim = claim("second");
    let both = (
        tokio::spawn({
            let (store, claim) = (Arc::clone(&store), claim.clone());
            async move { store.claim(&claim).await.map(drop) }
        }),
        tokio::spawn({
            let (store, claim) = (Arc::clone(&store), first.clone());
            let done = Finish::complete(answer("done"));
            async move { store.finish(&claim.id, claim.claimant(fence), &done).await.map(drop) }
        }),
    );
    let cancel = format!("SELECT pg_cancel_backend(pid) FROM ({WAITING}) AS waiting");
    for asking in [both.0, both.1] {
        let ended = async {
            while !asking.is_finished() {
                admin.query(&cancel, &[]).await.unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            asking.await.unwrap()
        };
        assert_eq!(soon(ended).await.unwrap_err().effect(), Effect::Unknown);
    }
    admin.batch_execute("ALTER SYSTEM RESET synchronous_standby_names").await.unwrap();
    admin.query("SELECT pg_reload_conf()", &[]).await.unwrap();
    assert_eq!(soon(granted(&store, &claim)).await.attempt, 1);
    let told =
        soon(store.finish(&first.id, first.claimant(fence), &Finish::complete(answer("done"))))
            .await
            .unwrap();
    assert_eq!(told, Fenced::Applied);
}
