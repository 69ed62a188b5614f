//! The outside world: a bank that charges whenever it is asked to, and takes nothing back.

use std::{
    fs::OpenOptions,
    future::Future,
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};

use semel::core::Key;
use tokio::time::sleep;

use super::Bill;

/// A service that can charge a customer.
pub trait Bank: Send + Sync + 'static {
    /// Charges the customer. A real bank is given the key as well, so that it can tell a repeat
    /// from a new charge by itself.
    fn charge(&self, key: &Key, bill: &Bill) -> impl Future<Output = Result<(), BankError>> + Send;
}

/// Why a customer was not charged, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum BankError {
    /// A final no.
    #[error("declined: {0}")]
    Declined(String),
    /// Nothing was sent.
    #[error("the bank cannot be reached")]
    Unreachable,
    /// It was sent, and its outcome is unknown.
    #[error("the connection was lost")]
    Disconnected(#[source] io::Error),
}

/// A bank that writes each charge into a file, as a line of a statement.
#[derive(Debug)]
pub struct ToyBank {
    statement: PathBuf,
    takes: Duration,
}

impl ToyBank {
    /// A bank with this statement, where a charge takes some time, so that there is a middle in
    /// which the job can be killed.
    #[must_use]
    pub const fn new(statement: PathBuf, takes: Duration) -> Self {
        Self { statement, takes }
    }
}

impl Bank for ToyBank {
    async fn charge(&self, _key: &Key, bill: &Bill) -> Result<(), BankError> {
        if bill.customer == "mallory" {
            return Err(BankError::Declined("the card is stolen".to_owned()));
        }
        sleep(self.takes / 2).await;
        let file = OpenOptions::new().create(true).append(true).open(&self.statement);
        file.and_then(|mut file| writeln!(file, "{} {}", bill.customer, bill.cents))
            .map_err(BankError::Disconnected)?;
        sleep(self.takes / 2).await;
        Ok(())
    }
}
