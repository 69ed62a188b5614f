//! Operations that are recorded by the same commit as their writes, in a file.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

use std::{path::PathBuf, time::Duration};

use async_trait::async_trait;
use semel::{OperationError, transactional::TransactionalStore};
use semel_sqlx::sqlite::{SqliteDatabase, SqliteTransaction, SqliteUserTransaction};
use semel_testkit::transactional::{TransactionalFixture, UserTransactionFixture};
use sqlx::{
    Executor as _, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tempfile::TempDir;

/// A shop with its own file.
struct Shop(TempDir);

impl Shop {
    async fn new() -> Self {
        let shop = Self(tempfile::tempdir().unwrap());
        let pool = shop.pool(Duration::from_secs(60)).await;
        pool.execute("CREATE TABLE business (text TEXT NOT NULL)").await.unwrap();
        SqliteDatabase::open(pool).await.unwrap();
        shop
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("shop.db")
    }

    fn options(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(self.path())
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
    }

    async fn pool(&self, busy_timeout: Duration) -> SqlitePool {
        let options = self.options().busy_timeout(busy_timeout);
        SqlitePoolOptions::new().max_connections(2).connect_with(options).await.unwrap()
    }
}

async fn insert(connection: &mut SqliteConnection, text: &str) {
    let insert = sqlx::query("INSERT INTO business VALUES ($1)").bind(text);
    insert.execute(connection).await.unwrap();
}

async fn committed(pool: &SqlitePool) -> Vec<String> {
    let rows = sqlx::query_scalar("SELECT text FROM business ORDER BY text");
    rows.fetch_all(pool).await.unwrap()
}

#[async_trait]
impl TransactionalFixture for Shop {
    type Database = SqliteDatabase;

    async fn store(&self) -> TransactionalStore<SqliteDatabase> {
        let pool = self.pool(Duration::from_secs(60)).await;
        SqliteDatabase::open(pool).await.unwrap().store()
    }

    async fn write(transaction: &mut SqliteTransaction, text: &str) {
        insert(transaction, text).await;
    }

    async fn commit_behind(transaction: &mut SqliteTransaction) {
        transaction.execute("COMMIT").await.unwrap();
        transaction.execute("BEGIN").await.unwrap();
    }

    async fn rows(&self, store: &TransactionalStore<SqliteDatabase>) -> Vec<String> {
        committed(store.database().pool()).await
    }
}

impl UserTransactionFixture for Shop {
    type UserTransaction<'a> = SqliteUserTransaction<'a>;

    async fn transaction<S>(&self, commit: bool, script: S)
    where
        S: for<'a, 'b> AsyncFnOnce(&'b mut SqliteUserTransaction<'a>),
    {
        let pool = self.pool(Duration::from_millis(50)).await;
        // It becomes a write transaction when the record is taken.
        let mut transaction = pool.begin().await.unwrap();
        script(&mut SqliteUserTransaction::of(&mut transaction)).await;
        if commit {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        pool.close().await;
    }

    async fn write(user_transaction: &mut Self::UserTransaction<'_>, text: &str) {
        insert(user_transaction, text).await;
    }

    async fn fail(user_transaction: &mut Self::UserTransaction<'_>) -> OperationError {
        user_transaction.execute("INSERT INTO business VALUES (NULL)").await.unwrap_err().into()
    }

    async fn rows(&self) -> Vec<String> {
        committed(&self.pool(Duration::from_secs(60)).await).await
    }
}

semel_testkit::transactional!(Shop::new().await);
semel_testkit::in_transaction!(Shop::new().await);

#[tokio::test]
async fn commits_that_are_not_synced_are_refused() {
    let shop = Shop::new().await;
    for (synchronous, taken) in [
        (SqliteSynchronous::Off, false),
        (SqliteSynchronous::Normal, false),
        (SqliteSynchronous::Full, true),
        (SqliteSynchronous::Extra, true),
    ] {
        let options = shop.options().synchronous(synchronous);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        assert_eq!(SqliteDatabase::open(pool).await.is_ok(), taken);
    }
}
