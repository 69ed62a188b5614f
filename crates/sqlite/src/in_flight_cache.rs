//! A cache of the in-flight claims of this process, as they are in the file.
//!
//! Most claims end soon, in the process that made them, so their rows need not be read back. The
//! cache is valid until another process writes to the file. SQLite's `data_version` shows that, and
//! the cache is cleared.

use hashbrown::HashMap;
use rusqlite::{Connection, Result};
use semel_core::{Record, RecordId};

/// How many claims are cached; the others are read from the file.
const CACHED_CLAIMS_MAX: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct InFlightCache {
    claims: HashMap<i64, (RecordId, Record)>,
    /// SQLite's `data_version`: it changes when another connection has written.
    version: i64,
}

impl InFlightCache {
    /// Clears the cache if another process has written, and returns whether it has. Call it inside
    /// each transaction.
    pub(crate) fn clear_if_changed(&mut self, connection: &Connection) -> Result<bool> {
        let version = connection
            .prepare_cached("PRAGMA data_version")?
            .query_row([], |row| row.get::<_, i64>(0))?;
        let changed = version != self.version;
        if changed {
            self.claims.clear();
            self.version = version;
        }
        Ok(changed)
    }

    pub(crate) fn get(&self, number: i64) -> Option<&(RecordId, Record)> {
        self.claims.get(&number)
    }

    pub(crate) fn insert(&mut self, number: i64, id: &RecordId, record: Record) {
        if self.claims.len() < CACHED_CLAIMS_MAX || self.claims.contains_key(&number) {
            self.claims.insert(number, (id.clone(), record));
        }
    }

    pub(crate) fn remove(&mut self, number: i64) {
        self.claims.remove(&number);
    }

    /// Clears the cache after a rollback. The version is reset too, because the batch may have read
    /// writes of others.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
