//! Keeping the index small: dropping the entries whose rows other processes have deleted.
//!
//! A process takes its own deletions out of its index. Those of others it learns of by a number in
//! the file; when they have become many it goes over the index, one shard between two batches.

use rusqlite::{Connection, Result};

use crate::index::Index;

/// How many calls pass between two looks at the number.
const LOOK_EVERY: u32 = 256;

/// Below this many deletions it is not worth the walk.
const WORTH_IT: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Pruner {
    /// How many deletions the index knows of.
    known: i64,
    calls: u32,
    next_shard: Option<usize>,
}

impl Pruner {
    /// For an index that was read from the file just now.
    pub(crate) fn new(connection: &Connection) -> Result<Self> {
        Ok(Self { known: deleted(connection)?, ..Self::default() })
    }

    /// This process has deleted so many rows itself.
    pub(crate) fn knows_of(&mut self, deletions: i64) {
        self.known = self.known.saturating_add(deletions);
    }

    /// A little work between two batches.
    pub(crate) fn step(&mut self, connection: &Connection, index: &Index) -> Result<()> {
        if let Some(shard) = self.next_shard {
            let mut exists = connection.prepare_cached("SELECT 1 FROM claims WHERE id = ?1")?;
            let pruned = index.prune(shard, |number| exists.exists([number]))?;
            self.next_shard = pruned.then_some(shard + 1);
            return Ok(());
        }
        self.calls += 1;
        if self.calls < LOOK_EVERY {
            return Ok(());
        }
        self.look(connection, index)
    }

    /// Looks whether there is something to prune.
    pub(crate) fn look(&mut self, connection: &Connection, index: &Index) -> Result<()> {
        self.calls = 0;
        let deleted = deleted(connection)?;
        let foreign = usize::try_from(deleted.saturating_sub(self.known)).unwrap_or_default();
        if self.next_shard.is_none() && foreign > WORTH_IT && foreign > index.len() / 2 {
            self.known = deleted;
            self.next_shard = Some(0);
        }
        Ok(())
    }
}

fn deleted(connection: &Connection) -> Result<i64> {
    let deleted = "SELECT value FROM meta WHERE name = 'deleted'";
    connection.prepare_cached(deleted)?.query_row([], |row| row.get(0))
}
