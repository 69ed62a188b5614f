//! Failed batches leave no state that affects later batches.

use std::fs;

use semel_core::{Caller, Claim, Claimed, Fingerprint, Key, Occupied, OwnerToken, RecordId, Scope};
use tempfile::TempDir;

use super::*;
use crate::{
    SystemClock,
    command::SqliteCommand,
    shared::{SqliteSettings, Synchronous},
};

/// A writer without its thread: the test decides what goes into a batch.
struct TestWriter {
    folder: TempDir,
    writer: StoreWriter,
}

impl TestWriter {
    fn new() -> Self {
        Self::with_checkpoint_pages(2000)
    }

    fn with_checkpoint_pages(checkpoint_pages: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = SqliteSettings {
            clock: Arc::new(SystemClock),
            synchronous: Synchronous::Full,
            create: true,
            waiting_max: 100,
            readers: 1,
            checkpoint_pages,
            file_system: None,
        };
        let shared = SqliteShared::new(folder.path().join("semel.db"), settings);
        Self { writer: StoreWriter::open(Arc::new(shared)).unwrap().0, folder }
    }

    /// Serves the commands in one batch. Returns whether the writer is healthy afterwards, and the
    /// first reply.
    fn serve(&mut self, commands: Vec<SqliteCommand>) -> (bool, Result<SqliteReply, StoreError>) {
        let shared = Arc::clone(&self.writer.shared);
        let mut replies: Vec<_> =
            commands.into_iter().map(|command| shared.writes.push(command).unwrap()).collect();
        let commands = shared.writes.take(100, Duration::ZERO).unwrap();
        let healthy = self.writer.serve(commands);
        (healthy, replies.remove(0).try_recv().unwrap())
    }

    fn command(&self, key: &str, owner: u8) -> SqliteCommand {
        let key = Key::new(key).unwrap();
        let id = RecordId::new(Scope::new("payments").unwrap(), Caller::anonymous(), key);
        let fingerprint = Fingerprint::of_parts("test", &[]);
        let claim = Claim::new(id, fingerprint, OwnerToken::from_bytes([owner; 16]));
        let hash = self.writer.shared.index.hash_of(&claim.id);
        SqliteCommand::Claim(Box::new(claim), hash)
    }

    fn claim(&mut self, key: &str, owner: u8) -> Claimed {
        let command = self.command(key, owner);
        match self.serve(vec![command]) {
            (true, Ok(SqliteReply::Claimed(claimed))) => claimed,
            other => panic!("{other:?}"),
        }
    }

    fn break_commits(&mut self) {
        self.writer.connection.commit_hook(Some(|| true)).unwrap();
    }

    /// Asserts that another owner is refused, and that the claim is in flight.
    fn assert_taken(&mut self, key: &str) {
        let in_flight = self.writer.shared.in_flight().len();
        let other_owner = self.claim(key, 99);
        assert!(
            matches!(other_owner, Claimed::Occupied(Occupied::InFlight { .. })),
            "{other_owner:?}"
        );
        assert_eq!(in_flight, 1);
    }
}

#[test]
fn a_claim_of_a_batch_that_was_undone_is_found_once_it_is_granted() {
    let mut test = TestWriter::new();
    // A command that the writer rejects fails the batch, so each is executed alone.
    let commands = vec![test.command("a", 1), SqliteCommand::Epoch];
    let (healthy, reply) = test.serve(commands);
    assert!(healthy && matches!(reply, Ok(SqliteReply::Claimed(Claimed::Granted(_)))), "{reply:?}");
    test.assert_taken("a");
}

#[test]
fn a_claim_whose_commit_failed_is_found_once_it_is_granted() {
    let mut test = TestWriter::new();
    test.break_commits();
    let command = test.command("a", 1);
    let (healthy, reply) = test.serve(vec![command]);
    assert!(!healthy && reply.is_err());
    assert!(test.writer.reopen());
    assert!(matches!(test.claim("a", 1), Claimed::Granted(_)));
    test.assert_taken("a");
}

#[test]
fn a_committed_claim_is_found_after_opening_again() {
    let mut test = TestWriter::new();
    assert!(matches!(test.claim("a", 1), Claimed::Granted(_)));
    assert!(test.writer.reopen());
    test.assert_taken("a");
}

/// Another process has made a new log: a checkpoint of the old one would damage its database.
#[test]
fn a_checkpoint_after_an_undone_batch_is_not_written_beside_another_log() {
    let mut test = TestWriter::with_checkpoint_pages(1);
    assert!(matches!(test.claim("a", 1), Claimed::Granted(_)));
    assert!(test.writer.log.is_due());
    let [database, log] = ["semel.db", "semel.db-wal"].map(|name| test.folder.path().join(name));
    let before = fs::read(&database).unwrap();
    fs::remove_file(&log).unwrap();
    fs::write(&log, "").unwrap();
    let (healthy, reply) = test.serve(vec![SqliteCommand::Epoch]);
    assert!(healthy && reply.is_err(), "{reply:?}");
    assert!(!test.writer.after_batch());
    assert_eq!(fs::read(&database).unwrap(), before);
}

#[test]
fn failing_commits_leave_nothing_in_memory() {
    let mut test = TestWriter::new();
    for number in 0..100 {
        test.break_commits();
        let command = test.command(&format!("k-{number}"), 1);
        assert!(!test.serve(vec![command]).0);
        assert!(test.writer.reopen());
    }
    assert_eq!(test.writer.shared.index.len(), 0);
    assert_eq!(test.writer.shared.in_flight().len(), 0);
}
