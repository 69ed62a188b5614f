//! Prepares a store that was restored from a backup for use.

use std::sync::Arc;

use semel_core::{StoreError, StoreErrorKind};
use tokio_postgres::SimpleQueryMessage;

use crate::{
    error::{corrupt, store_error},
    meta,
    options::Options,
    session::SessionConnector,
    statements,
};

/// The changes that [`after_restore`] made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PgRestoreReport {
    /// The former identity of the store. Caches and gateways with this identity no longer match.
    pub store_before: String,
    /// The new identity.
    pub store_after: String,
    /// The former epoch.
    pub epoch_before: u64,
    /// The new epoch.
    pub epoch_after: u64,
    /// The highest fence in the backup.
    pub fence_before: u64,
    /// The lower bound of fences from now on: above all fences issued after the backup.
    pub fence_after: u64,
    /// How many records were in flight when the backup was made. Their outcome is unknown: under
    /// `hold` they are held when their leases end.
    pub in_flight: u64,
}

/// One transaction. The wall clock in microseconds exceeds every earlier fence and epoch, including
/// those that the backup lacks.
const RESTORE: &str = "
BEGIN;
SELECT pg_advisory_xact_lock({lock});
SELECT store, epoch FROM {meta} FOR UPDATE;
SELECT fence, open, setval({fences_text}, greatest({micros}, fence)) AS raised
FROM (
    SELECT
        greatest(max(fence), {draw}) AS fence,
        count(*) FILTER (WHERE state = 'in_flight') AS open
    FROM {records}
) AS known;
UPDATE {meta}
SET store = gen_random_uuid(), epoch = greatest(epoch + 1, {micros}), {timeline}
RETURNING store, epoch;
COMMIT";

/// Prepares a restored store for use. It sets another identity and a higher epoch, which
/// invalidates all caches; it raises the lower bound of fences above all that were ever issued; and
/// it records the timeline of the server.
///
/// It may be run more than once. Stop all gateways first.
///
/// # Errors
///
/// If the database cannot be reached, has no store of this version, or the role may not change it.
pub async fn after_restore(options: &Options) -> Result<PgRestoreReport, StoreError> {
    let session = Arc::new(SessionConnector::new(options.clone())?).open_first().await?;
    let names = &options.names;
    match meta::read(&session.client, names).await? {
        Some(meta) if meta::is_usable(&meta)? => {}
        Some(_) => return Err(unmigrated(options, "the tables have an older version")),
        None => return Err(unmigrated(options, "the tables do not exist")),
    }
    let timeline = session.timeline.map_or_else(
        || "cluster = NULL, timeline = NULL".to_owned(),
        |timeline| format!("cluster = {}, timeline = {}", timeline.cluster, timeline.number),
    );
    let script = statements::fill(RESTORE, names).replace("{timeline}", &timeline);
    // It scans all records, so it has no timeout.
    let answer = session.client.simple_query(&script).await.map_err(store_error)?;
    read(&answer).ok_or_else(|| corrupt("an expected row"))
}

fn unmigrated(options: &Options, what: &str) -> StoreError {
    let (display_url, schema) = (options.display_url(), options.names.schema());
    let message =
        format!("{display_url}: {what} in the schema `{schema}`: run `semel migrate` first");
    StoreError::new(StoreErrorKind::Unavailable, message)
}

/// Reads the rows of the script, in their order.
fn read(answer: &[SimpleQueryMessage]) -> Option<PgRestoreReport> {
    let mut rows = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        SimpleQueryMessage::CommandComplete(_) | SimpleQueryMessage::RowDescription(_) | _ => None,
    });
    let (_lock, before) = (rows.next()?, rows.next()?);
    let (known, after) = (rows.next()?, rows.next()?);
    Some(PgRestoreReport {
        store_before: before.get(0)?.to_owned(),
        store_after: after.get(0)?.to_owned(),
        epoch_before: before.get(1)?.parse().ok()?,
        epoch_after: after.get(1)?.parse().ok()?,
        fence_before: known.get(0)?.parse().ok()?,
        fence_after: known.get(2)?.parse().ok()?,
        in_flight: known.get(1)?.parse().ok()?,
    })
}
