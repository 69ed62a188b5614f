//! The SQLite store keeps every law, the durable one included.
#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use semel_core::Store;
use semel_sqlite::{Clock, Options};
use semel_testkit::{
    clock::ManualClock,
    fixture::{Durable, Fixture},
};
use tempfile::TempDir;

/// A machine that never boots again, on the kit's clock.
#[derive(Debug)]
struct KitClock(ManualClock);

impl Clock for KitClock {
    fn boot_id(&self) -> String {
        "kit".to_owned()
    }
    fn since_boot(&self) -> Duration {
        self.0.now()
    }
    fn wall(&self) -> Duration {
        self.0.now()
    }
}

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

    fn open(&self) -> Arc<dyn Store> {
        let clock = Arc::new(KitClock(self.clock.clone()));
        Arc::new(Options::new().clock(clock).open(self.path()).unwrap())
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

    /// A store of its own on the same file, as another process would have it.
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

semel_testkit::conform!(durable, Sqlite::new());
semel_testkit::torture_histories!(Sqlite::new());
