//! `once`: every way an operation can end and every outcome, with counted executions.

#![allow(clippy::wildcard_enum_match_arm, reason = "whatever else an outcome is, it is a failure")]

mod away;
mod errors;
mod outcomes;
mod together;
mod unknown;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use semel::{
    MemoryStore, Once, Semel,
    core::{Caller, Key, RecordId, Scope, Snapshot, Store},
};

/// An engine, its store, and a counter of runs.
struct Harness {
    semel: Semel,
    store: MemoryStore,
    runs: Runs,
}

#[derive(Clone, Default)]
struct Runs(Arc<AtomicU32>);

impl Runs {
    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Counts a run and returns its number.
    fn one_more(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl Harness {
    /// On tokio's clock, so that a test with paused time controls the store too.
    fn new() -> Self {
        let origin = tokio::time::Instant::now();
        let store = MemoryStore::with_clock(move || origin.elapsed());
        Self { semel: Semel::new(store.clone()), store, runs: Runs::default() }
    }

    /// Another process on the same store.
    fn elsewhere(&self) -> Semel {
        Semel::new(self.store.clone())
    }

    fn once(&self, key: &str) -> Once {
        once(&self.semel, key)
    }

    async fn record(&self, key: &str) -> Option<Snapshot> {
        self.store.get(&id(key)).await.unwrap()
    }
}

fn once(semel: &Semel, key: &str) -> Once {
    let RecordId { caller, key, .. } = id(key);
    semel.once("tests", caller, key)
}

fn id(key: &str) -> RecordId {
    let scope = Scope::new("tests").unwrap();
    RecordId::new(scope, Caller::new("zoe").unwrap(), Key::new(key).unwrap())
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
