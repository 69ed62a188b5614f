//! Runs the conformance kit on the SQLite store, durability and restore included.
#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use semel_core::Store;
use semel_sqlite::{BootClock, Options, backup};
use semel_testkit::{
    clock::ManualClock,
    fixture::{Durable, Fixture, Restorable},
};
use tempfile::TempDir;

/// A machine that never reboots, on the kit's clock.
#[derive(Debug)]
struct KitClock(ManualClock);

impl BootClock for KitClock {
    fn boot_id(&self) -> String {
        "kit".to_owned()
    }
    fn since_boot(&self) -> Duration {
        self.0.now()
    }
    fn wall(&self) -> Duration {
        BOOTED_AT + self.0.now()
    }
}

/// When that machine booted, by its wall clock: in September 2020.
const BOOTED_AT: Duration = Duration::from_secs(1_600_000_000);

struct Sqlite {
    folder: TempDir,
    clock: ManualClock,
    store: Mutex<Option<Arc<dyn Store>>>,
}

impl Sqlite {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Self { folder, clock: ManualClock::new(), store: Mutex::default() };
        fixture.set(Some(fixture.open()));
        fixture
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("semel.db")
    }

    fn options(&self) -> Options {
        Options::new().clock(Arc::new(KitClock(self.clock.clone())))
    }

    fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.options().open(self.path()).unwrap())
    }

    /// Ends the store and removes its files.
    fn remove(&self) {
        self.set(None);
        for suffix in ["", "-wal", "-shm", "-turn"] {
            let _ = fs::remove_file(self.folder.path().join(format!("semel.db{suffix}")));
        }
        assert!(!self.path().exists());
    }

    fn set(&self, store: Option<Arc<dyn Store>>) {
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = store;
    }
}

#[async_trait]
impl Fixture for Sqlite {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(self.store.lock().unwrap().as_ref().unwrap())
    }

    /// Another store on the same file, as in another process.
    async fn another(&self) -> Arc<dyn Store> {
        self.open()
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

#[async_trait]
impl Durable for Sqlite {
    async fn reopen(&self) {
        self.set(None);
        self.set(Some(self.open()));
    }
}

#[async_trait]
impl Restorable for Sqlite {
    async fn back_up(&self) {
        let copy = self.folder.path().join("backup");
        backup(self.path(), copy, |_| ()).unwrap();
    }

    async fn restore(&self) {
        self.remove();
        fs::copy(self.folder.path().join("backup"), self.path()).unwrap();
        self.options().after_restore(self.path()).unwrap();
        self.set(Some(self.open()));
    }

    async fn replace_with_empty(&self) {
        self.remove();
        self.set(Some(self.open()));
    }
}

semel_testkit::conform!(restorable, Sqlite::new());
semel_testkit::torture_histories!(Sqlite::new());
