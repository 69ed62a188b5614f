//! Schema migrations: forward only, in one transaction, by one process at a time.

use std::sync::Arc;

use semel_core::{StoreError, StoreErrorKind};
use tokio_postgres::{SimpleQueryMessage, error::SqlState};

use crate::{
    error::store_error,
    options::Options,
    session::{Session, SessionConnector},
    table_names::TableNames,
    timeline::Timeline,
};

/// Each migrates from the version before it to its own, and records that in `meta`.
const MIGRATIONS: [&str; 1] = [include_str!("../migrations/0001_records.sql")];

/// Versions up to this one were never released.
const UNRELEASED: i32 = 1;

/// The version that this program writes.
pub(crate) const VERSION: i32 = 2;

/// The versions before and after a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationReport {
    /// The version before; 0 if there were no tables.
    pub from: u32,
    /// The version now.
    pub to: u32,
}

/// The row of the table `meta`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreMeta {
    version: i32,
    oldest: i32,
    /// The identity of the store, which stays when it is renamed or moved.
    pub(crate) store: String,
    /// The latest timeline that it was used on.
    pub(crate) timeline: Option<Timeline>,
}

/// Reads the table `meta`; `None` if it does not exist.
pub(crate) async fn meta(
    session: &Session,
    names: &TableNames,
) -> Result<Option<StoreMeta>, StoreError> {
    let query = names.fill("SELECT version, oldest, store, cluster, timeline FROM {meta}");
    let rows = match session.client.simple_query(&query).await {
        Ok(rows) => rows,
        Err(error) => {
            return match error.code() {
                Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => Ok(None),
                Some(&SqlState::UNDEFINED_COLUMN) => Err(unreleased(names)),
                _ => Err(store_error(error)),
            };
        }
    };
    let read = |message: &SimpleQueryMessage| {
        let SimpleQueryMessage::Row(row) = message else { return None };
        let number = |at| row.get(at).and_then(|number| number.parse().ok());
        let timeline = number(3).zip(number(4)).map(|(cluster, number)| {
            let number = u32::try_from(number).unwrap_or(0);
            Timeline { cluster, number }
        });
        let [version, oldest] = [number(0)?, number(1)?].map(|number| i32::try_from(number).ok());
        let store = row.get(2)?.to_owned();
        Some(StoreMeta { version: version?, oldest: oldest?, store, timeline })
    };
    match rows.iter().find_map(read) {
        Some(meta) => Ok(Some(meta)),
        None => Err(StoreError::new(StoreErrorKind::Corrupt, "the table `meta` is empty")),
    }
}

/// Records the timeline that the tables are used on.
pub(crate) async fn set_timeline(
    session: &Session,
    names: &TableNames,
    Timeline { cluster, number }: Timeline,
) -> Result<(), StoreError> {
    let update = names.fill("UPDATE {meta} SET cluster = {cluster}, timeline = {number}");
    let update = update.replace("{cluster}", &cluster.to_string());
    session.simple_query(&update.replace("{number}", &number.to_string())).await.map(drop)
}

/// Makes sure that the tables exist in a usable version, and migrates if that is allowed.
pub(crate) async fn ensure(session: &Session, options: &Options) -> Result<StoreMeta, StoreError> {
    let found = meta(session, &options.names).await?;
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
    meta(session, &options.names).await?.ok_or_else(|| advice(""))
}

/// Whether the tables can be used as they are; an error if they need a newer program.
pub(crate) fn is_usable(meta: &StoreMeta) -> Result<bool, StoreError> {
    if meta.version > VERSION && meta.oldest > VERSION {
        let message = format!(
            "the tables have version {}, this program supports version {VERSION}: use a newer one",
            meta.version
        );
        return Err(StoreError::new(StoreErrorKind::Newer, message));
    }
    Ok(meta.version >= VERSION)
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
        let found = meta(session, names).await?;
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

fn unreleased(names: &TableNames) -> StoreError {
    let message = names.fill(
        "the tables were made by a version of Semel that was never released: drop {records}, \
         {meta} and {fences}, or use another schema",
    );
    StoreError::new(StoreErrorKind::Corrupt, message)
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
        script.push_str(&format!("\n-- version {}\n\n{}", at + 2, names.fill(migration)));
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
-- GRANT USAGE, UPDATE ON SEQUENCE {fences} TO …;
";
