//! Processes that crash at a chosen boundary, and callees that count their effects.

use std::{
    collections::{BTreeMap, HashSet},
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
        mpsc,
    },
    time::Duration,
};

use async_trait::async_trait;
use semel_core::{Fenced, StoreError};
use semel_steps::{
    OperationHandle, OperationOutcome, OperationStore, Operations, StepContext, StepError,
    store::{
        NewOperation, OperationEnd, OperationFilter, OperationRow, OperatorStep, OwnedOperation,
        ReleaseRequest, StepRow, StepWrite, TakeRequest,
    },
};
use tokio::runtime::Runtime;

use crate::databases::TestDatabase;

/// The timeout of every wait.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Where a process crashes: at the boundary of this number, counted from 0.
#[derive(Debug)]
pub(crate) struct CrashPlan {
    left: AtomicI64,
    fired: AtomicBool,
    fired_tx: Mutex<mpsc::Sender<()>>,
}

impl CrashPlan {
    /// The plan, and what receives that the process has reached the boundary.
    pub(crate) fn at(boundary: usize) -> (Arc<Self>, mpsc::Receiver<()>) {
        let (fired_tx, fired) = mpsc::channel();
        let left = AtomicI64::new(i64::try_from(boundary).unwrap());
        let plan = Self { left, fired: AtomicBool::new(false), fired_tx: Mutex::new(fired_tx) };
        (Arc::new(plan), fired)
    }

    pub(crate) fn never() -> Arc<Self> {
        Self::at(usize::try_from(i64::MAX).unwrap()).0
    }

    pub(crate) fn has_fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }

    /// A boundary. Once the process has crashed, none lets anything pass.
    pub(crate) async fn boundary(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            self.fired.store(true, Ordering::SeqCst);
            let _ = self.fired_tx.lock().unwrap().send(());
            pending().await
        }
    }
}

/// Services that operations call. Effects are counted by what they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Callee(Arc<Mutex<Effects>>);

#[derive(Debug, Default)]
struct Effects {
    keys: HashSet<String>,
    counts: BTreeMap<String, usize>,
}

impl Callee {
    /// An effect at a callee that takes keys.
    pub(crate) fn keyed(&self, key: &str, what: &str) {
        let mut effects = self.0.lock().unwrap();
        if effects.keys.insert(key.to_owned()) {
            *effects.counts.entry(what.to_owned()).or_default() += 1;
        }
    }

    /// An effect at a callee that does not.
    pub(crate) fn unkeyed(&self, what: &str) {
        *self.0.lock().unwrap().counts.entry(what.to_owned()).or_default() += 1;
    }

    pub(crate) fn count(&self, what: &str) -> usize {
        self.0.lock().unwrap().counts.get(what).copied().unwrap_or_default()
    }
}

/// What the functions of a process use.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) plan: Arc<CrashPlan>,
    pub(crate) callee: Callee,
}

impl World {
    pub(crate) fn new(plan: Arc<CrashPlan>, callee: &Callee) -> Self {
        Self { plan, callee: callee.clone() }
    }

    /// Calls a service that takes keys.
    pub(crate) async fn call(&self, step: StepContext, what: &str) -> Result<String, StepError> {
        self.plan.boundary().await;
        self.callee.keyed(step.key(), what);
        self.plan.boundary().await;
        Ok(what.to_owned())
    }

    /// Calls a service that takes no keys.
    pub(crate) async fn call_unkeyed(&self, what: &str) -> Result<String, StepError> {
        self.plan.boundary().await;
        self.callee.unkeyed(what);
        self.plan.boundary().await;
        Ok(what.to_owned())
    }
}

/// A store that crashes its process before or after a verb.
#[derive(Debug)]
pub(crate) struct CrashStore<S> {
    pub(crate) inner: S,
    plan: Arc<CrashPlan>,
}

/// Delegates a verb, with a boundary before and after it.
macro_rules! between_boundaries {
    ($self:ident, $verb:ident($($argument:expr),*)) => {{
        $self.plan.boundary().await;
        let done = $self.inner.$verb($($argument),*).await;
        $self.plan.boundary().await;
        done
    }};
}

#[async_trait]
impl<S: OperationStore> OperationStore for CrashStore<S> {
    type Transaction = S::Transaction;

    async fn start(&self, new: &NewOperation<'_>) -> Result<OperationRow, StoreError> {
        between_boundaries!(self, start(new))
    }

    async fn step(&self, owned: OwnedOperation, write: &StepWrite) -> Result<Fenced, StoreError> {
        between_boundaries!(self, step(owned, write))
    }

