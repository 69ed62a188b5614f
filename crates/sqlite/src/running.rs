//! The claims that this process was granted and that are in flight, as they stand in the file.
//!
//! Most claims end a moment later, in the process that made them; so their rows need not be read
//! back. What is here is true as long as nobody else has written to the file: SQLite tells that by
//! a number, and then everything is let go and read from the file again.

use std::collections::HashMap;

use rusqlite::{Connection, Result};
use semel_core::{Record, RecordId};

/// How many claims are kept; the others are read back.
const RUNNING_MAX: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct Running {
    claims: HashMap<i64, (RecordId, Record)>,
    /// Changes when another connection has written.
    version: i64,
}

impl Running {
    /// Drops everything if another process has written, and says whether that is so. To be
    /// called inside each transaction.
    pub(crate) fn check(&mut self, connection: &Connection) -> Result<bool> {
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
        if self.claims.len() < RUNNING_MAX || self.claims.contains_key(&number) {
            self.claims.insert(number, (id.clone(), record));
        }
    }

    pub(crate) fn remove(&mut self, number: i64) {
        self.claims.remove(&number);
    }

    /// After a batch was undone nothing here is certain, nor what it made of others' writes.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
