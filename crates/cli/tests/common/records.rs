//! Where the records of the gateways under test live: in a SQLite file beside them, or, with
//! `SEMEL_TEST_STORE=postgres` or `pgbouncer`, in a schema of their own on a real PostgreSQL.

use std::{env, fs::File, path::Path, sync::LazyLock};

use semel::core::Store;
use semel_postgres::PostgresStore;
use semel_sqlite::SqliteStore;
use semel_testkit::{
    program::CommandOutput,
    servers::{self, PgBouncer},
};

use super::semel_command;

/// The store of a setup.
#[derive(Clone, Debug)]
pub(crate) enum Records {
    Sqlite,
    /// At this URL.
    Postgres(String),
}

/// Keeps every process from writing to a store for as long as it lives.
#[derive(Debug)]
pub(crate) enum WriteBlock {
    /// The turn to write to a SQLite store.
    Turn(File),
    /// A session with a lock.
    Lock(tokio_postgres::Client),
}

/// Whether records are in a file. What is about that file has nothing to test elsewhere.
pub(crate) fn on_sqlite() -> bool {
    env::var_os("SEMEL_TEST_STORE").is_none()
}

/// The URL of an empty store on the shared server. It is made as an operator makes one: a gateway
/// does not make it beside those of other tests.
pub(crate) fn fresh_postgres() -> String {
    let url = servers::postgres().fresh_schema_url();
    let folder = tempfile::tempdir().unwrap();
    let mut migrate = semel_command();
    migrate.args(["migrate", "--new-store", "--store", &url]).current_dir(folder.path());
    CommandOutput::of(&mut migrate).assert_exit(0);
    url
}

/// Takes the turn to write to a SQLite store, as a process does that stops in its turn.
pub(crate) fn hold_turn(database: &Path) -> File {
    let mut turn = database.as_os_str().to_owned();
    turn.push("-turn");
    let turn = File::options().append(true).open(turn).unwrap();
    turn.lock().unwrap();
    turn
}

impl Records {
    /// A new, empty store.
    pub(crate) fn fresh() -> Self {
        match env::var_os("SEMEL_TEST_STORE").as_ref().map(|store| store.to_str()) {
            None => Self::Sqlite,
            Some(Some("postgres")) => Self::Postgres(fresh_postgres()),
            Some(Some("pgbouncer")) => {
                static POOLER: LazyLock<PgBouncer> =
                    LazyLock::new(|| PgBouncer::start(servers::postgres()));
                let url = fresh_postgres();
                let (_, parameters) = url.split_once('?').unwrap();
                Self::Postgres(format!("{}?{parameters}", POOLER.url("postgres")))
            }
            Some(other) => panic!("SEMEL_TEST_STORE is postgres or pgbouncer, not {other:?}"),
        }
    }

    /// The first line of a configuration.
    pub(crate) fn line(&self) -> &'static str {
        match self {
            Self::Sqlite => "store = \"sqlite:semel.db\"",
            // Which store it is was said on the command line.
            Self::Postgres(_) => "secret_env = \"SEMEL_SECRET\"",
        }
    }

    /// What leads a command there that would go to `semel.db`.
    pub(crate) fn arguments(&self) -> Vec<String> {
        match self {
            Self::Sqlite => Vec::new(),
            Self::Postgres(url) => vec!["--store".to_owned(), url.clone()],
        }
    }

    pub(crate) async fn open(&self, file: &Path) -> Box<dyn Store> {
        match self {
            Self::Sqlite => Box::new(SqliteStore::open(file).unwrap()),
            Self::Postgres(url) => Box::new(PostgresStore::connect(url).await.unwrap()),
        }
    }

    pub(crate) async fn block_writes(&self, file: &Path) -> WriteBlock {
        match self {
            Self::Sqlite => WriteBlock::Turn(hold_turn(file)),
            Self::Postgres(url) => {
                let (url, schema) = url.split_once("?schema=").unwrap();
                let (client, connection) =
                    tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                let lock = format!("BEGIN; LOCK TABLE {schema}.semel_records");
                client.batch_execute(&lock).await.unwrap();
                WriteBlock::Lock(client)
            }
        }
    }
}
