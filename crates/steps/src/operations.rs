//! The operations of a process: the registered functions, what it runs, and recovery.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    marker::PhantomData,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_core::{StoreError, StoreErrorKind, canonical};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{info, warn};

use crate::{
    clock::{random, since_boot},
    driver::{DriveEnd, DriveLimits, OperationFunction, drive},
    error::StepError,
    journal::StopReason,
    operation::Operation,
    owned_run::OwnedRun,
    step::VALUE_BYTES_MAX,
    store::{
        NewOperation, OperationEnd, OperationRow, OperationState, OperationStore, StepRow,
        TakeRequest,
    },
};

/// The most operations that one look takes over, and the longest pause between two looks.
const TAKEN_MAX: u32 = 64;
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// The most operations that one sweep deletes, and how many looks lie between two sweeps.
const SWEPT_MAX: u32 = 500;
const LOOKS_PER_SWEEP: u64 = 60;
/// The first pause of a call that waits for another process, and the longest.
const WAIT_BACKOFF: Duration = Duration::from_millis(5);
const WAIT_BACKOFF_MAX: Duration = Duration::from_millis(250);

/// The operations of this process. Clones are the same.
pub struct Operations<S: OperationStore>(Arc<OperationsInner<S>>);

struct OperationsInner<S: OperationStore> {
    store: Arc<S>,
    settings: Mutex<Settings>,
    functions: Mutex<BTreeMap<(String, i32), OperationFunction<S>>>,
    running: Mutex<HashMap<i64, Arc<OwnedRun<S>>>>,
    ended: Notify,
    is_draining: AtomicBool,
    is_recovering: AtomicBool,
    looks: AtomicU64,
    counts: Counts,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    lease: Duration,
    wait: Duration,
    retention: Duration,
    attempts_max: u32,
}

#[derive(Debug, Default)]
struct Counts {
    started: AtomicU64,
    taken: AtomicU64,
    done: AtomicU64,
    undone: AtomicU64,
    parked: AtomicU64,
    failed: AtomicU64,
    lost: AtomicU64,
}

/// What became of operations in this process since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OperationCounts {
    /// Started here.
    pub started: u64,
    /// Taken over from another process, or continued after a pause.
    pub taken: u64,
    /// Done here.
    pub done: u64,
    /// Undone here.
    pub undone: u64,
    /// Parked here.
    pub parked: u64,
    /// Attempts that failed and were left for later.
    pub failed: u64,
    /// Lost to another process while they ran here.
    pub lost: u64,
    /// Running here now.
    pub running: u64,
}

impl OperationCounts {
    /// The counts in the text format of Prometheus.
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        let Self { started, taken, done, undone, parked, failed, lost, running } = self;
        let mut text = String::from("# TYPE semel_operations_total counter\n");
        for (event, count) in [
            ("started", started),
            ("taken", taken),
            ("done", done),
            ("undone", undone),
            ("parked", parked),
            ("failed", failed),
            ("lost", lost),
        ] {
            text += &format!("semel_operations_total{{event=\"{event}\"}} {count}\n");
        }
        text + &format!(
            "# TYPE semel_operations_running gauge\nsemel_operations_running {running}\n"
        )
    }
}

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationOutcome<T> {
    /// All done, now or earlier.
    Done(T),
    /// Refused for this reason, and all undone, now or earlier. [`StepError::refusal`] reads it.
    Undone(StepError),
    /// Parked, for this reason, until an operator decides.
    Parked(String),
    /// It runs, here or in another process, and did not end in time. It goes on.
    Running,
    /// The key belongs to an operation with another input. Nothing was done.
    KeyReused,
}

/// A registered operation.
pub struct OperationHandle<S: OperationStore, I, T> {
    operations: Operations<S>,
    name: String,
    version: i32,
    types: PhantomData<fn(I) -> T>,
}

impl<S: OperationStore> Operations<S> {
    /// Operations in this database.
    #[must_use]
    pub fn new(store: S) -> Self {
        let settings = Settings {
            lease: Duration::from_secs(30),
            wait: Duration::from_secs(10),
            retention: Duration::from_secs(7 * 24 * 3600),
            attempts_max: 10,
        };
        Self(Arc::new(OperationsInner {
            store: Arc::new(store),
            settings: Mutex::new(settings),
            functions: Mutex::default(),
            running: Mutex::default(),
            ended: Notify::new(),
            is_draining: AtomicBool::new(false),
            is_recovering: AtomicBool::new(false),
            looks: AtomicU64::new(0),
            counts: Counts::default(),
        }))
    }

