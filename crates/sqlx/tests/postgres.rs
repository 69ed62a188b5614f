//! Operations that are recorded by the same commit as their writes, in PostgreSQL.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

use async_trait::async_trait;
use semel::{
    OperationError, Outcome, Semel,
    core::{Caller, Key, OnUnknown},
    transactional::TransactionalStore,
};
use semel_sqlx::postgres::{PgDatabase, PgTransaction, PgUserTransaction, create_table};
use semel_testkit::{
    servers,
    transactional::{TransactionalFixture, UserTransactionFixture},
};
use sqlx::{Connection as _, Executor as _, PgConnection, PgPool, postgres::PgPoolOptions};

/// A shop with its own database.
struct Shop {
    url: String,
}

impl Shop {
    async fn new() -> Self {
        let server = servers::postgres();
        let shop = Self { url: server.url(&server.fresh_database()) };
        let pool = shop.pool().await;
        create_table(&pool).await.unwrap();
        create_table(&pool).await.unwrap();
        pool.execute("CREATE TABLE business (text text NOT NULL)").await.unwrap();
        pool.close().await;
        shop
    }

    async fn pool(&self) -> PgPool {
        PgPoolOptions::new().max_connections(2).connect(&self.url).await.unwrap()
    }
}

async fn insert(connection: &mut PgConnection, text: &str) {
    let insert = sqlx::query("INSERT INTO business VALUES ($1)").bind(text);
    insert.execute(connection).await.unwrap();
}

async fn committed(pool: &PgPool) -> Vec<String> {
    let mut rows: Vec<String> =
        sqlx::query_scalar("SELECT text FROM business").fetch_all(pool).await.unwrap();
    rows.sort();
    rows
}

#[async_trait]
impl TransactionalFixture for Shop {
    type Database = PgDatabase;

    async fn store(&self) -> TransactionalStore<PgDatabase> {
        PgDatabase::new(self.pool().await).store()
    }

    async fn write(transaction: &mut PgTransaction, text: &str) {
        insert(transaction, text).await;
    }

    async fn commit_behind(transaction: &mut PgTransaction) {
        transaction.execute("COMMIT").await.unwrap();
        transaction.execute("BEGIN").await.unwrap();
    }

    async fn rows(&self, store: &TransactionalStore<PgDatabase>) -> Vec<String> {
        committed(store.database().pool()).await
    }
}

impl UserTransactionFixture for Shop {
    type UserTransaction<'a> = PgUserTransaction<'a>;

    async fn transaction<S>(&self, commit: bool, script: S)
    where
        S: for<'a, 'b> AsyncFnOnce(&'b mut PgUserTransaction<'a>),
    {
        let pool = self.pool().await;
        let mut transaction = pool.begin().await.unwrap();
        script(&mut PgUserTransaction::of(&mut transaction)).await;
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
        committed(&self.pool().await).await
    }
}

semel_testkit::transactional!(Shop::new().await);
semel_testkit::in_transaction!(Shop::new().await);

/// A transaction inside of an operation is a savepoint, so its commit has no effect on its own.
#[tokio::test]
async fn a_transaction_inside_of_an_operation_ends_with_it() {
    let shop = Shop::new().await;
    let store = TransactionalFixture::store(&shop).await;
    let semel = Semel::new(store.clone());
    for (key, kept) in [("dropped", false), ("kept", true)] {
        let theirs = store.clone();
        let once = semel.once("orders", Caller::anonymous(), Key::new(key).unwrap());
        let run = once.on_unknown(OnUnknown::Rerun).run(move |lease| async move {
            let mut tx = theirs.transaction(&lease).await?;
            let mut inner = (**tx).begin().await?;
            insert(&mut inner, key).await;
            inner.commit().await?;
            let mut inner = (**tx).begin().await?;
            insert(&mut inner, "undone").await;
            inner.rollback().await?;
            if kept { Ok(()) } else { Err(OperationError::retry("no")) }
        });
        assert_eq!(matches!(run.await, Ok(Outcome::Ran(()))), kept);
    }
    assert_eq!(TransactionalFixture::rows(&shop, &store).await, ["kept"]);
}

