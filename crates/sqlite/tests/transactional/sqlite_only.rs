//! Behaviour specific to SQLite: a single writer, and writes by other connections.

use std::{sync::Arc, time::Duration};

use rusqlite::{ErrorCode, TransactionBehavior};
use semel::{
    Once, OnceErrorKind, OperationError, Outcome, Semel,
    core::{Caller, Key, OnUnknown, Scope},
    transactional::InTransaction,
};
use semel_sqlite::transactional::{
    SqliteDatabase, SqliteTransactionalStore, SqliteUserTransaction,
};
use tokio::{
    sync::{Barrier, oneshot},
    time::timeout,
};

use super::{Shop, insert};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn open(shop: &Shop) -> (SqliteTransactionalStore, Semel) {
    let store = SqliteDatabase::open(shop.path()).unwrap().store();
    (store.clone(), Semel::new(store))
}

fn once(semel: &Semel, key: &str) -> Once {
    let once = semel.once("orders", Caller::new("shop-3").unwrap(), Key::new(key).unwrap());
    once.on_unknown(OnUnknown::Rerun)
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_run_concurrently_until_they_write() {
    let shop = Shop::new();
    let (store, semel) = open(&shop);
    let barrier = Arc::new(Barrier::new(20));
    let calls: Vec<_> = (0..20)
        .map(|call| {
            let (store, barrier) = (store.clone(), Arc::clone(&barrier));
            tokio::spawn(once(&semel, &format!("k-{call}")).run(move |lease| async move {
                let mut tx = store.transaction(&lease).await?;
                // Waits until all operations have begun.
                barrier.wait().await;
                tx.run(move |db| insert(db, &format!("row {call:02}"))).await?;
                Ok(call)
            }))
        })
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        let outcome =
            timeout(TEST_TIMEOUT, call).await.expect("the operation hangs").unwrap().unwrap();
        assert!(matches!(outcome, Outcome::Ran(ran) if ran == number), "{outcome:?}");
    }
    assert_eq!(shop.committed().len(), 20);
}

#[tokio::test]
async fn other_connections_can_write_before_an_operation_writes() {
    let shop = Shop::new();
    let (store, semel) = open(&shop);
    let path = shop.path();
    let run = once(&semel, "k").run(move |lease| async move {
        let mut tx = store.transaction(&lease).await?;
        insert(&rusqlite::Connection::open(path)?, "theirs")?;
        tx.run(|db| insert(db, "ours")).await?;
        Ok(())
    });
    assert!(matches!(run.await, Ok(Outcome::Ran(()))));
    assert_eq!(shop.committed(), ["ours", "theirs"]);
}

#[tokio::test]
async fn a_file_that_stays_locked_is_reported_as_busy() {
    let shop = Shop::new();
    let (store, semel) = open(&shop);
    let mut lock_holder = shop.connect();
    let lock_holder =
        lock_holder.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let (error_tx, error_rx) = oneshot::channel();
    let run = once(&semel, "k").run(move |lease| async move {
        let mut tx = store.transaction(&lease).await?;
        let written = tx.run(|db| insert(db, "late")).await;
        error_tx.send(written.as_ref().unwrap_err().sqlite_error_code()).unwrap();
        written.map_err(OperationError::retry)
    });
    assert!(matches!(run.await, Ok(Outcome::Retry(_))));
    assert_eq!(error_rx.await.unwrap(), Some(ErrorCode::DatabaseBusy));
    drop(lock_holder);
    let run = once(&semel, "l").run(|_| async { Ok(()) });
    assert!(matches!(run.await, Ok(Outcome::Ran(()))));
    assert_eq!(shop.committed(), [""; 0]);
}

#[tokio::test]
async fn a_panic_in_a_job_does_not_end_the_connection_thread() {
    let shop = Shop::new();
    let (store, semel) = open(&shop);
    for (key, panics) in [("k", true), ("l", false)] {
        let store = store.clone();
        let run = once(&semel, key).run(move |lease| async move {
            let mut tx = store.transaction(&lease).await?;
            let work = move |db: &rusqlite::Connection| {
                assert!(insert(db, key).is_ok() && !panics, "this panic is part of the test");
                Ok(())
            };
            tx.run(work).await?;
            Ok(())
        });
        let outcome = run.await.unwrap();
        assert_eq!(matches!(outcome, Outcome::Unknown(_)), panics, "{outcome:?}");
    }
    assert_eq!(shop.committed(), ["l"]);
}

