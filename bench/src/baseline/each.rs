//! SQLite in its usual form: a table with a primary key, and one transaction for each operation.
//! One connection, because SQLite has one write lock.

use std::{
    path::Path,
    sync::mpsc::{self, Receiver, Sender},
};

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use rusqlite::{Connection, params};
use semel_core::{Answer, Claim, Fence, OwnerToken, RecordId, time::millis};
use tokio::sync::oneshot;

use crate::load::Subject;

/// A thread that executes one statement after the other, each durable before the next.
#[derive(Debug)]
pub(crate) struct OneByOne {
    commands: Sender<(TransactionCommand, oneshot::Sender<rusqlite::Result<usize>>)>,
}

#[derive(Debug)]
enum TransactionCommand {
    Claim(Box<Claim>),
    Complete(RecordId, OwnerToken, Answer),
}

impl OneByOne {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA page_size = 4096; PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY; \
             PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
             CREATE TABLE records (scope TEXT NOT NULL, caller TEXT NOT NULL, key TEXT NOT NULL, \
             fingerprint BLOB NOT NULL, owner BLOB NOT NULL, lease INTEGER NOT NULL, \
             retention INTEGER NOT NULL, fence INTEGER NOT NULL, about TEXT NOT NULL, \
             node TEXT NOT NULL, answer BLOB, PRIMARY KEY (scope, caller, key)) STRICT",
        )?;
        let (commands, receiver) = mpsc::channel();
        std::thread::Builder::new()
            .name("one-by-one".to_owned())
            .spawn(move || run(&connection, &receiver))?;
        Ok(Self { commands })
    }

    async fn send(&self, command: TransactionCommand) -> anyhow::Result<()> {
        let (reply, reply_rx) = oneshot::channel();
        self.commands.send((command, reply)).ok().context("the thread has stopped")?;
        ensure!(reply_rx.await?? == 1, "a row was not written");
        Ok(())
    }
}

fn run(
    connection: &Connection,
    receiver: &Receiver<(TransactionCommand, oneshot::Sender<rusqlite::Result<usize>>)>,
) {
    for (command, reply) in receiver {
        let _ = reply.send(execute(connection, &command));
    }
}

fn execute(connection: &Connection, command: &TransactionCommand) -> rusqlite::Result<usize> {
    let signed = |number| i64::try_from(number).unwrap_or(i64::MAX);
    match command {
        TransactionCommand::Claim(claim) => connection
            .prepare_cached(
                "INSERT INTO records (scope, caller, key, fingerprint, owner, lease, retention, \
                 fence, about, node) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 1, ?8, ?9) \
                 ON CONFLICT DO NOTHING",
            )?
            .execute(params![
                claim.id.scope.as_str(),
                claim.id.caller.as_str(),
                claim.id.key.as_str(),
                claim.fingerprint.as_bytes(),
                claim.owner.as_bytes(),
                signed(millis(claim.lease)),
                signed(millis(claim.retention)),
                claim.about.as_str(),
                claim.node.as_str(),
            ]),
        TransactionCommand::Complete(id, owner, answer) => connection
            .prepare_cached(
                "UPDATE records SET answer = ?4 \
                 WHERE scope = ?1 AND caller = ?2 AND key = ?3 AND fence = 1 AND owner = ?5 \
                 AND answer IS NULL",
            )?
            .execute(params![
                id.scope.as_str(),
                id.caller.as_str(),
                id.key.as_str(),
                &answer.as_bytes()[..],
                owner.as_bytes(),
            ]),
    }
}

#[async_trait]
impl Subject for OneByOne {
    async fn claim(&self, claim: &Claim) -> anyhow::Result<Fence> {
        self.send(TransactionCommand::Claim(Box::new(claim.clone()))).await?;
        Fence::new(1).context("one is not zero")
    }

    async fn complete(&self, claim: &Claim, _: Fence, answer: &Answer) -> anyhow::Result<()> {
        self.send(TransactionCommand::Complete(claim.id.clone(), claim.owner, answer.clone())).await
    }
}
