//! A database of its own for each test, with the table `ledger`.

use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use semel::{
    Once, OnceError, OperationError, Outcome, Semel,
    core::{Caller, Key, OnUnknown},
};
use semel_postgres::transactional::{self, PgDatabase, PgTransaction, PgTransactionalStore};
use semel_testkit::servers;
use tokio::time::{Instant, sleep};
use tokio_postgres::{Client, Config, NoTls};

/// The timeout of every wait.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct TestDatabase {
    pub(crate) admin: Client,
    pub(crate) url: String,
}

impl TestDatabase {
    pub(crate) async fn new() -> Self {
        let server = servers::postgres();
        let url = server.url(&server.fresh_database());
        let pool = pool(&url, 1);
        transactional::create_table(&pool).await.unwrap();
        let config: Config = url.parse().unwrap();
        let (admin, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        let ledger = "CREATE TABLE ledger (id bigserial PRIMARY KEY, entry text NOT NULL)";
        admin.batch_execute(ledger).await.unwrap();
        Self { admin, url }
    }

    /// A pool and an engine of its own, as in another process.
    pub(crate) fn process(&self, connections: usize) -> Process {
        process(&self.url, connections)
    }

    pub(crate) async fn entries(&self) -> Vec<String> {
        let rows = self.admin.query("SELECT entry FROM ledger ORDER BY entry", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Waits until a query has a row.
    pub(crate) async fn eventually(&self, query: &str) {
        let begun = Instant::now();
        while self.admin.query(query, &[]).await.unwrap().is_empty() {
            assert!(begun.elapsed() < TEST_TIMEOUT, "no row within the timeout: {query}");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) pool: Pool,
    pub(crate) store: PgTransactionalStore,
    pub(crate) semel: Semel,
}

pub(crate) fn process(url: &str, connections: usize) -> Process {
    Process::with_pool(pool(url, connections))
}

pub(crate) fn pool(url: &str, connections: usize) -> Pool {
    let manager = Manager::new(url.parse::<Config>().unwrap(), NoTls);
    Pool::builder(manager).max_size(connections).build().unwrap()
}

impl Process {
    pub(crate) fn with_pool(pool: Pool) -> Self {
        Self::with_database(PgDatabase::new(pool.clone()), pool)
    }

    pub(crate) fn with_database(database: PgDatabase, pool: Pool) -> Self {
        let store = database.store();
        let semel = Semel::new(store.clone());
        Self { pool, store, semel }
    }

    /// The same without a cache: every repeat reads the database.
    pub(crate) fn uncached(database: PgDatabase, pool: Pool) -> Self {
        let store = database.store();
        let semel = Semel::builder(store.clone()).cache_bytes_max(0).upkeep(false).build();
        Self { pool, store, semel }
    }

    pub(crate) fn once(&self, key: &str) -> Once {
        let caller = Caller::new("shop-3").unwrap();
        let once = self.semel.once("orders", caller, Key::new(key).unwrap());
        once.on_unknown(OnUnknown::Rerun).wait(TEST_TIMEOUT)
    }

    /// Inserts one entry under a key.
    pub(crate) async fn write(&self, key: &str) -> Outcome<String> {
        self.try_to_write(key).await.unwrap()
    }

    pub(crate) async fn try_to_write(&self, key: &str) -> Result<Outcome<String>, OnceError> {
        let (store, entry) = (self.store.clone(), key.to_owned());
        let run = self.once(key).run(move |lease| async move {
            let tx = store.transaction(&lease).await?;
            insert(&tx, &entry).await?;
            Ok(entry)
        });
        run.await
    }
}

pub(crate) async fn insert(tx: &PgTransaction, entry: &str) -> Result<(), OperationError> {
    tx.execute("INSERT INTO ledger (entry) VALUES ($1)", &[&entry]).await?;
    Ok(())
}
