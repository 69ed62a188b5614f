//! The receiver of messages, with an inbox: each message is in its file once, however often it is
//! delivered.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;
use rusqlite::Connection;
use semel::{
    core::{Caller, Key, Scope},
    transactional::InTransaction,
};
use semel_outbox::{Delivery, OutboxMessage, Sink};
use semel_sqlite::transactional::{self, SqliteUserTransaction};

use crate::database::BUSY;

/// A mailbox in a file of its own.
#[derive(Debug)]
pub struct Mailbox(Mutex<Connection>);

impl Mailbox {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.execute_batch("CREATE TABLE IF NOT EXISTS mail (id TEXT, key TEXT)")?;
        transactional::create_table(&connection)?;
        Ok(Self(Mutex::new(connection)))
    }

    /// Puts a message in, unless it is in there already.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn put(&self, id: &str, key: &str) -> anyhow::Result<()> {
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = connection.transaction()?;
        InTransaction::new(Scope::new("inbox")?, Caller::new("payments")?, Key::new(id)?)
            .run_now(&mut SqliteUserTransaction::of(&transaction), |db| {
                Ok(db.execute("INSERT INTO mail VALUES (?, ?)", [id, key]).map(drop)?)
            })?;
        Ok(transaction.commit()?)
    }
}

#[async_trait]
impl Sink for Mailbox {
    async fn deliver(&self, message: &OutboxMessage) -> Delivery {
        let key = message.key.as_deref().unwrap_or_default();
        match self.put(&message.id.to_string(), key) {
            Ok(()) => Delivery::Delivered,
            Err(error) => Delivery::Unavailable { reason: format!("{error:#}"), after: None },
        }
    }

    fn concurrency(&self) -> usize {
        1
    }
}