/// A record in the table of another schema would never be found.
#[tokio::test]
async fn a_record_that_would_go_to_another_table_is_refused() {
    let shop = Shop::new().await;
    let pool = shop.pool().await;
    pool.execute("CREATE SCHEMA tenant").await.unwrap();
    let table =
        "CREATE TABLE tenant.semel_transactional (LIKE public.semel_transactional INCLUDING ALL)";
    pool.execute(table).await.unwrap();
    let store = TransactionalFixture::store(&shop).await;
    let theirs = store.clone();
    let once =
        Semel::new(store.clone()).once("orders", Caller::anonymous(), Key::new("k").unwrap());
    let run = once.on_unknown(OnUnknown::Rerun).run(move |lease| async move {
        let mut tx = theirs.transaction(&lease).await?;
        (**tx).execute("SET LOCAL search_path = tenant, public").await?;
        insert(&mut tx, "elsewhere").await;
        Ok(())
    });
    let outcome = run.await;
    assert!(!matches!(outcome, Ok(Outcome::Ran(()))), "{outcome:?}");
    assert!(TransactionalFixture::rows(&shop, &store).await.is_empty());
}

/// The record of the key `k-1`, as if written by another program.
const RECORD: &str = "INSERT INTO semel_transactional \
     SELECT 'b419559d-4e0b-e293-4315-76a3e9cd8550', \
     scope, caller, 'k-1', fingerprint, fence, answer, recorded_at, expires_at \
     FROM semel_transactional WHERE key = 'k-0'";

/// A lock that is granted after a delay, as during the commit of its owner.
const SLOW_LOCK: &str = "CREATE FUNCTION slow.pg_try_advisory_xact_lock(bigint) RETURNS boolean \
     LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); \
     RETURN pg_catalog.pg_try_advisory_xact_lock($1); END $$";

const WAITING_FOR_LOCK: &str = "SELECT 1 FROM pg_stat_activity \
     WHERE datname = current_database() AND wait_event = 'PgSleep'";

/// Above read committed the statement that takes the lock has its snapshot before it.
#[tokio::test(flavor = "multi_thread")]
async fn above_read_committed_a_record_from_before_the_lock_is_seen() {
    let shop = Shop::new().await;
    let admin = shop.pool().await;
    let write = async |key: &str, text: &'static str| {
        let store = TransactionalFixture::store(&shop).await;
        let (semel, caller) = (Semel::new(store.clone()), Caller::new("shop-3").unwrap());
        let once = semel.once("orders", caller, Key::new(key).unwrap());
        let run = once.on_unknown(OnUnknown::Rerun).run(move |lease| async move {
            insert(&mut *store.transaction(&lease).await?, text).await;
            Ok(text.to_owned())
        });
        run.await.unwrap()
    };
    assert!(matches!(write("k-0", "first").await, Outcome::Ran(_)));
    admin.execute("CREATE SCHEMA slow").await.unwrap();
    admin.execute(SLOW_LOCK).await.unwrap();
    for setting in
        ["search_path = slow, pg_catalog, public", "default_transaction_isolation = serializable"]
    {
        let set = format!("ALTER DATABASE {} SET {setting}", shop.url.rsplit('/').next().unwrap());
        admin.execute(sqlx::AssertSqlSafe(set)).await.unwrap();
    }
    let meanwhile = async {
        while admin.fetch_all(WAITING_FOR_LOCK).await.unwrap().is_empty() {}
        admin.execute(RECORD).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(write("k-1", "second"), meanwhile);
    assert!(matches!(&outcome, Outcome::Replayed(text) if text == "first"), "{outcome:?}");
    assert_eq!(committed(&admin).await, ["first"]);
    let locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND database = \
                 (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert!(admin.fetch_all(locks).await.unwrap().is_empty());
    assert!(matches!(write("k-2", "third").await, Outcome::Ran(_)));
}
