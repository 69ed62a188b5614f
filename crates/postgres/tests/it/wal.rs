//! A refused duplicate costs the database only a read.

use std::sync::Arc;

use semel_core::{Claimed, Fenced, Finish, Store};
use semel_postgres::Options;
use semel_testkit::servers::Postgres;

use crate::{
    fixture::connect,
    harness::{answer, claim, granted, rival},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_duplicate_writes_no_wal_and_uses_no_fence() {
    // No other test writes on this server.
    let server = Postgres::start(&[
        ("autovacuum", "off"),
        ("wal_level", "minimal"),
        ("max_wal_senders", "0"),
        ("checkpoint_timeout", "1h"),
    ]);
    let admin = connect(&server.url("postgres")).await;
    let store = Options::parse(&server.url("postgres")).unwrap().connect().await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let (done, running) = (claim("done"), claim("running"));
    let fence = granted(&store, &done).await.fence;
    let reply = store
        .finish(&done.id, done.claimant(fence), &Finish::complete(answer("done")))
        .await
        .unwrap();
    assert_eq!(reply, Fenced::Applied);
    granted(&store, &running).await;
    // Reads may write hint bits otherwise.
    admin.batch_execute("VACUUM semel_records").await.unwrap();
    admin.batch_execute("CHECKPOINT").await.unwrap();
    let state = "SELECT pg_current_wal_insert_lsn()::text, last_value FROM semel_fences";
    let before = admin.query_one(state, &[]).await.unwrap();
    for round in 0..25 {
        let claiming: Vec<_> = (0..40)
            .map(|number| {
                let of = if number % 2 == 0 { &done } else { &running };
                let (store, claim) = (Arc::clone(&store), rival(of));
                tokio::spawn(async move { store.claim(&claim).await.unwrap() })
            })
            .collect();
        for claiming in claiming {
            let reply = claiming.await.unwrap();
            assert!(matches!(reply, Claimed::Occupied(_)), "in round {round}: {reply:?}");
        }
    }
    let after = admin.query_one(state, &[]).await.unwrap();
    assert_eq!(after.get::<_, &str>(0), before.get::<_, &str>(0), "WAL was written");
    assert_eq!(after.get::<_, i64>(1), before.get::<_, i64>(1), "fences were used");
}
