//! One operation that this process owns: its journal, its lease, and its writes.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_core::{Fenced, StoreError};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    time::sleep,
};
use tracing::warn;

use crate::{
    clock::since_boot,
    context::Undo,
    journal::{StepJournal, StopReason},
    store::{OperationRow, OperationStore, OwnedOperation, StepPart, StepRow, StepState},
};

/// The pause after the first of several failures, and the longest.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// An operation that this process owns.
pub(crate) struct OwnedRun<S: OperationStore> {
    pub(crate) store: std::sync::Arc<S>,
    pub(crate) row: OperationRow,
    /// The undos that the function has declared in this try.
    pub(crate) undos: Mutex<HashMap<String, Undo<S>>>,
    /// Wakes the driver after a stop from outside.
    pub(crate) wake: Notify,
    journal: Mutex<StepJournal>,
    /// A stop from outside, which outlives the try.
    stopped: Mutex<Option<StopReason>>,
    /// One write at a time, so that the rows of two writes do not lock each other out.
    writing: AsyncMutex<()>,
    /// When the lease ends, in milliseconds of [`since_boot`].
    lease_until: AtomicU64,
}

impl<S: OperationStore> OwnedRun<S> {
    /// `asked` is the time before the database was asked.
    pub(crate) fn new(
        store: std::sync::Arc<S>,
        row: OperationRow,
        steps: Vec<StepRow>,
        asked: Duration,
        lease: Duration,
    ) -> Self {
        let journal = StepJournal::new(row.direction, steps);
        let run = Self {
            store,
            row,
            undos: Mutex::default(),
            wake: Notify::new(),
            journal: Mutex::new(journal),
            stopped: Mutex::default(),
            writing: AsyncMutex::default(),
            lease_until: AtomicU64::new(0),
        };
        run.renewed(asked, lease);
        run
    }

    pub(crate) const fn owned(&self) -> OwnedOperation {
        OwnedOperation { id: self.row.id, fence: self.row.fence }
    }

    pub(crate) fn journal(&self) -> MutexGuard<'_, StepJournal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn undos(&self) -> MutexGuard<'_, HashMap<String, Undo<S>>> {
        self.undos.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease was renewed by a request that was sent at this time.
    pub(crate) fn renewed(&self, asked: Duration, lease: Duration) {
        let until = u64::try_from((asked + lease).as_millis()).unwrap_or(u64::MAX);
        self.lease_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Whether no other process can have taken the operation over.
    pub(crate) fn is_leased(&self) -> bool {
        let now = u64::try_from(since_boot().as_millis()).unwrap_or(u64::MAX);
        now < self.lease_until.load(Ordering::Relaxed)
    }

    /// Stops the operation from outside, at the next boundary of a step.
    pub(crate) fn stop(&self, reason: StopReason) {
        self.journal().stop(reason.clone());
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        self.wake.notify_one();
    }

    /// Begins another try.
    pub(crate) fn begin_try(&self) {
        self.undos().clear();
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut journal = self.journal();
        journal.begin_try();
        stopped.into_iter().for_each(|reason| journal.stop(reason));
    }

    /// Reads the rows again. `Lost` if another process owns the operation.
    pub(crate) async fn reload(&self, lease: Duration) -> Result<(), StopReason> {
        let mut pause = BACKOFF_MIN;
        loop {
            let asked = since_boot();
            match self.store.renew(&[self.owned()], lease).await {
                Ok(renewed) if renewed.is_empty() => return Err(StopReason::Lost),
                Ok(_) => self.renewed(asked, lease),
                Err(error) => {
                    self.pause_after(&error, &mut pause).await;
                    continue;
                }
            }
            match self.store.steps(self.row.id).await {
                Ok(steps) => {
                    let direction = self.journal().direction();
                    *self.journal() = StepJournal::new(direction, steps);
                    return Ok(());
                }
                Err(error) => self.pause_after(&error, &mut pause).await,
            }
        }
    }

    async fn pause_after(&self, error: &StoreError, pause: &mut Duration) {
        warn!(operation = self.row.id, %error, "the database of an operation fails; trying again");
        sleep(*pause).await;
        *pause = (*pause * 2).min(BACKOFF_MAX);
    }

    /// Repeats a fenced write while its lease lasts.
    pub(crate) async fn persist<F, W>(&self, mut write: W) -> Result<(), StopReason>
    where
        F: Future<Output = Result<Fenced, StoreError>>,
        W: FnMut() -> F,
    {
        let mut pause = BACKOFF_MIN;
        loop {
            match write().await {
                Ok(Fenced::Applied) => return Ok(()),
                Err(error) if self.is_leased() => self.pause_after(&error, &mut pause).await,
                Ok(Fenced::Lost) | Err(_) => return Err(StopReason::Reload),
            }
        }
    }

    /// Makes the row of a step durable.
    pub(crate) async fn record(
        &self,
        name: &str,
        part: StepPart,
        state: StepState,
        result: Option<String>,
    ) -> Result<(), StopReason> {
        let _writing = self.writing.lock().await;
        let write = self.journal().write(name, part, state, result);
        self.persist(|| self.store.step(self.owned(), &write)).await?;
        self.journal().on_written(write);
        Ok(())
    }

    /// Commits the transaction of a step with the row of the step.
    pub(crate) async fn commit(
        &self,
        transaction: S::Transaction,
        name: &str,
        part: StepPart,
        result: Option<String>,
    ) -> Result<(), StopReason> {
        let _writing = self.writing.lock().await;
        let write = self.journal().write(name, part, StepState::Done, result);
        match self.store.commit(transaction, self.owned(), &write).await {
            Ok(Fenced::Applied) => {
                self.journal().on_written(write);
                Ok(())
            }
            Err(error) if error.effect() == semel_core::Effect::None => {
                Err(StopReason::Retry(error.to_string()))
            }
            Ok(Fenced::Lost) | Err(_) => Err(StopReason::Reload),
        }
    }
}
