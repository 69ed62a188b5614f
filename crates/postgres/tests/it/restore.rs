//! Backup and restore of a store.

use std::{os::unix::fs::PermissionsExt as _, process::Command, sync::Arc};

use semel_core::{Claimed, Fenced, Finish, Occupied, StateView, Store, StoreErrorKind};
use semel_postgres::{Backup, Options, PgRestoreReport, after_restore, backup, backup_command};
use semel_testkit::servers;

use crate::{
    fixture::{connect, restore},
    harness::{answer, claim, granted, in_time, rival},
};

/// The schema has other tables, which are not part of the backup.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_store_replays_its_records_and_repeats_no_fence() {
    let (server, folder) = (servers::postgres(), tempfile::tempdir().unwrap());
    let database = server.fresh_database();
    let url = server.url(&database);
    let admin = connect(&url).await;
    admin
        .batch_execute("CREATE TABLE orders (id int); INSERT INTO orders VALUES (1)")
        .await
        .unwrap();
    let options = Options::parse(&url).unwrap();
    let store: Arc<dyn Store> = Arc::new(options.connect().await.unwrap());
    let (done, open) = (claim("done"), claim("open"));
    let fence = granted(&store, &done).await.fence;
    assert_eq!(
        store.finish(&done.id, done.claimant(fence), &Finish::complete(answer("a"))).await.unwrap(),
        Fenced::Applied
    );
    granted(&store, &open).await;
    let identity = store.identity().await.unwrap();
    let epoch = store.epoch().await.unwrap();

    let file = folder.path().join("semel.dump");
    let written = in_time(backup(&options, &file)).await.unwrap();
    assert!(matches!(written, Backup::Written), "{written:?}");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let again = in_time(backup(&options, &file)).await.unwrap_err().to_string();
    assert!(again.contains("exists"), "a backup is overwritten: {again}");

    // A claim after the backup is lost.
    let lost = claim("lost");
    let zombie = granted(&store, &lost).await.fence;
    let gone = "DROP TABLE semel_records, semel_meta, semel_metadata, semel_limit_counters; \
                DROP SEQUENCE semel_fences";
    admin.batch_execute(gone).await.unwrap();
    restore(server, &database, &file);
    admin.batch_execute("SELECT setval('semel_fences', 7)").await.unwrap();
    admin.batch_execute("UPDATE semel_meta SET timeline = 9").await.unwrap();
    let PgRestoreReport { store_before, store_after, epoch_before, epoch_after, .. } =
        in_time(after_restore(&options)).await.unwrap();
    assert_ne!(store_before, store_after);
    assert_eq!(epoch_before, epoch.0);
    assert!(epoch_after > epoch.0 + 1_000_000, "{epoch_after}");
    let reply = in_time(after_restore(&options)).await.unwrap();
    assert_eq!((reply.store_before, reply.in_flight), (store_after, 1), "it may be run again");
    assert!(reply.fence_before > zombie.get() && reply.fence_after > reply.fence_before);

    // A gateway that was not stopped detects it; a new one works.
    let error = in_time(store.epoch()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    let store: Arc<dyn Store> = Arc::new(options.connect().await.unwrap());
    assert_ne!(store.identity().await.unwrap(), identity);
    let repeat = store.claim(&rival(&done)).await.unwrap();
    assert!(
        matches!(&repeat, Claimed::Occupied(Occupied::Completed { answer: kept, .. })
            if *kept == answer("a")),
        "{repeat:?}"
    );
    let seen = store.get(&open.id).await.unwrap().unwrap();
    assert!(matches!(seen.state, StateView::InFlight { .. }), "{seen:?}");
    let fence = granted(&store, &rival(&lost)).await.fence;
    assert!(fence > zombie, "{fence:?} after {zombie:?}");
    let late = store
        .finish(&lost.id, lost.claimant(zombie), &Finish::complete(answer("late")))
        .await
        .unwrap();
    assert_eq!(late, Fenced::Lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_a_store_is_neither_backed_up_nor_restored() {
    let server = servers::postgres();
    let options = Options::parse(&server.url(&server.fresh_database())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.dump");
    let error = in_time(backup(&options, &file)).await.unwrap_err().to_string();
    assert!(error.contains("there is no store"), "{error}");
    assert!(!file.exists());
    let error = in_time(after_restore(&options)).await.unwrap_err().to_string();
    assert!(error.contains("run `semel migrate` first"), "{error}");
}

/// The command is printed if the program is not installed.
#[tokio::test(flavor = "multi_thread")]
async fn the_printed_command_makes_the_same_backup() {
    let (server, folder) = (servers::postgres(), tempfile::tempdir().unwrap());
    let database = server.fresh_database();
    let url = format!("{}?schema=Money&prefix=a_", server.url(&database));
    let options = Options::parse(&url).unwrap();
    options.migrate().await.unwrap();
    let file = folder.path().join("semel.dump");
    let shell = backup_command(&options, &file).to_string();
    assert!(Command::new("sh").args(["-c", &shell]).status().unwrap().success(), "{shell}");
    let admin = connect(&server.url(&database)).await;
    admin.batch_execute("DROP SCHEMA \"Money\" CASCADE; CREATE SCHEMA \"Money\"").await.unwrap();
    restore(server, &database, &file);
    after_restore(&options).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(options.migrating(false).connect().await.unwrap());
    granted(&store, &claim("key")).await;
}
