//! The table `meta`: the version of the tables, the identity of the store, and its timeline.

use semel_core::{StoreError, StoreErrorKind};
use tokio_postgres::{Client, SimpleQueryMessage, error::SqlState};

use crate::{error::store_error, table_names::TableNames, timeline::Timeline};

/// Versions up to this one were never released.
pub(crate) const UNRELEASED: i32 = 2;

/// The version that this program writes.
pub(crate) const VERSION: i32 = 3;

/// The row of the table `meta`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreMeta {
    pub(crate) version: i32,
    oldest: i32,
    /// The identity of the store, which stays when it is renamed or moved.
    pub(crate) store: String,
    /// The latest timeline that it was used on.
    pub(crate) timeline: Option<Timeline>,
}

/// Reads the table `meta`; `None` if it does not exist.
pub(crate) async fn read(
    client: &Client,
    names: &TableNames,
) -> Result<Option<StoreMeta>, StoreError> {
    let query = names.fill("SELECT version, oldest, store, cluster, timeline FROM {meta}");
    let rows = match client.simple_query(&query).await {
        Ok(rows) => rows,
        Err(error) => {
            return match error.code() {
                Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => Ok(None),
                Some(&SqlState::UNDEFINED_COLUMN) => Err(unreleased(names)),
                _ => Err(store_error(error)),
            };
        }
    };
    let from_row = |message: &SimpleQueryMessage| {
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
    match rows.iter().find_map(from_row) {
        Some(meta) => Ok(Some(meta)),
        None => Err(StoreError::new(StoreErrorKind::Corrupt, "the table `meta` is empty")),
    }
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

pub(crate) fn unreleased(names: &TableNames) -> StoreError {
    let message = names.fill(
        "the tables were made by a version of Semel that was never released: drop {records}, \
         {meta} and {fences}, or use another schema",
    );
    StoreError::new(StoreErrorKind::Corrupt, message)
}
