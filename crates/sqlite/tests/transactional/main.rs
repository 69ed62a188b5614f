//! Operations that are recorded by the same commit as their writes, in the user's own file.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod killed_processes;
mod layer;
mod sqlite_only;
mod sqlx_peer;

use std::{path::PathBuf, time::Duration};

use async_trait::async_trait;
use rusqlite::{Connection, TransactionBehavior};
use semel::{OperationError, transactional::TransactionalStore};
use semel_sqlite::transactional::{
    SqliteDatabase, SqliteTransaction, SqliteUserTransaction, create_table,
};
use semel_testkit::transactional::{TransactionalFixture, UserTransactionFixture};
use tempfile::TempDir;

/// A shop with its own table.
struct Shop(TempDir);

impl Shop {
    fn new() -> Self {
        let shop = Self(tempfile::tempdir().unwrap());
        shop.connect().execute_batch("CREATE TABLE business (text TEXT NOT NULL)").unwrap();
        shop
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("shop.db")
    }

    fn connect(&self) -> Connection {
        let connection = Connection::open(self.path()).unwrap();
        connection.pragma_update(None, "journal_mode", "wal").unwrap();
        create_table(&connection).unwrap();
        connection
    }

    fn committed(&self) -> Vec<String> {
        let connection = self.connect();
        let mut rows = connection.prepare("SELECT text FROM business ORDER BY text").unwrap();
        rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }
}

fn insert(connection: &Connection, text: &str) -> rusqlite::Result<usize> {
    connection.execute("INSERT INTO business VALUES (?1)", [text])
}

#[async_trait]
impl TransactionalFixture for Shop {
    type Database = SqliteDatabase;

    async fn store(&self) -> TransactionalStore<SqliteDatabase> {
        SqliteDatabase::open(self.path()).unwrap().store()
    }

    async fn write(transaction: &mut SqliteTransaction, text: &str) {
        let text = text.to_owned();
        transaction.run(move |connection| insert(connection, &text)).await.unwrap();
    }

    async fn commit_behind(transaction: &mut SqliteTransaction) {
        transaction.run(|connection| connection.execute_batch("COMMIT; BEGIN")).await.unwrap();
    }

    async fn rows(&self, _: &TransactionalStore<SqliteDatabase>) -> Vec<String> {
        self.committed()
    }
}

impl UserTransactionFixture for Shop {
    type UserTransaction<'a> = SqliteUserTransaction<'a>;

    async fn transaction<S>(&self, commit: bool, script: S)
    where
        S: for<'a, 'b> AsyncFnOnce(&'b mut SqliteUserTransaction<'a>),
    {
        let mut connection = self.connect();
        connection.busy_timeout(Duration::from_millis(50)).unwrap();
        // It becomes a write transaction when the record is taken.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Deferred);
        let transaction = transaction.unwrap();
        script(&mut SqliteUserTransaction::of(&transaction)).await;
        if commit {
            transaction.commit().unwrap();
        }
    }

    async fn write(user_transaction: &mut Self::UserTransaction<'_>, text: &str) {
        insert(user_transaction, text).unwrap();
    }

    async fn fail(user_transaction: &mut Self::UserTransaction<'_>) -> OperationError {
        user_transaction.execute("INSERT INTO business VALUES (NULL)", []).unwrap_err().into()
    }

    async fn rows(&self) -> Vec<String> {
        self.committed()
    }
}

semel_testkit::transactional!(Shop::new());
semel_testkit::in_transaction!(Shop::new());
