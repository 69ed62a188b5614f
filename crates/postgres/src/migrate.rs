//! Schema migrations: forward only, in one transaction, by one process at a time.

use std::sync::Arc;

use semel_core::{StoreError, StoreErrorKind};
use tokio_postgres::SimpleQueryMessage;

use crate::{
    error::store_error,
    meta::{self, StoreMeta, UNRELEASED, VERSION, is_usable, unreleased},
    options::Options,
    session::{Session, SessionConnector},
    table_names::TableNames,
};

/// Each migrates from the version before it to its own, and records that in `meta`.
const MIGRATIONS: [&str; 1] = [include_str!("../migrations/0001_records.sql")];

/// The versions before and after a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationReport {
    /// The version before; 0 if there were no tables.
    pub from: u32,
    /// The version now.
    pub to: u32,
}

impl Options {
    /// Migrates the schema. Many processes may do this at once.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached or the role may not change the schema.
    pub async fn migrate(&self) -> Result<MigrationReport, StoreError> {
        run(self).await
    }

    /// The script that [`migrate`](Self::migrate) runs on an empty database, for review or for
    /// another tool.
    #[must_use]
    pub fn migrations(&self) -> String {
        script(&self.names)
    }

    /// Runs a script in one transaction. Its unqualified names are those of the schema of this URL,
    /// which is created if it is missing.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached or the role may not do what the script does.
    pub async fn run_in_schema(&self, script: &str) -> Result<(), StoreError> {
        let connector = Arc::new(SessionConnector::new(self.clone())?);
        let session = connector.open_first().await?;
        let script = self.in_schema(script);
        session.client.batch_execute(&script).await.map_err(store_error)
    }

    /// The script that [`run_in_schema`](Self::run_in_schema) runs.
    #[must_use]
    pub fn in_schema(&self, script: &str) -> String {
        // Temporary tables come last, so that none replaces a table of the schema.
        let path = self.names.fill("\nSET LOCAL search_path = {schema}, pg_temp;\n\n");
        ["BEGIN;\n\n", &self.names.fill(SCHEMA), &path, script, "\nCOMMIT;\n"].concat()
    }

    /// The schema of the tables.
    #[must_use]
    pub fn schema(&self) -> &str {
        self.names.schema()
    }
}

/// Makes sure that the tables exist in a usable version, and migrates if that is allowed.
pub(crate) async fn ensure(session: &Session, options: &Options) -> Result<StoreMeta, StoreError> {
    let found = meta::read(&session.client, &options.names).await?;
    if let Some(meta) = found.as_ref()
        && is_usable(meta)?
    {
        return Ok(meta.clone());
    }
    let what = match &found {
        None => "the tables do not exist".to_owned(),
        Some(meta) => format!("the tables have version {}, not {VERSION}", meta.version),
    };
    let advice = |why: &str| {
        let (display_url, schema) = (options.display_url(), options.names.schema());
        let message = format!(
            "{display_url}: {what} in the schema `{schema}`{why}: run `semel migrate` as a role \
             that may create them there"
        );
        StoreError::new(StoreErrorKind::Unavailable, message)
    };
    if !options.migrate {
        return Err(advice(", and `migrate=off` forbids to create or change them"));
    }
    match apply(session, &options.names).await {
        Ok(_) => {}
        Err(error) if error.kind() == StoreErrorKind::ReadOnly => {
            return Err(advice(", and this role may not create them").because(error));
        }
        Err(error) => return Err(error),
    }
    meta::read(&session.client, &options.names).await?.ok_or_else(|| advice(""))
}

/// Connects and migrates the schema.
pub(crate) async fn run(options: &Options) -> Result<MigrationReport, StoreError> {
    let connector = Arc::new(SessionConnector::new(options.clone())?);
    let session = connector.open_first().await?;
    apply(&session, &options.names).await
}

/// Migrates under an advisory lock. Other processes wait for it, and find the schema up to date.
async fn apply(session: &Session, names: &TableNames) -> Result<MigrationReport, StoreError> {
    let begin =
        names.fill("BEGIN; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock({lock})");
    session.client.batch_execute(&begin).await.map_err(store_error)?;
    let applied = apply_locked(session, names).await;
    let end = if applied.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = session.client.batch_execute(end).await.map_err(store_error);
    applied.and_then(|migrated| ended.map(|()| migrated))
}

async fn apply_locked(
    session: &Session,
    names: &TableNames,
) -> Result<MigrationReport, StoreError> {
    // An error would end the transaction, so the existence of the table is checked first. This
    // reads the catalog itself: a session caches failed lookups of names, also while it waits for
    // the lock.
    let exists = names.fill(
        "SELECT c.oid FROM pg_catalog.pg_class AS c \
         JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
         WHERE n.nspname = trim('\"' FROM {schema_text}) AND c.relname = '{prefix}meta'",
    );
    let rows = session.client.simple_query(&exists).await.map_err(store_error)?;
    let there = rows
        .iter()
        .any(|message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0).is_some()));
    let from = if there {
        let found = meta::read(&session.client, names).await?;
        found.as_ref().map(is_usable).transpose()?;
        found.map_or(0, |meta| meta.version)
    } else {
        0
    };
    if there && from <= UNRELEASED {
        return Err(unreleased(names));
    }
    let found = u32::try_from(from).unwrap_or(0);
    let applied = usize::try_from((from - UNRELEASED).max(0)).unwrap_or(usize::MAX);
    for migration in MIGRATIONS.iter().skip(applied) {
        if !there {
            let schema = names.fill(SCHEMA);
            session.client.batch_execute(&schema).await.map_err(store_error)?;
        }
        session.client.batch_execute(&names.fill(migration)).await.map_err(store_error)?;
    }
    Ok(MigrationReport { from: found, to: u32::try_from(from.max(VERSION)).unwrap_or(0) })
}

/// Creates the schema only if it is missing: a role may use a schema without the right to create
/// one.
const SCHEMA: &str = "DO $$
BEGIN
    IF to_regnamespace({schema_text}) IS NULL THEN
        EXECUTE 'CREATE SCHEMA {schema}';
    END IF;
END
$$;
";

/// The script that creates the tables, for an operator to read or run.
pub(crate) fn script(names: &TableNames) -> String {
    let mut script = names.fill("BEGIN;\nSELECT pg_advisory_xact_lock({lock});\n\n");
    script.push_str(&names.fill(SCHEMA));
    for (at, migration) in MIGRATIONS.iter().enumerate() {
        script.push_str(&format!("\n-- version {}\n\n{}", at + 3, names.fill(migration)));
    }
    script.push_str("\nCOMMIT;\n");
    script.push_str(&names.fill(GRANTS));
    script
}

/// The grants for a role that does not own the tables.
const GRANTS: &str = "
-- Grants for a role that uses the tables without owning them:
-- GRANT USAGE ON SCHEMA {schema} TO …;
-- GRANT SELECT, INSERT, UPDATE, DELETE ON {records} TO …;
-- GRANT SELECT, UPDATE ON {meta} TO …;
-- GRANT SELECT, INSERT, UPDATE, DELETE ON {metadata} TO …;
-- GRANT SELECT, INSERT, UPDATE, DELETE ON {limit_counters} TO …;
-- GRANT USAGE, UPDATE ON SEQUENCE {fences} TO …;
";
