//! The other end: a consumer whose inbox removes repeats by the message id, in the transaction of
//! what it writes.

use rusqlite::Connection;
use semel::{
    Outcome,
    core::{Caller, Key, Scope},
    transactional::InTransaction,
};
use semel_sqlite::transactional::{self, SqliteUserTransaction};

/// A consumer with a database of its own.
#[derive(Debug)]
pub(crate) struct Consumer {
    connection: Connection,
    pub(crate) repeats: u32,
}

impl Consumer {
    pub(crate) fn new() -> Self {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE effects (key TEXT, number INTEGER)").unwrap();
        transactional::create_table(&connection).unwrap();
        Self { connection, repeats: 0 }
    }

    /// Handles a message, unless it was handled before.
    pub(crate) fn handle(&mut self, id: &str, key: &str, number: u32) {
        let transaction = self.connection.transaction().unwrap();
        let (scope, caller) = (Scope::new("inbox").unwrap(), Caller::new("outbox").unwrap());
        let handled = InTransaction::new(scope, caller, Key::new(id).unwrap()).run_now(
            &mut SqliteUserTransaction::of(&transaction),
            |db| {
                db.execute("INSERT INTO effects VALUES (?, ?)", (key, number))?;
                Ok(())
            },
        );
        self.repeats += u32::from(matches!(handled.unwrap(), Outcome::Replayed(())));
        transaction.commit().unwrap();
    }

    /// The numbers in the order of their effects, by key.
    pub(crate) fn effects(&self, key: &str) -> Vec<u32> {
        let mut effects = self
            .connection
            .prepare("SELECT number FROM effects WHERE key = ? ORDER BY rowid")
            .unwrap();
        effects.query_map([key], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    /// Asserts that each number had one effect, in the order of its key.
    pub(crate) fn assert_effects(&self, numbers: u32, keys: u32) {
        for key in 0..keys {
            let expected: Vec<u32> = (0..numbers).filter(|number| number % keys == key).collect();
            assert_eq!(self.effects(&format!("key-{key}")), expected, "of key {key}");
        }
    }
}
