//! A real PostgreSQL for one part of the benchmark: durable as a store of money has it, and
//! otherwise set up as an operator would for many small writes.

use anyhow::Context as _;
use semel_postgres::PostgresStore;
use semel_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};

use crate::{
    load,
    report::Report,
    settings::{progress, progress_end},
};

const DATABASE: &str = "postgres";

/// On top of the defaults. Nothing here weakens durability. Less frequent checkpoints keep one of
/// them from falling into a single cell of many; without standbys a table can be filled past the
/// log; and the server looks for something to vacuum as often as hours become seconds here.
const SETTINGS: [(&str, &str); 7] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("shared_buffers", "1GB"),
    ("max_wal_size", "8GB"),
    ("wal_level", "minimal"),
    ("max_wal_senders", "0"),
    ("autovacuum_naptime", "5s"),
];

/// A server that runs as long as this value lives.
#[derive(Debug)]
pub(crate) struct PostgresServer {
    postgres: Postgres,
}

/// How old the records are that a table is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    Fresh,
    Expired,
}

/// What a table occupies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) records: f64,
    pub(crate) table_megabytes: f64,
    pub(crate) index_megabytes: f64,
}

impl PostgresServer {
    pub(crate) fn start() -> Self {
        progress("starting PostgreSQL");
        let postgres = Postgres::start(&SETTINGS);
        progress_end();
        Self { postgres }
    }

    pub(crate) fn url(&self) -> String {
        self.postgres.url(DATABASE)
    }

    /// A store in a schema of its own.
    pub(crate) async fn store(&self, schema: &str) -> anyhow::Result<PostgresStore> {
        self.postgres.sql(DATABASE, &format!("CREATE SCHEMA IF NOT EXISTS {schema}"));
        Ok(PostgresStore::connect(&format!("{}?schema={schema}", self.url())).await?)
    }

    /// Fills the table of a store with completed records, by SQL and in one transaction that made
    /// the table empty, so that nothing of it goes through the log: millions are made in a minute.
    ///
    /// Digests and expiries rise from row to row, so that indexes are written in order; they end up
    /// fuller than if they had been filled at random, and new keys split their pages more often.
    pub(crate) fn fill(&self, schema: &str, count: usize, age: Age) {
        progress(&format!("filling a table with {count} records"));
        let begin = match age {
            Age::Fresh => "now() + interval '1 hour'",
            Age::Expired => "now() - interval '2 days'",
        };
        let (about, node) = (load::ABOUT, load::NODE);
        self.postgres.sql(
            DATABASE,
            &format!(
                "BEGIN; TRUNCATE {schema}.semel_records; \
                 INSERT INTO {schema}.semel_records (digest, scope, caller, key, fingerprint, \
                 owner, fence, attempt, on_unknown, retention, claimed_at, expires_at, ended_at, \
                 state, about, node, captured, answer) \
                 SELECT (lpad(to_hex(i * (4294967295 / {count})), 8, '0') || \
                 substr(md5(i::text), 9))::uuid, 'payments', 'merchant-71', \
                 md5(i::text)::uuid::text, '\\x01'::bytea || sha256(int8send(i)), \
                 md5('owner' || i)::uuid, nextval('{schema}.semel_fences'), 1, 'hold', 86400000, \
                 now() - interval '1 day', {begin} + i * interval '1 ms', \
                 now() - interval '1 day', 'completed', '{about}', '{node}', '', \
                 decode(repeat(md5(i::text), 32), 'hex') \
                 FROM generate_series(1::bigint, {count}) i; COMMIT"
            ),
        );
        self.postgres.sql(DATABASE, &format!("VACUUM ANALYZE {schema}.semel_records"));
        self.postgres.sql(DATABASE, "CHECKPOINT");
        progress_end();
    }

    pub(crate) fn sizes(&self, schema: &str) -> anyhow::Result<Sizes> {
        let table = format!("'{schema}.semel_records'");
        let row = self.postgres.sql(
            DATABASE,
            &format!(
                "SELECT count(*), pg_table_size({table}), pg_indexes_size({table}) \
                 FROM {schema}.semel_records"
            ),
        );
        let mut numbers = row.split('|').map(str::parse::<f64>);
        let mut next = || numbers.next().context("three numbers")?.context("a number");
        let records = next()?;
        Ok(Sizes { records, table_megabytes: next()? / 1e6, index_megabytes: next()? / 1e6 })
    }

    /// A description of the server.
    pub(crate) fn describe(&self) -> String {
        let version = self.postgres.sql(DATABASE, "SHOW server_version");
        let settings = SETTINGS.map(|(name, value)| format!("{name}={value}")).join(", ");
        format!("PostgreSQL {version} with {settings}.")
    }
}

/// A separate connection, driven by the current runtime.
pub(crate) async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

impl Sizes {
    /// Adds what a record occupies.
    pub(crate) fn report(&self, report: &mut Report, part: &'static str) {
        let per_record = |megabytes: f64| megabytes * 1e6 / self.records;
        report.line(part, "table per record", "bytes", &[per_record(self.table_megabytes)]);
        report.line(part, "indexes per record", "bytes", &[per_record(self.index_megabytes)]);
    }
}