    /// How long a process may stay silent before its operations are taken over; 30 seconds unless
    /// set.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        lock(&self.0.settings).lease = lease;
        self
    }

    /// How long [`run`](OperationHandle::run) waits for the end; ten seconds unless set.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        lock(&self.0.settings).wait = wait;
        self
    }

    /// How long operations are kept after their end; seven days unless set. After that a key starts
    /// a new operation.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        lock(&self.0.settings).retention = retention;
        self
    }

    /// How often an operation is attempted in each direction before it is parked; ten times unless
    /// set. One attempt is up to five tries.
    #[must_use]
    pub fn attempts_max(self, attempts_max: u32) -> Self {
        lock(&self.0.settings).attempts_max = attempts_max;
        self
    }

    /// Registers the function of an operation, so that it can be started and recovered. A change of
    /// the function that makes other calls for the same input is another version: register both,
    /// until [no operation](OperationStore::list) of the former runs any more.
    pub fn operation<I, T, F, O>(
        &self,
        name: &str,
        version: i32,
        function: O,
    ) -> OperationHandle<S, I, T>
    where
        I: DeserializeOwned + Serialize + Send + 'static,
        T: DeserializeOwned + Serialize + Send + 'static,
        F: Future<Output = Result<T, StepError>> + Send + 'static,
        O: Fn(Operation<S>, I) -> F + Send + Sync + 'static,
    {
        let function: OperationFunction<S> = Arc::new(move |operation: Operation<S>| {
            let run = Arc::clone(&operation.run);
            match serde_json::from_str(&run.row.input) {
                Ok(input) => {
                    let future = function(operation, input);
                    Box::pin(async move {
                        let json = to_result(&future.await?);
                        Ok(stop_on_error(&run, json).await)
                    })
                }
                Err(error) => Box::pin(async move {
                    let why = format!("this version cannot read the input: {error}");
                    Ok(stop_on_error(&run, Err(why)).await)
                }),
            }
        });
        lock(&self.0.functions).insert((name.to_owned(), version), function);
        let (operations, name) = (self.clone(), name.to_owned());
        OperationHandle { operations, name, version, types: PhantomData }
    }

    /// Starts the background task that renews leases and takes over operations whose process is
    /// gone. Call it once every function is registered; starting an operation does the same.
    pub fn recover(&self) {
        if !self.0.is_recovering.swap(true, Ordering::Relaxed) {
            tokio::spawn(recover(Arc::downgrade(&self.0)));
        }
    }

    /// Stops taking operations over and starting new ones, and lets those that run here go at their
    /// next boundary of a step, so that another process continues them at once. `false` if some
    /// still run after this time; they are continued when their leases end.
    pub async fn drain(&self, within: Duration) -> bool {
        self.0.is_draining.store(true, Ordering::SeqCst);
        let until = Instant::now() + within;
        loop {
            let ended = self.0.ended.notified();
            let running: Vec<_> = lock(&self.0.running).values().cloned().collect();
            if running.is_empty() {
                return true;
            }
            running.iter().for_each(|run| run.stop(StopReason::Release));
            if timeout_at(until, ended).await.is_err() {
                return false;
            }
        }
    }

    /// The database, to list operations and to act on them.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// What became of operations in this process.
    #[must_use]
    pub fn counts(&self) -> OperationCounts {
        let Counts { started, taken, done, undone, parked, failed, lost } = &self.0.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        OperationCounts {
            started: read(started),
            taken: read(taken),
            done: read(done),
            undone: read(undone),
            parked: read(parked),
            failed: read(failed),
            lost: read(lost),
            running: u64::try_from(lock(&self.0.running).len()).unwrap_or_default(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn to_result<T: Serialize>(value: &T) -> Result<String, String> {
    let json = serde_json::to_string(value);
    let json = json.map_err(|error| format!("the result cannot be written: {error}"))?;
    if json.len() > VALUE_BYTES_MAX {
        return Err(format!("the result has more than {VALUE_BYTES_MAX} bytes"));
    }
    Ok(json)
}

/// The value; an error parks the operation.
async fn stop_on_error<S: OperationStore>(
    run: &OwnedRun<S>,
    value: Result<String, String>,
) -> String {
    match value {
        Ok(value) => value,
        Err(why) => {
            run.journal().stop(StopReason::Park(why));
            std::future::pending().await
        }
    }
}

impl<S: OperationStore> OperationsInner<S> {
    fn function(&self, row: &OperationRow) -> Option<OperationFunction<S>> {
        lock(&self.functions).get(&(row.name.clone(), row.version)).cloned()
    }

    /// Drives an operation in a task of its own. The receiver gets how that ended.
    fn spawn(
        self: &Arc<Self>,
        row: OperationRow,
        steps: Vec<StepRow>,
        asked: Duration,
    ) -> Option<oneshot::Receiver<DriveEnd>> {
        let function = self.function(&row)?;
        let Settings { lease, attempts_max, .. } = *lock(&self.settings);
        let (id, taken) = (row.id, row.attempt);
        let run = Arc::new(OwnedRun::new(Arc::clone(&self.store), row, steps, asked, lease));
        // An earlier run of this process is a zombie by now: its fence is lower.
        lock(&self.running).insert(id, Arc::clone(&run));
        if self.is_draining.load(Ordering::SeqCst) {
            run.stop(StopReason::Release);
        }
        let (ended_tx, ended) = oneshot::channel();
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let limits = DriveLimits { attempts_max, lease };
            let end = drive(&run, &function, limits).await;
            shared.count(&end);
            let mut running = lock(&shared.running);
            if running.get(&id).is_some_and(|current| Arc::ptr_eq(current, &run)) {
                running.remove(&id);
            }
            drop(running);
            info!(operation = id, attempt = taken, ?end, "the drive of an operation ended");
            let _ = ended_tx.send(end);
            shared.ended.notify_waiters();
        });
        Some(ended)
    }

    fn count(&self, end: &DriveEnd) {
        let Counts { done, undone, parked, failed, lost, .. } = &self.counts;
        let count = match end {
            DriveEnd::Ended(OperationEnd::Done(_)) => done,
            DriveEnd::Ended(OperationEnd::Undone) => undone,
            DriveEnd::Ended(OperationEnd::Parked(_)) => parked,
            DriveEnd::Released { failed: true } => failed,
            DriveEnd::Released { failed: false } => return,
            DriveEnd::Lost => lost,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Renews leases, takes lapsed operations over, and now and then deletes old ones.
    async fn look(self: &Arc<Self>) -> Result<(), StoreError> {
        let settings = *lock(&self.settings);
        self.renew(settings.lease).await?;
        if self.is_draining.load(Ordering::SeqCst) {
            return Ok(());
        }
        let known: Vec<_> = lock(&self.functions).keys().cloned().collect();
        let (owner, asked) = (token(), since_boot());
        let request = TakeRequest { known: &known, owner, lease: settings.lease, limit: TAKEN_MAX };
        let taken =
            if known.is_empty() { Vec::new() } else { self.store.take_lapsed(&request).await? };
        for row in taken {
            // Read after the fence was raised: no former owner can add to them.
            let steps = self.store.steps(row.id).await?;
            info!(operation = row.id, name = row.name, attempt = row.attempt, "taken over");
            self.counts.taken.fetch_add(1, Ordering::Relaxed);
            self.spawn(row, steps, asked);
        }
        if self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOKS_PER_SWEEP) {
            self.store.sweep(settings.retention, SWEPT_MAX).await?;
        }
        Ok(())
    }

    async fn renew(&self, lease: Duration) -> Result<(), StoreError> {
        let running: Vec<_> = lock(&self.running).values().cloned().collect();
        if running.is_empty() {
            return Ok(());
        }
        let owned: Vec<_> = running.iter().map(|run| run.owned()).collect();
        let asked = since_boot();
        let renewed = self.store.renew(&owned, lease).await?;
        for run in running {
            if renewed.contains(&run.row.id) {
                run.renewed(asked, lease);
            } else {
                run.stop(StopReason::Lost);
            }
        }
        Ok(())
    }
}

/// A random number for the row of an owner.
fn token() -> i64 {
    i64::from_ne_bytes(random().to_ne_bytes())
}

/// The background task. It ends when the operations are dropped, never on an error.
async fn recover<S: OperationStore>(shared: Weak<OperationsInner<S>>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let lease = lock(&shared.settings).lease;
        match timeout(lease, shared.look()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "cannot look for operations"),
            Err(_) => warn!("the database does not answer a look for operations"),
        }
        drop(shared);
        sleep((lease / 3).min(LOOK_INTERVAL_MAX)).await;
    }
}

