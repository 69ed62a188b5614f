//! The job's own database, which refuses a zombie.
//!
//! A run that was cut off for longer than its lease may wake up beside the run that took over. The
//! ledger remembers the highest fence it has seen for each key, in the transaction that writes, and
//! a lower one changes nothing.

use std::path::Path;

use rusqlite::{Transaction, params};
use semel::core::{Fence, Key};

use super::{Bill, Invoice};
use crate::database::Database;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS fences (key TEXT PRIMARY KEY, fence INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS invoices (
        key TEXT PRIMARY KEY,
        number TEXT NOT NULL UNIQUE,
        customer TEXT NOT NULL,
        month TEXT NOT NULL,
        cents INTEGER NOT NULL
    ) STRICT;
";

const RAISE_FENCE: &str = "
    INSERT INTO fences (key, fence) VALUES (?1, ?2)
    ON CONFLICT (key) DO UPDATE SET fence = excluded.fence WHERE fence <= excluded.fence";

const ENTER: &str = "
    INSERT INTO invoices (key, number, customer, month, cents) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (key) DO NOTHING";

/// The invoices. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Ledger(Database);

/// Why the ledger took nothing.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A later run owns this key.
    #[error("fence {0} is not the highest any more: a later run took over")]
    Zombie(u64),
    /// The database failed, or an amount does not fit into it.
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
    /// The thread that writes is gone.
    #[error(transparent)]
    Thread(#[from] tokio::task::JoinError),
}

impl Ledger {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    ///
    /// If it cannot be opened or is something else.
    pub fn at(path: &Path) -> rusqlite::Result<Self> {
        Database::open(path, SCHEMA).map(Self)
    }

    /// Announces a run, so that no earlier one gets through from now on.
    ///
    /// # Errors
    ///
    /// If this run is itself an earlier one, or the database fails.
    pub async fn open(&self, key: &Key, fence: Fence) -> Result<(), LedgerError> {
        let key = key.clone();
        self.0.write(move |writing| raise_fence(writing, &key, fence)).await
    }

    /// Writes the bill's invoice, unless it is there.
    ///
    /// # Errors
    ///
    /// If a later run owns the key, or the database fails.
    pub async fn enter(&self, key: &Key, fence: Fence, bill: &Bill) -> Result<(), LedgerError> {
        let (key, bill) = (key.clone(), bill.clone());
        self.0
            .write(move |writing| {
                raise_fence(writing, &key, fence)?;
                let Invoice { number, cents } = bill.invoice();
                writing.execute(
                    ENTER,
                    params![key.as_str(), number, bill.customer, bill.month, cents],
                )?;
                Ok(())
            })
            .await
    }

    /// How many invoices there are.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn count(&self) -> Result<u32, LedgerError> {
        let count = "SELECT count(*) FROM invoices";
        self.0.write(move |reading| Ok(reading.query_row(count, [], |row| row.get(0))?)).await
    }
}

fn raise_fence(writing: &Transaction<'_>, key: &Key, fence: Fence) -> Result<(), LedgerError> {
    // No store counts further than an SQL integer.
    let number = i64::try_from(fence.get()).unwrap_or(i64::MAX);
    let raised = writing.execute(RAISE_FENCE, params![key.as_str(), number])?;
    if raised == 0 { Err(LedgerError::Zombie(fence.get())) } else { Ok(()) }
}
