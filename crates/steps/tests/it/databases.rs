//! The two databases of the tests, each with a table `ledger` for the steps that write to it.

use std::{sync::LazyLock, time::Duration};

use deadpool_postgres::{Manager, Pool};
use semel_steps::{
    OperationStore, PgOperations, SqliteOperations, StepError, postgres::PgStepTransaction,
    sqlite::SqliteStepTransaction,
};
use semel_testkit::servers::{self, Postgres};
use tempfile::TempDir;
use tokio_postgres::{Config, NoTls, SimpleQueryMessage};

/// A database under test.
pub(crate) trait TestDatabase: Clone + Send + Sync + 'static {
    type Store: OperationStore;

    /// A store of its own, as another process has it.
    fn store(&self) -> Self::Store;
    /// Adds a line to the ledger.
    fn put(
        transaction: &mut <Self::Store as OperationStore>::Transaction,
        entry: String,
    ) -> impl Future<Output = Result<(), StepError>> + Send;
    /// Removes a line.
    fn remove(
        transaction: &mut <Self::Store as OperationStore>::Transaction,
        entry: String,
    ) -> impl Future<Output = Result<(), StepError>> + Send;
    /// Runs SQL; gives the first column of each row.
    fn sql(&self, sql: &str) -> Vec<String>;
    /// Ends the leases of the operations of this name.
    fn lapse(&self, name: &str);
    /// Lets time pass for the operations of this name.
    fn age(&self, name: &str, by: Duration);

    /// How many lines the ledger has.
    fn entries(&self, entry: &str) -> usize {
        self.sql(&format!("SELECT entry FROM ledger WHERE entry = '{entry}'")).len()
    }
}

/// A database in a server.
#[derive(Clone, Debug)]
pub(crate) struct PgServer {
    pub(crate) url: String,
}

/// A database of its own in the shared server.
pub(crate) fn postgres() -> PgServer {
    PgServer::new(servers::postgres())
}

impl PgServer {
    pub(crate) fn new(server: &Postgres) -> Self {
        let database = Self { url: server.url(&server.fresh_database()) };
        database.block_on(async |pool| {
            PgOperations::new(pool.clone()).create_tables().await.unwrap();
            let ledger = "CREATE TABLE ledger (id bigserial PRIMARY KEY, entry text NOT NULL)";
            pool.get().await.unwrap().batch_execute(ledger).await.unwrap();
        });
        database
    }

    pub(crate) fn pool(&self) -> Pool {
        let config: Config = self.url.parse().unwrap();
        Pool::builder(Manager::new(config, NoTls)).max_size(8).build().unwrap()
    }

    fn block_on<T: Send>(&self, work: impl AsyncFnOnce(Pool) -> T + Send) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work(self.pool()))
    }
}

impl TestDatabase for PgServer {
    type Store = PgOperations;

    fn store(&self) -> PgOperations {
        PgOperations::new(self.pool())
    }

    async fn put(transaction: &mut PgStepTransaction, entry: String) -> Result<(), StepError> {
        transaction.execute("INSERT INTO ledger (entry) VALUES ($1)", &[&entry]).await?;
        Ok(())
    }

    async fn remove(transaction: &mut PgStepTransaction, entry: String) -> Result<(), StepError> {
        transaction.execute("DELETE FROM ledger WHERE entry = $1", &[&entry]).await?;
        Ok(())
    }

    fn sql(&self, sql: &str) -> Vec<String> {
        self.block_on(async |pool| {
            let rows = pool.get().await.unwrap().simple_query(sql).await.unwrap();
            let first = |message: &SimpleQueryMessage| {
                let SimpleQueryMessage::Row(row) = message else { return None };
                Some(row.get(0).unwrap_or_default().to_owned())
            };
            rows.iter().filter_map(first).collect()
        })
    }

    fn lapse(&self, name: &str) {
        self.sql(&format!(
            "UPDATE semel_operation SET lease_until = now() - interval '1 second' \
             WHERE name = '{name}'"
        ));
    }

    fn age(&self, name: &str, by: Duration) {
        let by = format!("interval '{} seconds'", by.as_secs());
        self.sql(&format!(
            "UPDATE semel_operation SET created_at = created_at - {by}, \
             lease_until = lease_until - {by}, ended_at = ended_at - {by} WHERE name = '{name}'"
        ));
    }
}

/// A file.
#[derive(Clone, Debug)]
pub(crate) struct SqliteFile {
    pub(crate) path: std::path::PathBuf,
}

impl SqliteFile {
    pub(crate) fn new() -> Self {
        static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let file = Self { path: FOLDER.path().join(format!("{next}.db")) };
        drop(SqliteOperations::open(&file.path).unwrap());
        file.sql("CREATE TABLE ledger (id INTEGER PRIMARY KEY, entry TEXT NOT NULL)");
        file
    }
}

impl TestDatabase for SqliteFile {
    type Store = SqliteOperations;

    fn store(&self) -> SqliteOperations {
        SqliteOperations::open(&self.path).unwrap()
    }

    async fn put(transaction: &mut SqliteStepTransaction, entry: String) -> Result<(), StepError> {
        let sql = "INSERT INTO ledger (entry) VALUES (?1)";
        transaction.run(move |db| db.execute(sql, [entry])).await?;
        Ok(())
    }

    async fn remove(
        transaction: &mut SqliteStepTransaction,
        entry: String,
    ) -> Result<(), StepError> {
        transaction
            .run(move |db| db.execute("DELETE FROM ledger WHERE entry = ?1", [entry]))
            .await?;
        Ok(())
    }

    fn sql(&self, sql: &str) -> Vec<String> {
        let connection = rusqlite::Connection::open(&self.path).unwrap();
        connection.busy_timeout(Duration::from_secs(30)).unwrap();
        let mut statement = connection.prepare(sql).unwrap();
        let mut rows = statement.query([]).unwrap();
        let mut found = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            let value = row.get_ref(0).unwrap();
            let text = value.as_str().map(str::to_owned);
            found.push(text.unwrap_or_else(|_| value.as_i64().unwrap().to_string()));
        }
        found
    }

    fn lapse(&self, name: &str) {
        self.sql(&format!("UPDATE semel_operation SET boot = '' WHERE name = '{name}'"));
    }

    fn age(&self, name: &str, by: Duration) {
        let by = by.as_millis();
        self.sql(&format!(
            "UPDATE semel_operation SET created_at = created_at - {by}, boot = '', \
             ended_at = ended_at - {by} WHERE name = '{name}'"
        ));
    }
}
