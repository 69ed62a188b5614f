//! The memory store keeps every law but the durable one.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use semel::{MemoryStore, core::Store};
use semel_testkit::{clock::ManualClock, fixture::Fixture};

struct Memory {
    store: Arc<MemoryStore>,
    clock: ManualClock,
}

impl Memory {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self { store: Arc::new(MemoryStore::with_clock(clock.reader())), clock }
    }
}

#[async_trait]
impl Fixture for Memory {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    async fn another(&self) -> Arc<dyn Store> {
        Arc::new(MemoryStore::clone(&self.store))
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

semel_testkit::conform!(volatile, Memory::new());
semel_testkit::torture_histories!(Memory::new());
