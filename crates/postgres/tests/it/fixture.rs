//! A store for a test: its own tables on the shared server, and a clock that the test sets.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use semel_core::Store;
use semel_postgres::{Backup, Options, after_restore, backup};
use semel_testkit::{
    fixture::{Durable, Fixture, Restorable},
    servers::{self, PgBouncer, Postgres},
};
use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls};

/// How a store accesses its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// As the owner of the tables, without other privileges.
    Owner,
    /// As a role with the documented grants that owns nothing.
    Granted,
    /// Through a pooler in transaction mode.
    Pooled,
}

/// Connects to a server without a store.
pub(crate) async fn connect(url: &str) -> Client {
    let config: Config = url.parse().unwrap();
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) fn shared_pgbouncer() -> &'static PgBouncer {
    static SHARED: LazyLock<PgBouncer> = LazyLock::new(|| PgBouncer::start(servers::postgres()));
    &SHARED
}

/// A name that is unique in this process.
pub(crate) fn unique_name(prefix: &str) -> String {
    static MADE: AtomicU64 = AtomicU64::new(0);
    format!("{prefix}_{}", MADE.fetch_add(1, Ordering::Relaxed))
}

/// SQL expressions for the columns of the records that [`Pg::fill`] inserts.
pub(crate) struct RowExpressions<'a> {
    pub(crate) key: &'a str,
    pub(crate) retention: u32,
    pub(crate) claimed_at: &'a str,
    pub(crate) expires_at: &'a str,
    pub(crate) state: &'a str,
}

impl Default for RowExpressions<'_> {
    fn default() -> Self {
        Self {
            key: "n::text",
            retention: 1000,
            claimed_at: "now",
            expires_at: "now + interval '1 day'",
            state: "'completed'",
        }
    }
}

/// A schema with a clock table and one store.
pub(crate) struct Pg {
    pub(crate) admin: Client,
    pub(crate) schema: String,
    pub(crate) role: String,
    pub(crate) options: Options,
    store: Mutex<Option<Arc<dyn Store>>>,
    backups: TempDir,
}

impl Pg {
    pub(crate) async fn new(access: Access) -> Self {
        let fixture = Self::without_store(access).await;
        let store = fixture.open().await;
        fixture.set(Some(store));
        fixture
    }

    /// Creates the schema, its role and its clock table, without opening a store.
    pub(crate) async fn without_store(access: Access) -> Self {
        let server = servers::postgres();
        let admin = connect(&server.url("postgres")).await;
        let (schema, role) = (unique_name("kit"), unique_name("role"));
        let setup = format!(
            "CREATE ROLE {role} LOGIN; CREATE SCHEMA {schema}; \
             CREATE TABLE {schema}.clock AS SELECT timestamptz '2026-01-01 00:00:00Z' AS now; \
             GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON {schema}.clock TO {role}"
        );
        admin.batch_execute(&setup).await.unwrap();
        let base = match access {
            Access::Owner | Access::Granted => server.url_as(&role, "postgres"),
            Access::Pooled => shared_pgbouncer().url("postgres"),
        };
        let migrate = if access == Access::Granted { "off" } else { "on" };
        let url = format!("{base}?schema={schema}&prefix=kit_&migrate={migrate}");
        let clock = format!("(SELECT now FROM {schema}.clock)");
        let options = Options::parse(&url).unwrap().clock_sql(&clock);
        match access {
            Access::Owner => {
                let grant = format!("GRANT CREATE ON SCHEMA {schema} TO {role}");
                admin.batch_execute(&grant).await.unwrap();
            }
            Access::Granted => grant(&admin, &options, &role).await,
            Access::Pooled => {}
        }
        let backups = tempfile::tempdir().unwrap();
        Self { admin, schema, role, options, store: Mutex::default(), backups }
    }