impl<S, I, T> OperationHandle<S, I, T>
where
    S: OperationStore,
    I: Serialize,
    T: DeserializeOwned,
{
    /// Starts the operation with this key, or joins or replays it, and waits for its end.
    ///
    /// It belongs to the process, not to this call: if the call is dropped, the operation goes on.
    /// After a restart the same key finds it again.
    ///
    /// # Errors
    ///
    /// If the database fails. The operation may have been started; call again with the same key.
    pub async fn run(&self, key: &str, input: &I) -> Result<OperationOutcome<T>, StoreError> {
        let shared = &self.operations.0;
        self.operations.recover();
        if shared.is_draining.load(Ordering::SeqCst) {
            let message = "this process is shutting down: start the operation in another one";
            return Err(StoreError::new(StoreErrorKind::Unavailable, message));
        }
        let input = input_json(input)?;
        let Settings { lease, wait, .. } = *lock(&shared.settings);
        let until = Instant::now() + wait;
        let (name, version) = (self.name.as_str(), self.version);
        let new = NewOperation { name, version, key, input: &input, owner: token(), lease };
        let asked = since_boot();
        let row = match shared.store.start(&new).await {
            // Its own row is found by its owner.
            Err(error) if error.effect() == semel_core::Effect::Unknown => {
                shared.store.start(&new).await?
            }
            started => started?,
        };
        if row.version == version
            && row.input != input
            && canonical(&row.input) != canonical(&input)
        {
            return Ok(OperationOutcome::KeyReused);
        }
        let id = row.id;
        if row.owner == new.owner && row.state == OperationState::Running {
            shared.counts.started.fetch_add(1, Ordering::Relaxed);
            if let Some(ended) = shared.spawn(row, Vec::new(), asked) {
                match timeout_at(until, ended).await {
                    Ok(Ok(DriveEnd::Ended(OperationEnd::Done(json)))) => return done(&json),
                    Ok(_) => {}
                    Err(_) => return Ok(OperationOutcome::Running),
                }
            }
        } else if let Some(outcome) = outcome(&row)? {
            return Ok(outcome);
        }
        self.wait_for(id, until).await
    }

    /// Waits until the operation has ended, holding no connection.
    async fn wait_for(&self, id: i64, until: Instant) -> Result<OperationOutcome<T>, StoreError> {
        let mut pause = WAIT_BACKOFF;
        loop {
            if let Some(row) = self.operations.0.store.read(id).await?
                && let Some(outcome) = outcome(&row)?
            {
                return Ok(outcome);
            }
            if Instant::now() + pause > until {
                return Ok(OperationOutcome::Running);
            }
            sleep(pause).await;
            pause = (pause * 2).min(WAIT_BACKOFF_MAX);
        }
    }
}

