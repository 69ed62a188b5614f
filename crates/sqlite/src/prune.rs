//! Drops index entries whose rows other processes have deleted.
//!
//! A process removes its own deletions from its index. A counter in the file shows the deletions of
//! others; when there are many, the pruner walks the index, one shard between two batches.

use rusqlite::{Connection, Result};

use crate::index::ClaimIndex;

/// How many calls of [`Pruner::step`] pass between two reads of the counter.
const CALLS_PER_CHECK: u32 = 256;

/// Below this many deletions a walk over the index is not worthwhile.
const FOREIGN_DELETIONS_MIN: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Pruner {
    /// How many deletions the index reflects.
    deletions_applied: i64,
    calls: u32,
    next_shard: Option<usize>,
}

impl Pruner {
    /// For an index that was just loaded.
    pub(crate) fn new(connection: &Connection) -> Result<Self> {
        Ok(Self { deletions_applied: deleted(connection)?, ..Self::default() })
    }

    /// Counts rows that this process has deleted.
    pub(crate) fn add_own_deletions(&mut self, deletions: i64) {
        self.deletions_applied = self.deletions_applied.saturating_add(deletions);
    }

    /// Does a small part of the work, between two batches.
    pub(crate) fn step(&mut self, connection: &Connection, index: &ClaimIndex) -> Result<()> {
        if let Some(shard) = self.next_shard {
            let mut exists = connection.prepare_cached("SELECT 1 FROM claims WHERE id = ?1")?;
            let pruned = index.prune(shard, |number| exists.exists([number]))?;
            self.next_shard = pruned.then_some(shard + 1);
            return Ok(());
        }
        self.calls += 1;
        if self.calls < CALLS_PER_CHECK {
            return Ok(());
        }
        self.check(connection, index)
    }

    /// Starts a walk if there is enough to prune.
    pub(crate) fn check(&mut self, connection: &Connection, index: &ClaimIndex) -> Result<()> {
        self.calls = 0;
        let deleted = deleted(connection)?;
        let foreign =
            usize::try_from(deleted.saturating_sub(self.deletions_applied)).unwrap_or_default();
        if self.next_shard.is_none() && foreign > FOREIGN_DELETIONS_MIN && foreign > index.len() / 2
        {
            self.deletions_applied = deleted;
            self.next_shard = Some(0);
        }
        Ok(())
    }
}

fn deleted(connection: &Connection) -> Result<i64> {
    let deleted = "SELECT value FROM meta WHERE name = 'deleted'";
    connection.prepare_cached(deleted)?.query_row([], |row| row.get(0))
}
