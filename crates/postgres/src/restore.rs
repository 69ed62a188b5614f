//! What has to be done to a store that was restored from a backup, before anybody uses it.

use std::sync::Arc;

use semel_core::{StoreError, StoreErrorKind};
use tokio_postgres::SimpleQueryMessage;

use crate::{
    error::{damaged, store_error},
    migrate,
    options::Options,
    session::Connector,
    statements,
};

/// What [`after_restore`] changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The identity that the store had. Caches and gateways that know it do not fit any more.
    pub store_before: String,
    /// The identity that it has now.
    pub store_after: String,
    /// The epoch that it had.
    pub epoch_before: u64,
    /// The epoch that it has now.
    pub epoch_after: u64,
    /// The highest fence that the backup knew.
    pub fence_before: u64,
    /// The lower bound of fences from now on: above all that were issued after the backup.
    pub fence_after: u64,
    /// How many records were in flight when the backup was made. Their outcome is unknown: under
    /// `hold` they are held when their leases end.
    pub in_flight: u64,
}

/// One transaction. The wall clock in microseconds exceeds every fence and every epoch that was
/// reached before now, also those that the backup does not know.
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

/// Makes a restored store fit for use: it gets another identity and a higher epoch, so that no
/// cache from before is believed; the fences go on above all that were ever issued; and the
/// timeline of its server counts from now on.
///
/// It may be run more than once. Stop all gateways before.
///
/// # Errors
///
/// If the database cannot be reached, has no store of this version, or the role may not change it.
pub async fn after_restore(options: &Options) -> Result<Restored, StoreError> {
    let session = Arc::new(Connector::new(options.clone())?).open_first().await?;
    let names = &options.names;
    match migrate::meta(&session, names).await? {
        Some(meta) if migrate::is_usable(&meta)? => {}
        Some(_) => return Err(unfit(options, "the tables are of an older version")),
        None => return Err(unfit(options, "the tables are not there")),
    }
    let timeline = session.timeline.map_or_else(
        || "cluster = NULL, timeline = NULL".to_owned(),
        |timeline| format!("cluster = {}, timeline = {}", timeline.cluster, timeline.number),
    );
    let script = statements::fill(RESTORE, names).replace("{timeline}", &timeline);
    // It goes through all records, which may take its time.
    let answer = session.client.simple_query(&script).await.map_err(store_error)?;
    read(&answer).ok_or_else(|| damaged("what must be"))
}

fn unfit(options: &Options, what: &str) -> StoreError {
    let (place, schema) = (options.place(), options.names.schema());
    let message = format!("{place}: {what} in the schema `{schema}`: run `semel migrate` first");
    StoreError::new(StoreErrorKind::Unavailable, message)
}

/// Reads the rows of the script, in their order.
fn read(answer: &[SimpleQueryMessage]) -> Option<Restored> {
    let mut rows = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        SimpleQueryMessage::CommandComplete(_) | SimpleQueryMessage::RowDescription(_) | _ => None,
    });
    let (_lock, before) = (rows.next()?, rows.next()?);
    let (known, after) = (rows.next()?, rows.next()?);
    Some(Restored {
        store_before: before.get(0)?.to_owned(),
        store_after: after.get(0)?.to_owned(),
        epoch_before: before.get(1)?.parse().ok()?,
        epoch_after: after.get(1)?.parse().ok()?,
        fence_before: known.get(0)?.parse().ok()?,
        fence_after: known.get(2)?.parse().ok()?,
        in_flight: known.get(1)?.parse().ok()?,
    })
}
