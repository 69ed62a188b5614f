//! Asks upstreams what became of held operations, and resolves what their answers prove.
//!
//! One task per process. Each scope has one reader among all processes on the store: the holder of
//! its [`ReaderLease`]. Two readers would do no harm, because a record is resolved only as it was
//! seen, but they would read twice. What is decided is in [`semel::core::reconcile`].

mod lease;
mod read;
mod record;
mod scope_reader;
mod status;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use semel::core::{
    Fence, ListQuery, RecordId, Resolution, Resolved, Scope, StateName, Store, StoreError,
    StoredResponse, Summary,
    reconcile::{ReconcileNote, notes_prefix},
    store::METADATA_ENTRIES_MAX,
};
use semel_config::{Config, ReconcileRule};
use semel_telemetry::metrics::Metrics;
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{sleep, timeout},
};

use self::scope_reader::ScopeReader;
pub(crate) use self::status::{HeldReads, RouteHeldStatus};
use crate::upstream::pool::Pool;
use crate::upstream::pool_map::PoolMap;

/// Time between two looks at the store while no route reconciles.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);

/// How long a shutdown waits for the reads that are in progress.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Bounds of the time between two looks at the store.
const TICK_MIN: Duration = Duration::from_millis(25);
const TICK_MAX: Duration = Duration::from_secs(5);

/// Maximum number of held records that are followed, as many as have a note; and of pages.
const RECORDS_MAX: usize = METADATA_ENTRIES_MAX;
const PAGES_MAX: usize = 50;

/// What a read of the upstream proved about a record.
#[derive(Clone, Debug)]
pub struct ReconcileAction {
    /// The record.
    pub id: RecordId,
    /// Its fence, as it was seen.
    pub seen: Fence,
    /// What becomes of it.
    pub resolution: Resolution,
    /// The answer that is recorded.
    pub answer: Option<StoredResponse>,
    /// What was read, and when.
    pub why: String,
}

/// The result of an audited action.
pub type ActionFuture = Pin<Box<dyn Future<Output = Result<Resolved, String>> + Send>>;

/// Resolves a record with a line in the audit log before and after.
pub type AuditedResolve = Arc<dyn Fn(ReconcileAction) -> ActionFuture + Send + Sync>;

/// The reconciled scope of a configuration.
#[derive(Clone, Debug)]
pub(crate) struct ReconciledScope {
    pub(crate) scope: Scope,
    pub(crate) rule: Arc<ReconcileRule>,
    pub(crate) pool: Arc<Pool>,
}

/// The reconciled scopes, replaced by a reload, and the pools of their reads.
#[derive(Debug, Default)]
pub(crate) struct ReconciledScopes {
    scopes: ArcSwap<Vec<ReconciledScope>>,
    pools: PoolMap,
}

impl ReconciledScopes {
    /// The scopes of a configuration.
    pub(crate) fn prepare(&self, config: &Config) -> anyhow::Result<Vec<ReconciledScope>> {
        let mut scopes: Vec<ReconciledScope> = Vec::new();
        for route in &config.routes {
            let Some(guard) = &route.guard else { continue };
            let Some(rule) = &guard.reconcile else { continue };
            if scopes.iter().all(|known| known.scope != guard.scope) {
                let (scope, rule) = (guard.scope.clone(), Arc::clone(rule));
                let pool = self.pools.get(&route.upstream)?;
                scopes.push(ReconciledScope { scope, rule, pool });
            }
        }
        Ok(scopes)
    }

    pub(crate) fn set(&self, scopes: Vec<ReconciledScope>) {
        self.scopes.store(Arc::new(scopes));
    }
}

/// What the task needs.
pub(crate) struct ReconcileContext {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) resolve: AuditedResolve,
    pub(crate) reads: Arc<HeldReads>,
    pub(crate) scopes: Arc<ReconciledScopes>,
}

/// The background task. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct ReconcileTask {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl ReconcileTask {
    /// Starts the task. Must be called in a runtime.
    pub(crate) fn start(context: ReconcileContext) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(run(Arc::new(context), stopped));
        Self { stop, task }
    }

    /// Ends the task and gives its leases back, so that another process reads at once.
    pub(crate) async fn stop(self) {
        let Self { stop, mut task } = self;
        let _ = stop.send(());
        if timeout(STOP_TIMEOUT, &mut task).await.is_err() {
            task.abort();
        }
    }
}