#[tokio::test]
async fn a_record_that_another_process_added_first_wins() {
    let shop = Shop::new();
    let (store, semel) = open(&shop);
    let (begun_tx, begun_rx) = oneshot::channel();
    let (continue_tx, continue_rx) = oneshot::channel::<()>();
    let run = once(&semel, "k").run(move |lease| async move {
        let mut tx = store.transaction(&lease).await?;
        begun_tx.send(()).unwrap();
        continue_rx.await?;
        tx.run(|db| insert(db, "loser")).await?;
        Ok("loser".to_owned())
    });
    let running = tokio::spawn(run);
    begun_rx.await.unwrap();
    {
        let mut connection = shop.connect();
        let transaction = connection.transaction().unwrap();
        let names = (Scope::new("orders").unwrap(), Caller::new("shop-3").unwrap());
        let outcome = InTransaction::new(names.0, names.1, Key::new("k").unwrap())
            .run_now(
                &mut SqliteUserTransaction::of(&transaction),
                |tx: &mut SqliteUserTransaction<'_>| {
                    insert(tx, "winner")?;
                    Ok("winner".to_owned())
                },
            )
            .unwrap();
        assert!(matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
        transaction.commit().unwrap();
    }
    continue_tx.send(()).unwrap();
    let outcome = running.await.unwrap().unwrap();
    assert!(!matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
    assert_eq!(shop.committed(), ["winner"]);
}

#[tokio::test]
async fn a_violated_deferred_constraint_rolls_the_operation_back() {
    let shop = Shop::new();
    shop.connect()
        .execute_batch(
            "CREATE TABLE parent (id INTEGER PRIMARY KEY);
             CREATE TABLE child (parent REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
        )
        .unwrap();
    let (store, semel) = open(&shop);
    for parent in [false, true] {
        let store = store.clone();
        let run = once(&semel, "k").run(move |lease| async move {
            let mut tx = store.transaction(&lease).await?;
            let work = move |db: &rusqlite::Connection| {
                db.pragma_update(None, "foreign_keys", true)?;
                db.execute("INSERT INTO child VALUES (7)", [])?;
                db.execute("INSERT INTO parent SELECT 7 WHERE ?1", [parent])?;
                insert(db, "row")
            };
            tx.run(work).await?;
            Ok(())
        });
        let outcome = run.await;
        assert_eq!(matches!(outcome, Ok(Outcome::Ran(()))), parent, "{outcome:?}");
    }
    assert_eq!(shop.committed(), ["row"]);
}

/// A commit to an unlinked file would never be read.
#[tokio::test]
#[cfg(unix)]
async fn a_removed_file_is_not_written_to() {
    let shop = Shop::new();
    let (store, semel) = open(&shop);
    std::fs::remove_file(shop.path()).unwrap();
    let (error_tx, error_rx) = oneshot::channel();
    let run = once(&semel, "k").run(move |lease| async move {
        let mut tx = store.transaction(&lease).await?;
        let written = tx.run(|db| insert(db, "lost")).await;
        error_tx.send(written.as_ref().unwrap_err().to_string()).unwrap();
        written.map_err(OperationError::retry)
    });
    let _ = run.await;
    let error = error_rx.await.unwrap();
    assert!(error.contains("was removed while it was open"), "{error}");
}

#[test]
fn a_file_that_is_not_a_database_is_refused() {
    let shop = Shop::new();
    let path = shop.path().with_extension("txt");
    std::fs::write(
        &path,
        "this is a text file that is long enough not to be taken for an empty one",
    )
    .unwrap();
    assert!(SqliteDatabase::open(&path).is_err());
    assert!(SqliteDatabase::open(shop.path().join("no-folder/shop.db")).is_err());
}

#[test]
fn a_connection_without_a_transaction_is_refused() {
    let shop = Shop::new();
    let connection = shop.connect();
    let names = (Scope::new("orders").unwrap(), Caller::anonymous(), Key::new("k").unwrap());
    let run = InTransaction::new(names.0, names.1, names.2).run_now(
        &mut SqliteUserTransaction::of(&connection),
        |_: &mut SqliteUserTransaction<'_>| Ok(()),
    );
    assert_eq!(run.unwrap_err().kind(), OnceErrorKind::StoreUnavailable);
}