    async fn begin(&self) -> Result<S::Transaction, StoreError> {
        between_boundaries!(self, begin())
    }

    async fn commit(
        &self,
        transaction: S::Transaction,
        owned: OwnedOperation,
        write: &StepWrite,
    ) -> Result<Fenced, StoreError> {
        between_boundaries!(self, commit(transaction, owned, write))
    }

    async fn turn(&self, owned: OwnedOperation, refusal: &str) -> Result<Fenced, StoreError> {
        between_boundaries!(self, turn(owned, refusal))
    }

    async fn finish(
        &self,
        owned: OwnedOperation,
        end: &OperationEnd,
    ) -> Result<Fenced, StoreError> {
        between_boundaries!(self, finish(owned, end))
    }

    async fn take_lapsed(
        &self,
        request: &TakeRequest<'_>,
    ) -> Result<Vec<OperationRow>, StoreError> {
        self.inner.take_lapsed(request).await
    }

    async fn renew(
        &self,
        owned: &[OwnedOperation],
        lease: Duration,
    ) -> Result<Vec<i64>, StoreError> {
        self.inner.renew(owned, lease).await
    }

    async fn release(
        &self,
        owned: OwnedOperation,
        release: &ReleaseRequest<'_>,
    ) -> Result<Fenced, StoreError> {
        between_boundaries!(self, release(owned, release))
    }

    async fn read(&self, id: i64) -> Result<Option<OperationRow>, StoreError> {
        self.inner.read(id).await
    }

    async fn steps(&self, id: i64) -> Result<Vec<StepRow>, StoreError> {
        self.inner.steps(id).await
    }

    async fn list(&self, filter: &OperationFilter) -> Result<Vec<OperationRow>, StoreError> {
        self.inner.list(filter).await
    }

    async fn operate(
        &self,
        seen: OwnedOperation,
        act: &OperatorStep,
    ) -> Result<Fenced, StoreError> {
        self.inner.operate(seen, act).await
    }

    async fn sweep(&self, retention: Duration, limit: u32) -> Result<u64, StoreError> {
        self.inner.sweep(retention, limit).await
    }
}

pub(crate) type TestStore<D> = CrashStore<<D as TestDatabase>::Store>;

/// A process: a runtime of its own, so that it can end without a word.
pub(crate) struct Process<D: TestDatabase> {
    pub(crate) runtime: Runtime,
    pub(crate) operations: Operations<TestStore<D>>,
    pub(crate) world: World,
}

impl<D: TestDatabase> Process<D> {
    pub(crate) fn new(database: &D, world: World) -> Self {
        Self::with_lease(database, world, Duration::from_secs(30))
    }

    pub(crate) fn with_lease(database: &D, world: World, lease: Duration) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let store = CrashStore { inner: database.store(), plan: Arc::clone(&world.plan) };
        let operations = Operations::new(store).wait(TEST_TIMEOUT).lease(lease);
        Self { runtime, operations, world }
    }

    /// Runs an operation in this process and waits for its outcome.
    pub(crate) fn run<I, T>(
        &self,
        handle: &OperationHandle<TestStore<D>, I, T>,
        key: &str,
        input: &I,
    ) -> OperationOutcome<T>
    where
        I: serde::Serialize,
        T: serde::de::DeserializeOwned,
    {
        self.runtime.block_on(handle.run(key, input)).unwrap()
    }

    /// Looks for lapsed operations in the background.
    pub(crate) fn recover(&self) {
        let _entered = self.runtime.enter();
        self.operations.recover();
    }

    /// Ends the process at once.
    pub(crate) fn crash(self) {
        let Self { runtime, operations, .. } = self;
        runtime.shutdown_background();
        drop(operations);
    }

    /// The latest operation of a name.
    pub(crate) fn row(&self, name: &str) -> OperationRow {
        let filter =
            OperationFilter { name: Some(name.to_owned()), limit: 1, ..OperationFilter::default() };
        self.runtime.block_on(self.operations.store().list(&filter)).unwrap().remove(0)
    }

    pub(crate) fn steps(&self, id: i64) -> Vec<StepRow> {
        self.runtime.block_on(self.operations.store().steps(id)).unwrap()
    }

    /// Does what an operator says, on the row as it is now.
    pub(crate) fn operate(&self, name: &str, act: &OperatorStep) {
        let row = self.row(name);
        let seen = OwnedOperation { id: row.id, fence: row.fence };
        let done = self.runtime.block_on(self.operations.store().operate(seen, act)).unwrap();
        assert_eq!(done, Fenced::Applied, "{act:?} on {row:?}");
    }
}
