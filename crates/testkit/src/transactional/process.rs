//! What a case works with: an engine on a transactional store, and operations that are counted.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use semel::{
    Once, Semel,
    core::{Caller, Key, OnUnknown},
    transactional::{Database, TransactionGuard, TransactionalStore},
};
use tokio::time::{Instant, sleep};

use super::TransactionalFixture;

/// What waits for a condition gives up after this.
pub(super) const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// The transaction of an operation, as the kit's fixture has it.
pub(super) type Open<F> =
    TransactionGuard<<<F as TransactionalFixture>::Database as Database>::Transaction>;

/// An engine on a store of its own, as a process of a service has it.
pub(crate) struct TestProcess<F: TransactionalFixture> {
    pub(super) store: TransactionalStore<F::Database>,
    pub(super) semel: Semel,
}

impl<F: TransactionalFixture> TestProcess<F> {
    pub(super) async fn start(fixture: &Arc<F>) -> Self {
        let store = fixture.store().await;
        let semel = Semel::new(store.clone());
        Self { store, semel }
    }

    /// A call with this key. What fails may run again: it left nothing.
    pub(super) fn once(&self, key: &str) -> Once {
        let caller = Caller::new("shop-3").unwrap();
        let once = self.semel.once("orders", caller, Key::new(key).unwrap());
        once.on_unknown(OnUnknown::Rerun).wait(EVENT_TIMEOUT)
    }
}

impl<F: TransactionalFixture> Clone for TestProcess<F> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), semel: self.semel.clone() }
    }
}

impl<F: TransactionalFixture> fmt::Debug for TestProcess<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Process").field(&self.store).finish()
    }
}

/// Counts executions.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs(Arc<AtomicU32>);

impl Runs {
    /// Counts one and says which it is, from 1.
    pub(super) fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(super) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Waits until this holds.
pub(super) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < EVENT_TIMEOUT, "not within {EVENT_TIMEOUT:?}: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}
