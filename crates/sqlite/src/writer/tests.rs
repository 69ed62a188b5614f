//! What batches that fail leave behind: nothing that a later batch could stumble over.

use semel_core::{Caller, Claim, Claimed, Fingerprint, Key, Occupied, OwnerToken, RecordId, Scope};
use tempfile::TempDir;

use super::*;
use crate::{SystemClock, open::Synchronous, queue::Ask, shared::Settings};

/// A writer without its thread: the test decides what goes into a batch.
struct Bench {
    _folder: TempDir,
    writer: Writer,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            clock: Arc::new(SystemClock),
            synchronous: Synchronous::Full,
            create: true,
            waiting_max: 100,
            readers: 1,
            checkpoint_pages: 2000,
            file_system: None,
        };
        let shared = Shared::new(folder.path().join("semel.db"), settings);
        Self { writer: Writer::open(Arc::new(shared)).unwrap().0, _folder: folder }
    }

    /// Serves all of this in one batch; says whether the writer is healthy afterwards, and what the
    /// first one was told.
    fn serve(&mut self, asks: Vec<Ask>) -> (bool, Result<Told, StoreError>) {
        let shared = Arc::clone(&self.writer.shared);
        let mut replies: Vec<_> =
            asks.into_iter().map(|ask| shared.writes.push(ask).unwrap()).collect();
        let questions = shared.writes.take(100, Duration::ZERO).unwrap();
        let healthy = self.writer.serve(questions);
        (healthy, replies.remove(0).try_recv().unwrap())
    }

    fn ask(&self, key: &str, owner: u8) -> Ask {
        let key = Key::new(key).unwrap();
        let id = RecordId::new(Scope::new("payments").unwrap(), Caller::anonymous(), key);
        let fingerprint = Fingerprint::of_parts("test", &[]);
        let claim = Claim::new(id, fingerprint, OwnerToken::from_bytes([owner; 16]));
        let hash = self.writer.shared.index.hash_of(&claim.id);
        Ask::Claim(Box::new(claim), hash)
    }

    fn claim(&mut self, key: &str, owner: u8) -> Claimed {
        let ask = self.ask(key, owner);
        match self.serve(vec![ask]) {
            (true, Ok(Told::Claimed(claimed))) => claimed,
            other => panic!("{other:?}"),
        }
    }

    fn break_commits(&mut self) {
        self.writer.connection.commit_hook(Some(|| true)).unwrap();
    }

    /// Whether somebody else is refused, and the claim is among those in flight.
    fn assert_taken(&mut self, key: &str) {
        let in_flight = self.writer.shared.in_flight().len();
        let stranger = self.claim(key, 99);
        assert!(matches!(stranger, Claimed::Occupied(Occupied::InFlight { .. })), "{stranger:?}");
        assert_eq!(in_flight, 1);
    }
}

#[test]
fn a_claim_of_a_batch_that_was_undone_is_found_once_it_is_granted() {
    let mut bench = Bench::new();
    // A question that no writer answers spoils the batch, so each is asked alone.
    let asks = vec![bench.ask("a", 1), Ask::Epoch];
    let (healthy, told) = bench.serve(asks);
    assert!(healthy && matches!(told, Ok(Told::Claimed(Claimed::Granted(_)))), "{told:?}");
    bench.assert_taken("a");
}

#[test]
fn a_claim_whose_commit_failed_is_found_once_it_is_granted() {
    let mut bench = Bench::new();
    bench.break_commits();
    let ask = bench.ask("a", 1);
    let (healthy, told) = bench.serve(vec![ask]);
    assert!(!healthy && told.is_err());
    assert!(bench.writer.reopen());
    assert!(matches!(bench.claim("a", 1), Claimed::Granted(_)));
    bench.assert_taken("a");
}

#[test]
fn a_committed_claim_is_found_after_opening_again() {
    let mut bench = Bench::new();
    assert!(matches!(bench.claim("a", 1), Claimed::Granted(_)));
    assert!(bench.writer.reopen());
    bench.assert_taken("a");
}

#[test]
fn failing_commits_leave_nothing_in_memory() {
    let mut bench = Bench::new();
    for number in 0..100 {
        bench.break_commits();
        let ask = bench.ask(&format!("k-{number}"), 1);
        assert!(!bench.serve(vec![ask]).0);
        assert!(bench.writer.reopen());
    }
    assert_eq!(bench.writer.shared.index.len(), 0);
    assert_eq!(bench.writer.shared.in_flight().len(), 0);
}
