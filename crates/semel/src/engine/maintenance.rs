//! Background maintenance: follows the store's epoch for the cache, measures the store's usage for
//! the quotas, reaps and sweeps.
//!
//! One task, started by the first request or earlier, and stopped with the engine. It holds a weak
//! reference to the engine. An error of the store never stops it.

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

use super::{EngineState, with_store_timeout};
use crate::{
    cache::EPOCH_TTL,
    observer::{EventKind, StoreOperation},
};

/// The polling interval of the epoch. It leaves time for a second try within [`EPOCH_TTL`].
const EPOCH_PERIOD: Duration = Duration::from_millis(300);

/// How often the usage of the store is measured.
const USAGE_PERIOD: Duration = Duration::from_secs(5);

/// The interval between reaps of records whose lease has expired.
const REAP_PERIOD: Duration = Duration::from_secs(5);

/// The delay after a failed batch, where the period is longer.
const RETRY_PERIOD: Duration = Duration::from_secs(10);

const BATCH_RECORDS: u32 = 500;

/// The timeout of one batch. A store that hangs must neither stop maintenance nor keep an unused
/// engine alive.
const BATCH_TIMEOUT: Duration = Duration::from_secs(10);

/// After a batch that left more to do, the task rests for this many times its duration: maintenance
/// takes at most a fifth of the store's time.
const REST_FACTOR: u32 = 4;
const REST_MIN: Duration = Duration::from_millis(5);

/// Whether the task runs.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    start: AtomicBool,
}

impl Maintenance {
    /// Starts the task unless it runs.
    pub(crate) fn start(shared: &Arc<EngineState>) {
        if !shared.maintenance.start.swap(true, Ordering::AcqRel) {
            let task = MaintenanceTask(Arc::downgrade(shared));
            tokio::spawn(async move {
                let task = task;
                if task.upkeep() {
                    tokio::join!(
                        task.follow_epoch(),
                        task.measure_usage(),
                        task.reap(),
                        task.sweep()
                    );
                } else {
                    tokio::join!(task.follow_epoch(), task.measure_usage());
                }
            });
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.start.load(Ordering::Relaxed)
    }
}

/// The maintenance task. When its runtime drops it, another runtime may start one.
struct MaintenanceTask(Weak<EngineState>);

impl Drop for MaintenanceTask {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.maintenance.start.store(false, Ordering::Release);
        }
    }
}

impl MaintenanceTask {
    fn upkeep(&self) -> bool {
        self.0.upgrade().is_some_and(|shared| shared.upkeep)
    }

    async fn follow_epoch(&self) {
        while let Some(shared) = self.0.upgrade() {
            let asked = shared.clock.now();
            if let Some(epoch) = call_store(&shared, EPOCH_TTL, shared.store.epoch()).await {
                shared.cache.set_epoch(epoch, asked);
            }
            drop(shared);
            sleep(EPOCH_PERIOD).await;
        }
    }

    /// The last measurement stays valid while the store cannot be reached.
    async fn measure_usage(&self) {
        while let Some(shared) = self.0.upgrade() {
            if let Some(usage) = call_store(&shared, BATCH_TIMEOUT, shared.store.usage()).await {
                shared.quota.set_usage(usage, shared.clock.now());
            }
            drop(shared);
            sleep(USAGE_PERIOD).await;
        }
    }

    async fn reap(&self) {
        while let Some(shared) = self.0.upgrade() {
            let begun = Instant::now();
            let batch = call_store(&shared, BATCH_TIMEOUT, shared.store.reap(BATCH_RECORDS)).await;
            emit_batch(&shared, batch, |records| EventKind::Reaped { records });
            drop(shared);
            sleep(interval(batch, begun.elapsed(), REAP_PERIOD)).await;
        }
    }

    async fn sweep(&self) {
        while let Some(shared) = self.0.upgrade() {
            let begun = Instant::now();
            let batch = call_store(&shared, BATCH_TIMEOUT, shared.store.sweep(BATCH_RECORDS)).await;
            emit_batch(&shared, batch, |records| EventKind::Swept { records });
            let period = shared.sweep_every;
            drop(shared);
            sleep(interval(batch, begun.elapsed(), period)).await;
        }
    }
}

/// Calls the store with a timeout and reports a failure.
async fn call_store<T>(
    shared: &EngineState,
    timeout: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Option<T> {
    let answer = with_store_timeout(timeout, call).await;
    if let Err(error) = &answer {
        let operation = StoreOperation::Maintenance;
        shared.events.emit_scoped(None, EventKind::StoreFailed { operation, error });
    }
    answer.ok()
}

/// Reports a batch that changed something.
fn emit_batch(
    shared: &EngineState,
    batch: Option<Batch>,
    kind: impl FnOnce(u32) -> EventKind<'static>,
) {
    if let Some(batch) = batch
        && batch.done > 0
    {
        shared.events.emit_scoped(None, kind(batch.done));
    }
}

/// The delay after a batch.
fn interval(batch: Option<Batch>, took: Duration, period: Duration) -> Duration {
    let interval = match batch {
        Some(batch) if batch.more => took.saturating_mul(REST_FACTOR).min(period),
        Some(_) => period,
        None => period.min(RETRY_PERIOD),
    };
    interval.max(REST_MIN)
}
