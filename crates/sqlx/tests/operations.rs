//! Operations of several steps on pools of sqlx: done, undone, taken over and settled.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use semel_sqlx::{postgres, sqlite};
use semel_steps::{
    Operation, OperationOutcome, OperationStore, Operations, StepError, StepTransaction,
    store::{NewOperation, OperationFilter, OperatorStep, OwnedOperation},
};
use semel_testkit::servers;
use sqlx::{
    PgPool, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

type Calls = Arc<Mutex<Vec<String>>>;

/// A store whose transactions write to a ledger.
trait Ledger: OperationStore {
    fn put(
        transaction: StepTransaction<Self>,
        entry: i64,
    ) -> impl Future<Output = Result<(), StepError>> + Send
    where
        Self: Sized;
}

impl Ledger for postgres::PgOperations {
    async fn put(mut transaction: StepTransaction<Self>, entry: i64) -> Result<(), StepError> {
        let sql = "INSERT INTO ledger (entry) VALUES ($1)";
        sqlx::query(sql).bind(entry).execute(&mut **transaction).await?;
        Ok(())
    }
}

impl Ledger for sqlite::SqliteOperations {
    async fn put(mut transaction: StepTransaction<Self>, entry: i64) -> Result<(), StepError> {
        let sql = "INSERT INTO ledger (entry) VALUES (?1)";
        sqlx::query(sql).bind(entry).execute(&mut **transaction).await?;
        Ok(())
    }
}

/// Adds the number and its negative, unless the number is refused.
async fn transfer<S: Ledger>(
    op: Operation<S>,
    number: i64,
    calls: Calls,
) -> Result<i64, StepError> {
    op.step_tx("debit", |transaction| S::put(transaction, -number))
        .undo_tx(move |transaction, ()| S::put(transaction, number))
        .await?;
    let refusing = calls.clone();
    op.step("notify", |step| async move {
        refusing.lock().unwrap().push(step.key().to_owned());
        if number == 13 { Err(StepError::refused("unlucky")) } else { Ok(()) }
    })
    .await?;
    op.step_once("unknown", |_| async move {
        if number == 7 { Err(StepError::unknown("no reply")) } else { Ok(()) }
    })
    .await?;
    Ok(number)
}

async fn behaves_as_with_other_drivers<S: Ledger>(store: S, other: S) {
    let calls = Calls::default();
    let operations = Operations::new(store);
    // As a process that is gone has left it.
    let new = NewOperation {
        name: "transfer",
        version: 1,
        key: "lapsed",
        input: "5",
        owner: 9,
        lease: Duration::ZERO,
    };
    let lapsed = other.start(&new).await.unwrap();
    assert_eq!(other.start(&new).await.unwrap().id, lapsed.id, "a repeated start");

    let registered = calls.clone();
    let transfer = operations
        .operation("transfer", 1, move |op, number| transfer::<S>(op, number, registered.clone()));
    for _ in 0..2 {
        assert_eq!(transfer.run("k-1", &1).await.unwrap(), OperationOutcome::Done(1));
    }
    assert_eq!(transfer.run("k-1", &2).await.unwrap(), OperationOutcome::KeyReused);
    assert_eq!(transfer.run("lapsed", &5).await.unwrap(), OperationOutcome::Done(5));
    assert_eq!(other.read(lapsed.id).await.unwrap().unwrap().attempt, 1);
    assert_eq!(calls.lock().unwrap().len(), 2);

    let undone = transfer.run("k-13", &13).await.unwrap();
    let OperationOutcome::Undone(refusal) = undone else { panic!("{undone:?}") };
    assert_eq!(refusal.refusal::<String>().unwrap(), "unlucky");

    let parked = transfer.run("k-7", &7).await.unwrap();
    assert!(matches!(parked, OperationOutcome::Parked(_)), "{parked:?}");
    let rows = other.list(&OperationFilter { limit: 9, ..Default::default() }).await.unwrap();
    assert_eq!(rows.len(), 4);
    let seen = OwnedOperation { id: rows[0].id, fence: rows[0].fence };
    let result = Some("null".to_owned());
    for act in [OperatorStep::Settle { step: "unknown".to_owned(), result }, OperatorStep::Resume] {
        assert_eq!(other.operate(seen, &act).await.unwrap(), semel::core::Fenced::Applied);
    }
    assert_eq!(transfer.run("k-7", &7).await.unwrap(), OperationOutcome::Done(7));
    assert_eq!(other.sweep(Duration::from_secs(60), 10).await.unwrap(), 0);
    assert!(operations.drain(Duration::from_secs(10)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_on_a_pool_of_postgres_end_done_or_undone() {
    let server = servers::postgres();
    let pool = PgPool::connect(&server.url(&server.fresh_database())).await.unwrap();
    let store = || postgres::PgOperations::new(pool.clone());
    store().create_tables().await.unwrap();
    sqlx::query("CREATE TABLE ledger (entry bigint NOT NULL)").execute(&pool).await.unwrap();
    behaves_as_with_other_drivers(store(), store()).await;
    let sum = "SELECT (sum(entry))::bigint, count(*) FROM ledger";
    let sums: (i64, i64) = sqlx::query_as(sum).fetch_one(&pool).await.unwrap();
    assert_eq!(sums, (-(1 + 5 + 7), 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_on_a_pool_of_sqlite_end_done_or_undone() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("shop.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let store = sqlite::SqliteOperations::open(pool.clone()).await.unwrap();
    sqlx::query("CREATE TABLE ledger (entry INTEGER NOT NULL)").execute(&pool).await.unwrap();
    behaves_as_with_other_drivers(store.clone(), store).await;
    let sum = "SELECT sum(entry), count(*) FROM ledger";
    let sums: (i64, i64) = sqlx::query_as(sum).fetch_one(&pool).await.unwrap();
    assert_eq!(sums, (-(1 + 5 + 7), 5));
}
