//! What an engine does besides: it follows the store's epoch for the cache, and it reaps and
//! sweeps.
//!
//! One task, started by the first request or before, and ended with the engine. It holds the engine
//! weakly, and an error of the store never ends it.

use std::{
    future::Future,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use semel_core::{Batch, StoreError};
use tokio::time::{Instant, sleep};

use crate::{
    engine::{Shared, in_time},
    observer::{EventKind, StoreOperation},
};

/// How long the store's epoch is trusted, from before it was requested.
pub(crate) const EPOCH_TTL: Duration = Duration::from_secs(1);

/// How often the store is asked for its epoch: a question may fail, and the next one still comes in
/// time.
const EPOCH_PERIOD: Duration = Duration::from_millis(300);

/// How often lapsed records are looked for.
const REAP_PERIOD: Duration = Duration::from_secs(5);

/// How long after a batch that failed the next one is tried, where the period is longer.
const RETRY_PERIOD: Duration = Duration::from_secs(10);

const BATCH: u32 = 500;

/// How long one batch may take. A store that hangs must neither end the upkeep nor keep an engine
/// alive that nobody uses any more.
const BATCH_TIMEOUT: Duration = Duration::from_secs(10);

/// After a batch that left more to do, how many times its own length passes until the next: so
/// upkeep takes at most a fifth of the store's time, however fast or slow it is.
const PAUSE_FACTOR: u32 = 4;
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// Whether the task runs.
#[derive(Debug, Default)]
pub(crate) struct House {
    open: AtomicBool,
}

impl House {
    /// Starts the task unless it runs.
    pub(crate) fn open(shared: &Arc<Shared>) {
        if !shared.house.open.swap(true, Ordering::AcqRel) {
            let keeper = Keeper(Arc::downgrade(shared));
            tokio::spawn(async move {
                let keeper = keeper;
                if keeper.upkeep() {
                    tokio::join!(keeper.follow(), keeper.reap(), keeper.sweep());
                } else {
                    keeper.follow().await;
                }
            });
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }
}

/// The task. Dropped with its runtime, it makes room for one on another.
struct Keeper(Weak<Shared>);

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.house.open.store(false, Ordering::Release);
        }
    }
}

impl Keeper {
    fn upkeep(&self) -> bool {
        self.0.upgrade().is_some_and(|shared| shared.upkeep)
    }

    async fn follow(&self) {
        while let Some(shared) = self.0.upgrade() {
            let asked = shared.clock.now();
            if let Some(epoch) = ask(&shared, EPOCH_TTL, shared.store.epoch()).await {
                shared.cache.hear(epoch, asked);
            }
            drop(shared);
            sleep(EPOCH_PERIOD).await;
        }
    }

    async fn reap(&self) {
        while let Some(shared) = self.0.upgrade() {
            let begun = Instant::now();
            let batch = ask(&shared, BATCH_TIMEOUT, shared.store.reap(BATCH)).await;
            tell(&shared, batch, |records| EventKind::Reaped { records });
            drop(shared);
            sleep(pause(batch, begun.elapsed(), REAP_PERIOD)).await;
        }
    }

    async fn sweep(&self) {
        while let Some(shared) = self.0.upgrade() {
            let begun = Instant::now();
            let batch = ask(&shared, BATCH_TIMEOUT, shared.store.sweep(BATCH)).await;
            tell(&shared, batch, |records| EventKind::Swept { records });
            let period = shared.sweep_every;
            drop(shared);
            sleep(pause(batch, begun.elapsed(), period)).await;
        }
    }
}

/// Asks the store, but not for ever; who listens hears of a failure.
async fn ask<T>(
    shared: &Shared,
    timeout: Duration,
    question: impl Future<Output = Result<T, StoreError>>,
) -> Option<T> {
    let answer = in_time(timeout, question).await;
    if let Err(error) = &answer {
        let operation = StoreOperation::Upkeep;
        shared.listener.tell_of(None, EventKind::StoreFailed { operation, error });
    }
    answer.ok()
}

/// Tells who listens of a batch that changed something.
fn tell(shared: &Shared, batch: Option<Batch>, kind: impl FnOnce(u32) -> EventKind<'static>) {
    if let Some(batch) = batch
        && batch.done > 0
    {
        shared.listener.tell_of(None, kind(batch.done));
    }
}

/// How long to rest after a batch.
fn pause(batch: Option<Batch>, took: Duration, period: Duration) -> Duration {
    let pause = match batch {
        Some(batch) if batch.more => took.saturating_mul(PAUSE_FACTOR).min(period),
        Some(_) => period,
        None => period.min(RETRY_PERIOD),
    };
    pause.max(PAUSE_MIN)
}