/// Runs until `stopped` ends.
async fn run(context: Arc<ReconcileContext>, mut stopped: oneshot::Receiver<()>) {
    let mut readers: Vec<ScopeReader> = Vec::new();
    loop {
        let pause = tick(&context, &mut readers).await;
        tokio::select! {
            () = sleep(pause) => {}
            _ = &mut stopped => break,
        }
    }
    for reader in &mut readers {
        reader.release().await;
    }
}

/// Looks at the held records once and reads what is due. Returns the time until the next look.
async fn tick(context: &Arc<ReconcileContext>, readers: &mut Vec<ScopeReader>) -> Duration {
    let scopes = context.scopes.scopes.load_full();
    context.scopes.pools.prune();
    readers.retain(|reader| scopes.iter().any(|known| known.scope == *reader.scope()));
    for known in &*scopes {
        match readers.iter_mut().find(|reader| *reader.scope() == known.scope) {
            Some(reader) => reader.set_rule(known),
            None => readers.push(ScopeReader::new(context, known)),
        }
    }
    let shortest = scopes.iter().map(|known| known.rule.plan.every).min();
    let Some(shortest) = shortest else { return IDLE_INTERVAL };
    // The engine reports failures of the store; the next look comes soon.
    if let Ok(held) = HeldListing::read(&*context.store, &scopes).await {
        context.reads.update(&held, &scopes);
        for reader in readers {
            reader.run(&held).await;
        }
        held.remove_stale_notes(&*context.store).await;
    }
    (shortest / 4).clamp(TICK_MIN, TICK_MAX)
}

/// The held records of the reconciled scopes, and the notes about them.
pub(crate) struct HeldListing {
    pub(crate) records: Vec<Summary>,
    /// Whether these are all.
    complete: bool,
    notes: Vec<(String, ReconcileNote)>,
}

impl HeldListing {
    async fn read(store: &dyn Store, scopes: &[ReconciledScope]) -> Result<Self, StoreError> {
        let mut query = ListQuery::new();
        query.state = Some(StateName::Held);
        let mut list = Self { records: Vec::new(), complete: false, notes: Vec::new() };
        let is_ours = |record: &Summary| {
            // Claims of the service API have no request that could be captured.
            let by_app = record.id.caller.as_str().starts_with("app:");
            !by_app && scopes.iter().any(|known| known.scope == record.id.scope)
        };
        for _ in 0..PAGES_MAX {
            let page = store.list(&query).await?;
            list.records.extend(page.items.into_iter().filter(is_ours));
            query.after = page.next;
            list.complete = page.next.is_none() && list.records.len() <= RECORDS_MAX;
            if page.next.is_none() || list.records.len() >= RECORDS_MAX {
                break;
            }
        }
        list.records.truncate(RECORDS_MAX);
        let read = |(name, value): (Box<str>, bytes::Bytes)| {
            Some((name.into(), ReconcileNote::from_stored(&value)?))
        };
        for known in scopes {
            let notes = store.metadata(&notes_prefix(&known.scope)).await?;
            list.notes.extend(notes.into_iter().filter_map(read));
        }
        Ok(list)
    }

    /// The note about a record as it is now.
    pub(crate) fn note(&self, record: &Summary) -> Option<&ReconcileNote> {
        let name = ReconcileNote::name(&record.id);
        let current =
            |(known, note): &&(String, ReconcileNote)| *known == name && note.fence == record.fence;
        self.notes.iter().find(current).map(|(_, note)| note)
    }

    /// Removes the notes about records that are not held any more. Every process does, so that none
    /// stays behind a reader that has gone.
    async fn remove_stale_notes(&self, store: &dyn Store) {
        if !self.complete || self.notes.is_empty() {
            return;
        }
        let names: Vec<String> =
            self.records.iter().map(|record| ReconcileNote::name(&record.id)).collect();
        for (name, _) in self.notes.iter().filter(|(name, _)| !names.contains(name)) {
            let _ = store.set_metadata(name, None).await;
        }
    }
}
