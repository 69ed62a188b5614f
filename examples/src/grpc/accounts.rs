//! The accounts, in a database of the bank's own.
//!
//! A transfer is one transaction, and the key is in it. So a run that comes after another one finds
//! what that one did, and a transfer with an unknown outcome can safely run again. Where
//! the work and its record cannot be one transaction there must be a fence instead: see the
//! [checkout](crate::checkout).

use std::path::Path;

use rusqlite::{ErrorCode, OptionalExtension, Transaction, params};
use semel::core::RecordId;
use tonic::Status;

use super::{Receipt, Transfer};
use crate::database::Database;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, cents INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS transfers (
        number INTEGER PRIMARY KEY,
        caller TEXT NOT NULL,
        key TEXT NOT NULL,
        payer TEXT NOT NULL,
        payee TEXT NOT NULL,
        cents INTEGER NOT NULL,
        left_cents INTEGER NOT NULL,
        UNIQUE (caller, key)
    ) STRICT;
";

const DONE: &str = "
    SELECT number, left_cents, (payer, payee, cents) = (?3, ?4, ?5)
    FROM transfers WHERE (caller, key) = (?1, ?2)";

const NOTE: &str = "
    INSERT INTO transfers (caller, key, payer, payee, cents, left_cents)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// The accounts. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Accounts(Database);

/// Why no money was moved.
#[derive(Debug, thiserror::Error)]
pub enum AccountsError {
    /// There is no such account.
    #[error("there is no account {0}")]
    NoAccount(String),
    /// The account does not have that much.
    #[error("the account {account} has only {cents} cents")]
    TooPoor {
        /// Who should pay.
        account: String,
        /// What is there.
        cents: i64,
    },
    /// The key names another transfer, which may be older than what the layer remembers.
    #[error("this key was used for another transfer")]
    KeyReused,
    /// The database failed.
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
    /// The thread that writes is gone.
    #[error(transparent)]
    Thread(#[from] tokio::task::JoinError),
}

impl From<AccountsError> for Status {
    /// The code decides what becomes of the key.
    fn from(error: AccountsError) -> Self {
        let text = error.to_string();
        match error {
            // Final: a repeat gets the same answer, though the account may be richer by then.
            AccountsError::NoAccount(_) => Self::not_found(text),
            AccountsError::TooPoor { .. } | AccountsError::KeyReused => {
                Self::failed_precondition(text)
            }
            // Another writer holds the lock for too long. Nothing happened: a retry runs.
            AccountsError::Database(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) =>
            {
                Self::unavailable(text)
            }
            // A commit may have failed after the fact. `UNKNOWN` promises nothing.
            AccountsError::Database(_) | AccountsError::Thread(_) => Self::unknown(text),
        }
    }
}

impl Accounts {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    ///
    /// If it cannot be opened or is something else.
    pub fn at(path: &Path) -> rusqlite::Result<Self> {
        Database::open(path, SCHEMA).map(Self)
    }

    /// Opens an account with this much, or puts that much into it.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn deposit(&self, name: &str, cents: u32) -> Result<(), AccountsError> {
        let name = name.to_owned();
        self.0.write(move |writing| add(writing, &name, cents.into())).await
    }

    /// What is there.
    ///
    /// # Errors
    ///
    /// If there is no such account, or the database fails.
    pub async fn balance(&self, name: &str) -> Result<i64, AccountsError> {
        let name = name.to_owned();
        self.0.write(move |reading| balance(reading, &name)).await
    }

    /// Moves money from one account to another, unless this operation has done so before. A receipt
    /// is for the transfer that was ordered, and for no other under the same key.
    ///
    /// # Errors
    ///
    /// If nothing was moved; see [`AccountsError`].
    pub async fn transfer(&self, id: &RecordId, order: Transfer) -> Result<Receipt, AccountsError> {
        // Two callers may choose the same key.
        let (caller, key) = (id.caller.as_str().to_owned(), id.key.clone());
        self.0
            .write(move |writing| {
                let (from, to, cents) = (&order.from, &order.to, order.cents);
                let named = params![caller, key.as_str(), from, to, cents];
                let done = writing.query_row(DONE, named, |row| {
                    let receipt = Receipt { number: row.get(0)?, left_cents: row.get(1)? };
                    Ok((receipt, row.get(2)?))
                });
                match done.optional()? {
                    Some((receipt, true)) => return Ok(receipt),
                    // The layer forgets after its retention, and this database does not.
                    Some((_, false)) => return Err(AccountsError::KeyReused),
                    None => {}
                }
                let left_cents = transfer(writing, &order)?;
                let note = params![caller, key.as_str(), from, to, cents, left_cents];
                writing.execute(NOTE, note)?;
                Ok(Receipt { number: writing.last_insert_rowid(), left_cents })
            })
            .await
    }
}

/// Returns what the one who pays has left.
fn transfer(writing: &Transaction<'_>, order: &Transfer) -> Result<i64, AccountsError> {
    balance(writing, &order.to)?;
    let cents = balance(writing, &order.from)?;
    if cents < i64::from(order.cents) {
        return Err(AccountsError::TooPoor { account: order.from.clone(), cents });
    }
    add(writing, &order.from, -i64::from(order.cents))?;
    add(writing, &order.to, order.cents.into())?;
    balance(writing, &order.from)
}

fn balance(reading: &Transaction<'_>, name: &str) -> Result<i64, AccountsError> {
    let cents = "SELECT cents FROM accounts WHERE name = ?1";
    let cents = reading.query_row(cents, [name], |row| row.get(0)).optional()?;
    cents.ok_or_else(|| AccountsError::NoAccount(name.to_owned()))
}

fn add(writing: &Transaction<'_>, name: &str, cents: i64) -> Result<(), AccountsError> {
    let add = "INSERT INTO accounts (name, cents) VALUES (?1, ?2)
               ON CONFLICT (name) DO UPDATE SET cents = cents + excluded.cents";
    writing.execute(add, params![name, cents])?;
    Ok(())
}