    /// Inserts records with SQL. Each value is an expression of `n`, the number of the row, and
    /// `now`.
    pub(crate) async fn fill(&self, count: u32, rows: &RowExpressions<'_>) {
        let (schema, RowExpressions { key, retention, claimed_at, expires_at, state }) =
            (&self.schema, rows);
        let fill = format!(
            "INSERT INTO {schema}.kit_records (digest, scope, caller, key, fingerprint, fence, \
                 attempt, on_unknown, retention, claimed_at, expires_at, lease_until, owner, \
                 state, about, node, captured, answer, irregular_at) \
             SELECT gen_random_uuid(), 'pay', 'merchant', {key}, '\\x01', n, 1, 'hold', \
                 {retention}, {claimed_at}, {expires_at}, \
                 CASE {state} WHEN 'in_flight' THEN now + interval '1 day' END, \
                 gen_random_uuid(), {state}, 'POST /', 'node', '', '\\x0102', \
                 CASE WHEN {state} <> 'in_flight' AND {expires_at} <> \
                     {claimed_at} + {retention} * interval '1 ms' THEN {claimed_at} END \
             FROM {schema}.clock, generate_series(1, {count}) n"
        );
        self.admin.batch_execute(&fill).await.unwrap();
    }

    /// Drops the tables and the sequence of the store.
    async fn drop_tables(&self) {
        self.close();
        let schema = &self.schema;
        let drop = format!(
            "DROP TABLE {schema}.kit_records, {schema}.kit_meta, {schema}.kit_metadata, \
             {schema}.kit_limit_counters; \
             DROP SEQUENCE {schema}.kit_fences"
        );
        self.admin.batch_execute(&drop).await.unwrap();
    }

    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.options.connect().await.unwrap())
    }

    /// Drops the handle of the store; its tables remain.
    pub(crate) fn close(&self) {
        self.set(None);
    }

    fn set(&self, store: Option<Arc<dyn Store>>) {
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = store;
    }
}

/// Creates the tables as another role, with the grants in the script.
async fn grant(admin: &Client, options: &Options, role: &str) {
    let script = options.migrations();
    admin.batch_execute(&script).await.unwrap();
    let grants = script.lines().filter_map(|line| line.strip_prefix("-- GRANT "));
    for grant in grants {
        let grant = format!("GRANT {}", grant.replace('…', role));
        admin.batch_execute(&grant).await.unwrap();
    }
}

#[async_trait]
impl Fixture for Pg {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(self.store.lock().unwrap().as_ref().unwrap())
    }

    /// Another store on the same tables, as in another process.
    async fn another(&self) -> Arc<dyn Store> {
        self.open().await
    }

    async fn advance(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).unwrap();
        let advance = format!(
            "UPDATE {}.clock SET now = now + {micros} * interval '1 microsecond'",
            self.schema
        );
        self.admin.batch_execute(&advance).await.unwrap();
    }
}

#[async_trait]
impl Durable for Pg {
    async fn reopen(&self) {
        self.set(None);
        self.set(Some(self.open().await));
    }
}

#[async_trait]
impl Restorable for Pg {
    async fn back_up(&self) {
        let file = self.backups.path().join("dump");
        let _ = fs::remove_file(&file);
        let written = backup(&self.options, &file).await.unwrap();
        assert!(matches!(written, Backup::Written), "{written:?}");
    }

    async fn restore(&self) {
        self.drop_tables().await;
        restore(servers::postgres(), "postgres", &self.backups.path().join("dump"));
        after_restore(&self.options).await.unwrap();
        self.set(Some(self.open().await));
    }

    async fn replace_with_empty(&self) {
        self.drop_tables().await;
        self.set(Some(self.open().await));
    }
}

/// Runs `pg_restore` into a database that already has the schema of the dump.
pub(crate) fn restore(server: &Postgres, database: &str, file: &Path) {
    let mut restore = Command::new("pg_restore");
    restore.arg("--exit-on-error").arg(format!("--dbname={}", server.url(database))).arg(file);
    let output = restore.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
