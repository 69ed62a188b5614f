//! Commits that wait for a standby.

use std::sync::Arc;

use semel_core::{Effect, Fenced, Finish, Store};
use semel_postgres::Options;
use semel_testkit::servers::Postgres;

use crate::{
    fixture::connect,
    harness::{answer, claim, eventually, granted, in_time},
};

const WAITING: &str = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'";

/// Without its standby the server commits locally and waits. When the wait is cancelled it reports
/// success, although the commit is not replicated.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_wait_for_a_standby_leaves_the_effect_unknown() {
    let server = Postgres::start(&[]);
    let admin = connect(&server.url("postgres")).await;
    // The store must override this default, which does not wait for a standby.
    admin.batch_execute("ALTER DATABASE postgres SET synchronous_commit = local").await.unwrap();
    admin.batch_execute("SET synchronous_commit = local").await.unwrap();
    let store = Options::parse(&server.url("postgres")).unwrap().connect().await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let first = claim("first");
    let fence = granted(&store, &first).await.fence;
    let probe = connect(&server.url("postgres")).await;
    probe.batch_execute("CREATE TABLE probe (n int); SET synchronous_commit = on").await.unwrap();
    admin.batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'").await.unwrap();
    admin.query("SELECT pg_reload_conf()", &[]).await.unwrap();
    // Commits wait once the checkpointer has applied the setting, which no view shows.
    let inserting = tokio::spawn(async move {
        while probe.batch_execute("INSERT INTO probe VALUES (1)").await.is_ok() {}
    });
    eventually(&admin, WAITING).await;
    inserting.abort();
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
    for claiming in [both.0, both.1] {
        let ended = async {
            while !claiming.is_finished() {
                admin.query(&cancel, &[]).await.unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            claiming.await.unwrap()
        };
        assert_eq!(in_time(ended).await.unwrap_err().effect(), Effect::Unknown);
    }
    admin.batch_execute("ALTER SYSTEM RESET synchronous_standby_names").await.unwrap();
    admin.query("SELECT pg_reload_conf()", &[]).await.unwrap();
    assert_eq!(in_time(granted(&store, &claim)).await.attempt, 1);
    let reply =
        in_time(store.finish(&first.id, first.claimant(fence), &Finish::complete(answer("done"))))
            .await
            .unwrap();
    assert_eq!(reply, Fenced::Applied);
}
