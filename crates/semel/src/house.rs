//! What an engine does besides: it follows the store's epoch for the cache, and it reaps and
//! sweeps.
//!
//! One task, started by the first request and ended with the engine. It holds the engine weakly,
//! and
//! an error of the store never ends it.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use semel_core::{Batch, StoreError};
use tokio::time::{Instant, sleep, timeout};

use crate::engine::Shared;

/// How long the cache is trusted after the store was last heard of.
pub(crate) const TRUST: Duration = Duration::from_secs(1);

/// How often the store is asked for its epoch: a question may fail, and the next one still comes in
/// time.
const EPOCH_PERIOD: Duration = Duration::from_millis(300);

/// How often lapsed records are looked for.
const REAP_PERIOD: Duration = Duration::from_secs(5);

/// How often records past retention are looked for, when there were none.
const SWEEP_PERIOD: Duration = Duration::from_secs(10);

const BATCH: u32 = 500;

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
            if let Ok(Ok(epoch)) = timeout(TRUST, shared.store.epoch()).await {
                shared.cache.hear(epoch, asked);
            }
            drop(shared);
            sleep(EPOCH_PERIOD).await;
        }
    }

    async fn reap(&self) {
        while let Some(shared) = self.0.upgrade() {
            let begun = Instant::now();
            let pause = pause(&shared.store.reap(BATCH).await, begun.elapsed(), REAP_PERIOD);
            drop(shared);
            sleep(pause).await;
        }
    }

    async fn sweep(&self) {
        while let Some(shared) = self.0.upgrade() {
            let begun = Instant::now();
            let pause = pause(&shared.store.sweep(BATCH).await, begun.elapsed(), SWEEP_PERIOD);
            drop(shared);
            sleep(pause).await;
        }
    }
}

/// How long to rest after a batch.
fn pause(batch: &Result<Batch, StoreError>, took: Duration, period: Duration) -> Duration {
    match batch {
        Ok(batch) if batch.more => took.saturating_mul(PAUSE_FACTOR).clamp(PAUSE_MIN, period),
        Ok(_) | Err(_) => period,
    }
}