/// The input as JSON, within bounds.
fn input_json<I: Serialize>(input: &I) -> Result<String, StoreError> {
    let wrong = |error: String| {
        StoreError::new(StoreErrorKind::TooLarge, format!("the input cannot be stored: {error}"))
    };
    let json = serde_json::to_string(input).map_err(|error| wrong(error.to_string()))?;
    if json.len() > VALUE_BYTES_MAX {
        return Err(wrong(format!("it has more than {VALUE_BYTES_MAX} bytes")));
    }
    Ok(json)
}

/// A text that is the same for equal documents.
fn canonical(json: &str) -> Vec<u8> {
    canonical::json_text(json.as_bytes()).unwrap_or_else(|_| json.as_bytes().to_vec())
}

fn done<T: DeserializeOwned>(json: &str) -> Result<OperationOutcome<T>, StoreError> {
    serde_json::from_str(json).map(OperationOutcome::Done).map_err(|error| {
        let message = format!("the recorded result cannot be read: {error}");
        StoreError::new(StoreErrorKind::Corrupt, message).because(error)
    })
}

/// The outcome of an operation that has ended.
fn outcome<T: DeserializeOwned>(
    row: &OperationRow,
) -> Result<Option<OperationOutcome<T>>, StoreError> {
    Ok(Some(match row.state {
        OperationState::Running => return Ok(None),
        OperationState::Done => done(row.result.as_deref().unwrap_or("null"))?,
        OperationState::Undone => {
            OperationOutcome::Undone(StepError::recorded(row.refusal.as_deref()))
        }
        OperationState::Parked => OperationOutcome::Parked(row.reason.clone().unwrap_or_default()),
    }))
}

impl<S: OperationStore> Clone for Operations<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: OperationStore> fmt::Debug for Operations<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operations").field("store", &self.0.store).finish_non_exhaustive()
    }
}

impl<S: OperationStore, I, T> Clone for OperationHandle<S, I, T> {
    fn clone(&self) -> Self {
        let (operations, name) = (self.operations.clone(), self.name.clone());
        Self { operations, name, version: self.version, types: PhantomData }
    }
}

impl<S: OperationStore, I, T> fmt::Debug for OperationHandle<S, I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, version, .. } = self;
        f.debug_struct("OperationHandle").field("name", name).field("version", version).finish()
    }
}
